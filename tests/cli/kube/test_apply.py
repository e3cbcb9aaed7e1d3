"""`apply` and `crds` against a real API server; skipped where the fixture api_server can start none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tartlet_cli.cluster.api import CONFIG_MAPS, CRDS, INFERLETS, Cluster, ResourceKind
from tartlet_cli.cluster.errors import KindUnknown
from tartlet_cli.cluster.options import Target
from tartlet_cli.console import exits
from tartlet_cli.kube import crds
from tests.cli.kube.kube_shell import Shell, file, kubeconfig
from tests.operator.api_server import ApiServer, Refused

HELLO = "async def main():\n    print('hello')\n"


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


def test_every_character_of_a_program_arrives(shell: Shell) -> None:
    odd = f"{HELLO}# \U0001f600\x7f\x85\x9f\u2028\ufeff\uffff\u00e9\n"
    assert shell("apply", file(shell, odd), "--name", "odd", "--description", "\U0001f600\x85").returncode == 0
    spec = shell.get(INFERLETS, "odd")["spec"]
    assert (spec["source"]["inline"], spec["description"]) == (odd, "\U0001f600\x85")


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
    assert "operator.namespaces" in nobody.stderr
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
    looked = shell("status", "-n", "no-such-namespace", plugin=True)
    assert (looked.returncode, looked.stderr.split(":")[0]) == (exits.USAGE, "NotThere")
    assert 'namespaces "no-such-namespace" not found' in looked.stderr
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
                cluster.list(ResourceKind(group, "things", "thing"), shell.namespace)
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
