"""The commands for clusters against a real API server, and through it to a real runtime."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tartlet_cli import exits
from tartlet_cli.kube import crds
from tartlet_cli.kube.api import CONFIG_MAPS, CRDS, INFERLETS, Cluster, Kind
from tartlet_cli.kube.errors import KindUnknown
from tartlet_cli.kube.options import Target
from tests.cli.kubelet import Kubelet
from tests.e2e.cluster import Cluster as Roles
from tests.e2e.cluster import cluster as roles_up
from tests.e2e.serving import PROGRAMS
from tests.operator.api_server import ApiServer, Refused, api_server_up

HELLO = "async def main():\n    print('hello')\n"
NODE = "n1"


@dataclass
class Shell:
    """Commands in a namespace, as somebody."""

    server: ApiServer
    namespace: str
    directory: Path
    kubeconfig: Path

    def start(self, *args: str, plugin: bool = False) -> subprocess.Popen[str]:
        module = "tartlet_cli.kube.plugin" if plugin else "tartlet_cli"
        code = ["-c", "from tartlet_cli.kube.plugin import main; main()"] if plugin else ["-m", module]
        env = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "TARTLET_RUN_DIR": str(self.directory / "run")}
        return subprocess.Popen(
            [sys.executable, *code, *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def __call__(self, *args: str, plugin: bool = False) -> subprocess.CompletedProcess[str]:
        process = self.start(*args, plugin=plugin)
        out, err = process.communicate(timeout=90)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def path(self, kind: Any, name: str = "") -> str:
        path: str = kind.path(self.namespace, name)
        return path

    def get(self, kind: Any, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.server.call("GET", self.path(kind, name))
        return found


def kubeconfig(server: ApiServer, file: Path, namespace: str, token: str) -> Path:
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["users"] = [{"name": "u", "user": {"token": token}}]
    config["contexts"][0]["context"]["namespace"] = namespace
    file.write_text(yaml.safe_dump(config))
    return file


@pytest.fixture(scope="module")
def api_server(repo: Path) -> Iterator[ApiServer]:
    """etcd and an API server that knows our kinds; they end with the module."""
    with api_server_up(repo / "crds") as server:
        yield server


@pytest.fixture
def namespace(api_server: ApiServer) -> str:
    """A namespace of the test's own."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    api_server.create_namespace(name)
    return name


@pytest.fixture
def shell(api_server: ApiServer, namespace: str, tmp_path: Path) -> Shell:
    """As an administrator."""
    return Shell(api_server, namespace, tmp_path, kubeconfig(api_server, tmp_path / "config", namespace, "admintoken"))


def file(shell: Shell, text: str, name: str = "my_program.py") -> str:
    path = shell.directory / name
    path.write_text(text)
    return str(path)


def test_apply_creates_then_leaves_alone_then_configures(shell: Shell) -> None:
    path = file(shell, HELLO)
    said = [shell("apply", path, "--pool", "demo").stdout for _ in range(2)]
    assert said == [f"inferlet.tartlet.dev/my-program {outcome}\n" for outcome in ("created", "unchanged")]
    found = shell.get(INFERLETS, "my-program")
    assert found["spec"]["source"] == {"inline": HELLO}
    (manager,) = found["metadata"]["managedFields"]
    assert (manager["manager"], manager["operation"]) == ("tartlet-cli", "Apply")
    changed = shell("apply", path, "--pool", "other", "-o", "json")
    assert changed.stderr == "inferlet.tartlet.dev/my-program configured\n"
    assert json.loads(changed.stdout)["spec"]["pool"] == "other"


def test_what_is_too_large_for_the_inferlet_is_in_its_configmap_until_it_no_longer_is(shell: Shell) -> None:
    large = HELLO + "#" * (900 << 10)
    path = file(shell, large)
    assert shell("apply", path, "--name", "p").returncode == 0
    made = shell.get(INFERLETS, "p")
    source = shell.get(CONFIG_MAPS, "p-source")
    assert made["spec"]["source"] == {"configMap": {"name": "p-source", "key": "my_program.py"}}
    assert source["data"] == {"my_program.py": large}
    assert [o["uid"] for o in source["metadata"]["ownerReferences"]] == [made["metadata"]["uid"]]
    assert shell("apply", path, "--name", "p").stdout == "inferlet.tartlet.dev/p unchanged\n"
    assert shell.get(CONFIG_MAPS, "p-source")["metadata"]["resourceVersion"] == source["metadata"]["resourceVersion"]
    file(shell, HELLO)
    assert shell("apply", path, "--name", "p").stdout == "inferlet.tartlet.dev/p configured\n"
    with pytest.raises(Refused, match="not found"):
        shell.get(CONFIG_MAPS, "p-source")


def test_refusals_and_conflicts_are_shown_whole_with_what_to_do(shell: Shell) -> None:
    path = file(shell, HELLO)
    refused = shell("apply", path, "--pool", "x" * 64, "--description", "y" * 1025)
    assert refused.returncode == exits.USAGE
    assert "spec.pool" in refused.stderr
    assert "spec.description" in refused.stderr
    assert refused.stderr.startswith("ManifestRefused: ")
    assert shell("apply", path, "--pool", "demo").returncode == 0
    theirs = {"apiVersion": "tartlet.dev/v1alpha1", "kind": "Inferlet", "metadata": {"name": "my-program"}}
    theirs |= {"spec": {"pool": "theirs", "source": {"inline": "other"}}}
    patch = f"{shell.path(INFERLETS, 'my-program')}?fieldManager=argo&force=true"
    shell.server.call("PATCH", patch, theirs, "application/apply-patch+yaml")
    conflict = shell("apply", path, "--pool", "demo")
    assert conflict.returncode == exits.USAGE
    for told in ("FieldConflict: ", '.spec.pool: conflict with "argo"', ".spec.source.inline", "--force-conflicts"):
        assert told in conflict.stderr
    assert shell("apply", path, "--pool", "demo", "--force-conflicts").returncode == 0
    assert shell.get(INFERLETS, "my-program")["spec"]["pool"] == "demo"


def test_wait_tells_ready_refused_and_not_yet(shell: Shell) -> None:
    path = file(shell, HELLO)

    def state(status: str, reason: str, message: str, **more: Any) -> None:
        found = shell.get(INFERLETS, "my-program")
        condition = {"type": "Ready", "status": status, "reason": reason, "message": message}
        condition |= {
            "observedGeneration": found["metadata"]["generation"],
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        body = {"status": {"conditions": [condition | more]}}
        shell.server.call(
            "PATCH", shell.path(INFERLETS, "my-program") + "/status", body, "application/merge-patch+json"
        )

    nobody = shell("apply", path, "--wait", "--timeout", "0.5")
    assert (nobody.returncode, "no operator has looked at it yet" in nobody.stderr) == (exits.SYSTEM, True)
    state("True", "Catalogued", "")
    assert shell("apply", path, "--wait").stdout.endswith("inferlet.tartlet.dev/my-program ready\n")
    state("False", "InvalidSource", "the program's source was refused: line 3")
    refused = shell("apply", path, "--wait")
    assert refused.returncode == exits.PROGRAM_FAILED
    assert "InferletRefused: inferlet my-program is not Ready: InvalidSource: " in refused.stderr
    assert "line 3" in refused.stderr
    state("False", "SourceMissing", "configmap gone")
    late = shell("apply", path, "--wait", "--timeout", "0.5")
    assert late.returncode == exits.SYSTEM
    assert "after 0.5 s: SourceMissing: configmap gone" in late.stderr


def test_a_cluster_that_isnt_there_a_namespace_and_a_login_that_arent(shell: Shell) -> None:
    path = file(shell, HELLO)
    missing = shell("apply", path, "-n", "no-such-namespace")
    assert (missing.returncode, missing.stderr.split(":")[0]) == (exits.USAGE, "NotThere")
    assert "no-such-namespace" in missing.stderr
    stranger = kubeconfig(shell.server, shell.directory / "stranger", shell.namespace, "wrong")
    refused = shell("apply", path, "--kubeconfig", str(stranger))
    assert (refused.returncode, refused.stderr.split(":")[0]) == (exits.USAGE, "LoginRefused")
    for flags in (["--kubeconfig", "/no/such/file"], ["--context", "nope"]):
        unknown = shell("apply", path, *flags)
        assert (unknown.returncode, unknown.stderr.split(":")[0]) == (exits.USAGE, "ClusterUnknown")
    gone = shell.directory / "gone"
    config = yaml.safe_load(shell.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    gone.write_text(yaml.safe_dump(config))
    down = shell("apply", path, "--kubeconfig", str(gone))
    assert (down.returncode, down.stderr.split(":")[0]) == (exits.SYSTEM, "ClusterUnreachable")
    assert "Connection refused" in down.stderr


def test_a_kind_that_the_server_does_not_know_is_told_as_such(shell: Shell) -> None:
    with Cluster.connect(Target(kubeconfig=str(shell.kubeconfig))) as cluster:
        assert cluster.namespace == shell.namespace
        for group in ("apis/none.dev/v1", "apis/tartlet.dev/v1alpha1"):
            with pytest.raises(KindUnknown, match="doesn't know Tartlet's kinds"):
                cluster.list(Kind(group, "things", "thing"), shell.namespace)
        assert cluster.find(INFERLETS, "nothing", shell.namespace) is None


# ---- CRDs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def restored(api_server: ApiServer) -> Iterator[None]:
    """The definitions as they were before, for the tests that come after."""
    yield
    for crd in crds.definitions():
        path = CRDS.path(name=crd["metadata"]["name"])
        version = api_server.call("GET", path)["metadata"]["resourceVersion"]
        crd["metadata"]["resourceVersion"] = version
        api_server.call("PUT", path, crd)


def test_definitions_are_upgraded_unless_a_release_owns_them(shell: Shell, restored: None) -> None:
    same = shell("crds", "apply")
    assert same.stdout.splitlines() == [
        f"{plural}.tartlet.dev unchanged" for plural in ("enginepools", "inferletruns", "inferlets")
    ]
    path = CRDS.path(name="inferlets.tartlet.dev")
    old = {"spec": {"names": {"shortNames": ["old"]}}}
    shell.server.call("PATCH", path, old, "application/merge-patch+json")
    told = shell("crds", "apply", "--dry-run")
    assert told.returncode == exits.USAGE  # somebody's patch manages it
    assert "FieldConflict" in told.stderr
    told = shell("crds", "apply", "--dry-run", "--force")
    assert told.stdout.splitlines()[2:] == ["inferlets.tartlet.dev changed:", "  spec.names.shortNames (dry run)"]
    assert shell.server.call("GET", path)["spec"]["names"]["shortNames"] == ["old"]

    notes = {crds.HELM_RELEASE: "prod", crds.HELM_NAMESPACE: "team"}
    shell.server.call("PATCH", path, {"metadata": {"annotations": notes}}, "application/merge-patch+json")
    owned = shell("crds", "apply")
    assert owned.returncode == exits.USAGE
    assert "CrdOwned: inferlets.tartlet.dev belongs to Helm release prod in namespace team" in owned.stderr
    forced = shell("crds", "apply", "--force")
    assert forced.returncode == 0, forced.stderr
    after = shell.server.call("GET", path)
    assert after["spec"]["names"]["shortNames"] == ["ilet"]
    assert after["metadata"]["annotations"] == after["metadata"]["annotations"] | notes


# ---- run, logs, top: through a port-forward ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def roles() -> Iterator[Roles]:
    """Control, a runtime and a fake engine over mutual TLS."""
    directory = Path(tempfile.mkdtemp(prefix="tt-"))
    try:
        with roles_up(directory, runtimes=1) as made:
            yield made
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@dataclass
class Release:
    """A release as its objects show it, with an editor of the namespace."""

    shell: Shell
    kubelet: Kubelet
    editor: Shell
    role: str
    pods: list[str] = field(default_factory=list)

    def core(self, method: str, rest: str, body: Any = None, content_type: str = "application/json") -> Any:
        path = f"/api/v1/namespaces/{self.shell.namespace}/{rest}"
        return self.shell.server.call(method, path, body, content_type)


LABELS = {
    "app.kubernetes.io/name": "tartlet",
    "app.kubernetes.io/component": "runtime",
    "app.kubernetes.io/instance": "prod",
}
RULES = [
    {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["prod-client-tls"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["services", "pods"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["get", "create"]},
]


@pytest.fixture
def release(shell: Shell, roles: Roles) -> Iterator[Release]:
    kubelet = Kubelet(int(roles.runtimes[0].rpartition(":")[2]))
    kubelet.start(shell.directory)
    call, space = shell.server.call, shell.namespace
    node = f"{NODE}-{space}"
    call("POST", "/api/v1/nodes", {"metadata": {"name": node}})
    status: dict[str, Any] = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}
    status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": kubelet.port}}
    call("PATCH", f"/api/v1/nodes/{node}/status", {"status": status}, "application/merge-patch+json")
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{space}"
    call("POST", f"{rbac}/roles", {"metadata": {"name": "editor"}, "rules": RULES})
    made = Release(shell, kubelet, shell, f"{rbac}/roles/editor")
    made.core("POST", "serviceaccounts", {"metadata": {"name": "dev"}})
    subject = {"kind": "ServiceAccount", "name": "dev", "namespace": space}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "editor"}
    call("POST", f"{rbac}/rolebindings", {"metadata": {"name": "dev"}, "roleRef": ref, "subjects": [subject]})
    token = made.core("POST", "serviceaccounts/dev/token", {"apiVersion": "authentication.k8s.io/v1", "spec": {}})
    config = kubeconfig(shell.server, shell.directory / "dev", space, token["status"]["token"])
    made.editor = Shell(shell.server, space, shell.directory, config)

    tls = roles.identity("client")
    files = zip(("tls.crt", "tls.key", "ca.crt"), tls.files, strict=True)
    data = {name: base64.b64encode(path.read_bytes()).decode() for name, path in files}
    made.core("POST", "secrets", {"metadata": {"name": "prod-client-tls"}, "data": data})
    ports = [{"name": "grpc", "port": 7444, "targetPort": "grpc"}]
    spec: dict[str, Any] = {"selector": LABELS, "ports": ports}
    made.core("POST", "services", {"metadata": {"name": "prod-runtime", "labels": LABELS}, "spec": spec})
    container = {"name": "runtime", "image": "x", "ports": [{"name": "grpc", "containerPort": 7444}]}
    pod = {
        "metadata": {"name": "prod-runtime-0", "labels": LABELS},
        "spec": {"nodeName": node, "containers": [container]},
    }
    made.core("POST", "pods", pod)
    ready(made, "True")
    yield made
    kubelet.stop()
    call("DELETE", f"/api/v1/nodes/{node}")


def ready(release: Release, status: str) -> None:
    conditions = [{"type": "Ready", "status": status}]
    body = {"status": {"phase": "Running", "conditions": conditions}}
    release.core("PATCH", "pods/prod-runtime-0/status", body, "application/strategic-merge-patch+json")


SAMPLED = ("hello", "0", "0", "1", "1")


def test_a_program_runs_on_the_cluster_as_it_does_here(release: Release) -> None:
    done = release.editor("run", "--kube", str(PROGRAMS / "sampled.py"), *SAMPLED)
    assert done.returncode == 0, done.stderr
    *pieces, text = done.stdout.splitlines()
    assert "".join(pieces).count(";") == 24 + text.count(";")
    assert done.stderr.startswith("[24 tokens, first after ")
    assert done.stderr.count("\n") == 1
    failed = release.editor("run", "--kube", "--quiet", str(PROGRAMS / "fails.py"))
    assert failed.returncode == exits.PROGRAM_FAILED
    assert failed.stderr.endswith("KeyError: 'missing'\n")
    assert {p.partition("?")[0] for p in release.kubelet.paths} == {
        f"/portForward/{release.shell.namespace}/prod-runtime-0"
    }
    assert list((release.shell.directory / "run").iterdir()) == []  # no certificates are left


def test_much_output_comes_whole_and_the_programs_own_n_is_its_own(release: Release) -> None:
    text = "import sys\nasync def main():\n    for _ in range(400):\n        print('x' * 10_000)\n"
    text += "    return ' '.join(sys.argv[1:])\n"
    path = file(release.shell, text)
    done = release.editor("run", "-n", release.shell.namespace, path, "-n", "3", plugin=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("x" * 10_000 + "\n") * 400 + "-n 3\n"


def test_ctrl_c_ends_the_program(release: Release) -> None:
    process = release.editor.start("run", "--kube", str(PROGRAMS / "echo.py"))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    running = json.loads(release.editor("top", "--once", "--json", plugin=True).stdout)["programs"]
    assert [p["state"] for p in running] == ["running"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == exits.INTERRUPTED
    end = time.monotonic() + 10
    while json.loads(release.editor("top", "--once", "--json", plugin=True).stdout)["programs"]:
        assert time.monotonic() < end, "it still runs"
    assert list((release.shell.directory / "run").iterdir()) == []


def test_a_connection_that_is_cut_is_told_as_such(release: Release) -> None:
    process = release.editor.start("run", "--kube", str(PROGRAMS / "echo.py"))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    release.kubelet.cut()
    _, err = process.communicate(timeout=60)
    assert process.returncode == exits.SYSTEM
    assert err.startswith(
        f"PortForwardFailed: the port-forward to pod prod-runtime-0 in namespace {release.shell.namespace}"
    )


def test_what_is_missing_is_named_with_what_to_do(release: Release) -> None:
    path = str(PROGRAMS / "echo.py")

    def refused(*flags: str) -> tuple[str, str, int]:
        done = release.editor("run", "--kube", *flags, path)
        return done.stderr.split(":")[0], done.stderr, done.returncode

    name, err, code = refused("--release", "other")
    assert (name, code) == ("ReleaseNotFound", exits.USAGE)
    assert "there are: prod" in err

    release.kubelet.refuse = "error forwarding port 7444 to pod: connection refused"
    name, err, code = refused()
    assert (name, code) == ("PortForwardFailed", exits.SYSTEM), err
    assert "connection refused" in err
    release.kubelet.refuse = ""

    ready(release, "False")
    name, err, code = refused()
    assert (name, code) == ("RuntimeNotReady", exits.SYSTEM)
    assert "pod prod-runtime-0 is Running, not ready" in err
    ready(release, "True")

    for without, told in ((2, "pods/portforward"), (0, "secrets"), (1, "services")):
        rules = [rule for n, rule in enumerate(RULES) if n != without]
        release.shell.server.call("PATCH", release.role, {"rules": rules}, "application/merge-patch+json")
        deadline = time.monotonic() + 10
        while (got := refused())[2] == 0 or (told not in got[1] and time.monotonic() < deadline):
            pass  # RBAC is read from a cache
        name, err, code = got
        assert (name, code) == ("Forbidden", exits.USAGE), err
        assert told in err
        assert "tartlet:NAMESPACE:RELEASE:editor" in err


def test_a_certificate_that_the_runtime_does_not_know_is_no_port_forward_that_broke(
    release: Release, roles: Roles
) -> None:
    other = Roles(release.shell.directory / "other")
    other.directory.mkdir()
    tls = other.identity("client")
    data = {"ca.crt": base64.b64encode(tls.authority.read_bytes()).decode()}
    release.core("PATCH", "secrets/prod-client-tls", {"data": data}, "application/merge-patch+json")
    done = release.editor("run", "--kube", str(PROGRAMS / "echo.py"))
    assert done.returncode == exits.SYSTEM
    assert "RuntimeUnreachable: the runtime in pod prod-runtime-0" in done.stderr, done.stderr
    assert "CERTIFICATE_VERIFY_FAILED" in done.stderr


def test_logs_of_a_run_come_from_its_program_and_then_from_its_status(release: Release) -> None:
    space = release.shell.namespace
    runs = f"/apis/tartlet.dev/v1alpha1/namespaces/{space}/inferletruns"
    run = {"apiVersion": "tartlet.dev/v1alpha1", "kind": "InferletRun", "metadata": {"name": "r"}}
    release.shell.server.call("POST", runs, run | {"spec": {"inferlet": "hello"}})

    def state(**status: Any) -> None:
        release.shell.server.call("PATCH", f"{runs}/r/status", {"status": status}, "application/merge-patch+json")

    waits = release.shell("logs", "r", plugin=True)
    assert (waits.returncode, waits.stderr.split(":")[0]) == (exits.USAGE, "RunNotStarted")
    process = release.editor.start("run", "--kube", "--json", str(PROGRAMS / "echo.py"))
    assert process.stdout is not None
    state(phase="Running", programId=json.loads(process.stdout.readline())["program_id"])
    assert release.shell("logs", "r", plugin=True).stdout == "ready\n"
    process.terminate()
    process.communicate(timeout=30)
    error = {"name": "ProgramFailed", "number": 201, "traceback": "Traceback ...\nKeyError: 'k'\n"}
    state(phase="Failed", output="kept\n", outputTruncated=True, error=error)
    ended = release.shell("logs", "-f", "r", plugin=True)
    assert ended.stdout == "kept\n"
    assert ended.stderr == "[the start of the output is not kept]\nTraceback ...\nKeyError: 'k'\n"
    shown = release.shell("status", plugin=True).stdout
    assert "prod     1 ready" in shown
    assert "r    hello     Failed  ProgramFailed" in shown
