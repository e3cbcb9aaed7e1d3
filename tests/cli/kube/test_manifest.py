"""Manifests that the command line makes, and what it makes of an API server's answers; no cluster."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tartlet import Source
from tartlet_cli.cluster import errors, release
from tartlet_cli.cluster.client import private_files
from tartlet_cli.commands.run import run_on_cluster
from tartlet_cli.console import exits
from tartlet_cli.kube import crds, manifest
from tartlet_cli.kube.apply import apply
from tartlet_cli.kube.manifest import NewInferlet
from tartlet_common.errors.registry import InvalidArgument, InvalidSource
from tartlet_operator.api.inferlet import SOURCE_BYTES, Inferlet

HELLO = b"async def main():\n    print('hello')\n"


def program(data: bytes = HELLO, **more: Any) -> NewInferlet:
    return NewInferlet("hello", "team", data, **more)


def test_a_small_program_is_inline_and_only_what_was_said_is_set() -> None:
    made = manifest.inferlet(program(pool="demo", args=("--n", "3")))
    assert made == {
        "apiVersion": "tartlet.dev/v1alpha1",
        "kind": "Inferlet",
        "metadata": {"name": "hello", "namespace": "team"},
        "spec": {
            "language": "Python",
            "source": {"inline": HELLO.decode()},
            "args": ["--n", "3"],
            "pool": "demo",
        },
    }
    assert manifest.config_map(program(), made) is None
    assert Inferlet.model_validate(made).spec.source.inline == HELLO.decode()


@pytest.mark.parametrize("char", ["x", "\n", "é", "\x01"])
def test_text_is_inline_up_to_its_bound_as_json_and_then_in_a_configmap(char: str) -> None:
    size = len(json.dumps(char, ensure_ascii=False).encode()) - 2
    fits = (manifest.INLINE_BYTES - 2) // size
    inline = manifest.inferlet(program((char * fits).encode()))
    assert len(inline["spec"]["source"]["inline"]) == fits <= SOURCE_BYTES
    larger = program((char * (fits + 1)).encode(), filename="my program.py")
    made = manifest.inferlet(larger)
    assert made["spec"]["source"] == {"configMap": {"name": "hello-source", "key": "my_program.py"}}
    source = manifest.config_map(larger, made, "uid-1")
    assert source is not None
    assert source["data"] == {"my_program.py": char * (fits + 1)}
    assert source["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    Inferlet.model_validate(made)


def test_what_kubectl_cannot_note_is_known() -> None:
    assert not manifest.too_large_for_kubectl([manifest.inferlet(program())])
    assert manifest.too_large_for_kubectl([manifest.inferlet(program(b"x" * (256 << 10)))])


def test_a_module_is_in_a_configmap_as_binary_data() -> None:
    module = program(b"\0asm\1\0\0\0", wasm=True, filename="p.wasm")
    made = manifest.inferlet(module)
    assert made["spec"]["language"] == "Wasm"
    source = manifest.config_map(module, made)
    assert source is not None
    assert source["metadata"] == {"name": "hello-source", "namespace": "team"}
    assert base64.b64decode(source["binaryData"]["p.wasm"]) == module.data


def test_several_files_are_in_a_configmap_as_binary_data(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_bytes(HELLO)
    several = program(Source.from_file(tmp_path).data, filename="agent")
    made = manifest.inferlet(several)
    assert (made["spec"]["language"], made["spec"]["source"]["configMap"]["key"]) == ("Python", "agent")
    source = manifest.config_map(several, made)
    assert source is not None
    assert base64.b64decode(source["binaryData"]["agent"]) == several.data
    Inferlet.model_validate(made)


def test_what_no_object_holds_is_told_with_the_way_out() -> None:
    with pytest.raises(errors.TooLargeForObjects) as caught:
        manifest.inferlet(program(b"x" * (manifest.CONFIG_MAP_BYTES + 1)))
    assert "spec.source.url" in caught.value.remedy
    with pytest.raises(InvalidSource, match="UTF-8"):
        manifest.inferlet(program(b"\xff"))
    with pytest.raises(InvalidArgument, match="not both"):
        manifest.inferlet(program(pool="a", model="b"))


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("inferlets/std/text_completion.py", "text-completion"),
        ("My Agent (2).py", "my-agent-2"),
        ("v1.2_x.py", "v1.2-x"),
        ("a_.b.py", "a.b"),
        ("x" * 200 + ".py", "x" * 128),
    ],
)
def test_a_files_name_becomes_an_objects(file: str, name: str) -> None:
    assert manifest.check_name(manifest.name_of(file)) == name


@pytest.mark.parametrize("name", ["", "Upper", "a_b", "-a", "a-", "a..b", "x" * 129])
def test_names_that_the_api_refuses_are_refused_before(name: str) -> None:
    with pytest.raises(InvalidArgument):
        manifest.check_name(name)
    with pytest.raises(InvalidArgument):
        manifest.name_of("___.py")


def test_yaml_keeps_the_text_readable_and_exact() -> None:
    text = 'async def main():\n    """Doc: äöü "quoted" # no comment"""\n    return "\\n"\n'
    made = manifest.inferlet(program(text.encode()))
    shown = manifest.to_yaml([made])
    assert "    inline: |\n" in shown
    assert yaml.safe_load(shown) == made
    assert json.loads(manifest.to_json([made])) == made


def test_only_a_configmap_of_the_inferlets_own_is_left_over() -> None:
    mine = {"metadata": {"ownerReferences": [{"uid": "u"}]}}
    assert manifest.is_left_over(mine, "u")
    assert not manifest.is_left_over({"metadata": {}}, "u")
    assert not manifest.is_left_over(mine, "v")
    assert not manifest.is_left_over(None, "u")


def test_dry_run_prints_what_kubectl_can_apply_and_needs_no_cluster(tmp_path: Path) -> None:
    file = tmp_path / "my_program.py"
    file.write_bytes(HELLO)
    runner = CliRunner(env={"KUBECONFIG": "/dev/null"})
    done = runner.invoke(apply, [str(file), "--pool", "demo", "--arg=--x", "-n", "team", "--dry-run"])
    assert done.exit_code == 0, done.output
    assert yaml.safe_load(done.stdout)["metadata"] == {"name": "my-program", "namespace": "team"}
    assert json.loads(runner.invoke(apply, [str(file), "--dry-run", "-o", "json"]).stdout)["kind"] == "Inferlet"


def test_a_name_where_a_file_is_wanted_is_told_how_it_runs() -> None:
    named = CliRunner().invoke(run_on_cluster(), ["hello"])
    assert (named.exit_code, "--inferlet hello\n" in named.output) == (exits.USAGE, True), named.output
    assert "--inferlet" not in CliRunner().invoke(run_on_cluster(), ["hello.py"]).output


def test_usage_errors_come_before_any_cluster(tmp_path: Path) -> None:
    runner = CliRunner()
    assert runner.invoke(apply, [str(tmp_path / "none.py")]).exit_code == exits.USAGE
    file = tmp_path / "p.py"
    file.write_bytes(HELLO)
    refused = runner.invoke(apply, [str(file), "--name", "No!"])
    assert refused.exit_code == exits.USAGE
    assert "InvalidArgument: --name" in refused.stderr


# ---- answers of the API server ----------------------------------------------------------------------------------


def status(message: str, *causes: dict[str, str], name: str = "x") -> bytes:
    return json.dumps({"kind": "Status", "message": message, "details": {"name": name, "causes": causes}}).encode()


CONFLICT = {"reason": "FieldManagerConflict", "message": 'conflict with "helm"', "field": ".spec.pool"}


@pytest.mark.parametrize(
    ("code", "body", "kind", "told", "exit_code"),
    [
        (401, status("Unauthorized"), errors.LoginRefused, "Unauthorized", exits.USAGE),
        (403, status("secrets is forbidden"), errors.Forbidden, "secrets is forbidden", exits.USAGE),
        (404, status('namespaces "no" not found'), errors.NotThere, 'namespaces "no" not found', exits.USAGE),
        (
            404,
            json.dumps({"message": "the server could not find the requested resource", "details": {}}).encode(),
            errors.KindUnknown,
            "tartlet.dev",
            exits.USAGE,
        ),
        (404, b"404 page not found\n", errors.KindUnknown, "tartlet crds apply", exits.USAGE),
        (409, status("Apply failed", CONFLICT), errors.FieldConflict, '.spec.pool: conflict with "helm"', exits.USAGE),
        (
            422,
            status("invalid", {"field": "spec", "message": "first"}, {"field": "spec.source", "message": "second"}),
            errors.ManifestRefused,
            "  spec: first\n  spec.source: second",
            exits.USAGE,
        ),
        (400, status("unknown field spec.pol"), errors.ManifestRefused, "unknown field spec.pol", exits.USAGE),
        (500, b"<html>bad gateway", errors.ClusterFailed, "<html>bad gateway", exits.SYSTEM),
        (429, status("too many"), errors.ClusterFailed, "too many", exits.SYSTEM),
    ],
)
def test_an_answer_becomes_a_typed_error_with_all_that_it_says(
    code: int, body: bytes, kind: type[Exception], told: str, exit_code: int
) -> None:
    error = errors.from_status(code, body, "apply inferlet x")
    assert type(error) is kind
    text = exits.describe(error)
    assert told in text
    assert text.startswith(kind.__name__ + ": ")
    assert text.endswith(error.remedy)
    assert exits.exit_code(error) == exit_code


def test_a_refusal_sends_to_who_can_help() -> None:
    def refused(group: str, kind: str, message: str = "forbidden") -> str:
        details = {"group": group, "kind": kind, "name": "x"}
        body = json.dumps({"message": message, "details": details}).encode()
        return exits.describe(errors.from_status(403, body, "do it"))

    assert "editor role" in refused("tartlet.dev", "inferlets")
    said = 'User "u" cannot {} resource "inferlets" in API group "tartlet.dev" in the namespace "prod"'
    assert "viewer role: kubectl -n prod create" in refused("tartlet.dev", "inferlets", said.format("list"))
    assert "editor role: kubectl -n prod create" in refused("tartlet.dev", "inferlets", said.format("patch"))
    assert "editor role: kubectl -n prod create" in refused("", "secrets", said.format("get"))
    kinds = refused("apiextensions.k8s.io", "customresourcedefinitions")
    assert ("cluster administrator" in kinds, "editor role" in kinds) == (True, False)


def test_every_error_of_the_cluster_tells_a_message_and_a_remedy() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and k.__module__ == errors.__name__]
    assert len(kinds) > 15
    names = "action detail server package name reason waited_s named namespace others names release pod size limit"
    fields = dict.fromkeys(names.split(), 1)
    for kind in kinds:
        error = kind(**fields)
        assert "{" not in str(error), kind
        assert "{" not in error.remedy, kind
        assert error.remedy.endswith("."), kind


# ---- releases, pods ---------------------------------------------------------------------------------------------


def service(name: str, instance: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {release.INSTANCE: instance}, **metadata}}


def test_the_only_release_is_meant_and_several_must_be_told_apart() -> None:
    one, two = service("a-runtime", "a"), service("renamed-runtime", "b")
    assert release.choose([one], "ns") == release.Release("a", "ns", "a")
    assert release.choose([one, two], "ns", "b").client_secret == "renamed-client-tls"
    with pytest.raises(errors.ReleaseAmbiguous, match="a, b"):
        release.choose([one, two], "ns")
    with pytest.raises(errors.ReleaseNotFound, match="named c in namespace ns; there are: a"):
        release.choose([one], "ns", "c")
    with pytest.raises(errors.ReleaseNotFound):
        release.choose([service("a-runtime", "a", deletionTimestamp="now")], "ns")


def pod(name: str, *, ready: bool, created: str = "2026-01-01T00:00:00Z", **more: Any) -> dict[str, Any]:
    condition = {"type": "Ready", "status": str(ready)}
    ports = [{"name": "health", "containerPort": 8080}, {"name": "grpc", "containerPort": 7444}]
    return {
        "metadata": {"name": name, "creationTimestamp": created, **more.pop("metadata", {})},
        "spec": {"containers": [{"ports": ports}]},
        "status": {"phase": "Running", "conditions": [condition], **more},
    }


def test_the_oldest_pod_that_is_ready_is_talked_to() -> None:
    it = release.Release("a", "ns", "a")
    going = pod("going", ready=True, metadata={"deletionTimestamp": "now"})
    young, old = pod("young", ready=True, created="2026-02-01T00:00:00Z"), pod("old", ready=True)
    assert release.ready_pod([going, young, old, pod("sick", ready=False)], it) == ("old", 7444)


def test_without_a_ready_pod_it_is_said_how_each_is() -> None:
    it = release.Release("a", "ns", "a")
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    pods = [pod("p", ready=False, containerStatuses=[waiting]), pod("q", ready=False)]
    with pytest.raises(errors.RuntimeNotReady) as caught:
        release.ready_pod(pods, it)
    assert "pod p is ImagePullBackOff (no such image); pod q is Running, not ready" in str(caught.value)
    assert "kubectl -n ns rollout status deploy/a-runtime" in caught.value.remedy
    with pytest.raises(errors.RuntimeNotReady, match="there is no pod"):
        release.ready_pod([], it)


def test_an_identity_is_in_private_files_for_as_long_as_it_is_used(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TARTLET_RUN_DIR", str(run_dir))
    it = release.Release("a", "ns", "a")
    data = {name: base64.b64encode(name.encode()).decode() for name in ("tls.crt", "tls.key", "ca.crt")}
    with private_files({"data": data}, it) as tls:
        assert [file.read_bytes() for file in tls.files] == [b"tls.crt", b"tls.key", b"ca.crt"]
        assert {file.stat().st_mode & 0o777 for file in tls.files} == {0o600}
        assert tls.key.parent.stat().st_mode & 0o777 == 0o700
    assert list(run_dir.iterdir()) == []
    del data["ca.crt"]
    with pytest.raises(errors.NotThere, match=r"a-client-tls has no ca\.crt"), private_files({"data": data}, it):
        pass
    assert list(run_dir.iterdir()) == []


# ---- CRDs -------------------------------------------------------------------------------------------------------


def test_the_packages_definitions_are_the_repositorys(repo: Path) -> None:
    assert crds.definitions() == [yaml.safe_load(f.read_text()) for f in sorted((repo / "crds").glob("*.yaml"))]


def test_changes_name_what_differs_and_lists_of_named_things_are_compared_by_name() -> None:
    old = {"versions": [{"name": "v1", "served": True, "x": [1]}], "scope": "a"}
    new = {"versions": [{"name": "v2"}, {"name": "v1", "served": False, "x": [2]}], "scope": "a"}
    assert crds.changes(old, new) == ["versions.v1.served", "versions.v1.x", "+versions.v2"]
    assert crds.changes(old, old) == []
    assert crds.told(["a"] * 20).splitlines()[-1] == "  and 8 more"


def test_definitions_of_a_helm_release_are_its_own() -> None:
    theirs = {"metadata": {"annotations": {crds.HELM_RELEASE: "prod", crds.HELM_NAMESPACE: "team"}}}
    with pytest.raises(errors.CrdOwned, match="belongs to Helm release prod in namespace team"):
        crds.check_owner("inferlets.tartlet.dev", theirs)
    crds.check_owner("inferlets.tartlet.dev", {"metadata": {}})
    crds.check_owner("inferlets.tartlet.dev", None)


# ---- without the extra ------------------------------------------------------------------------------------------

WITHOUT = """
import sys
sys.modules["kubernetes"] = None
from tartlet_cli.{module} import {command} as command
command(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("module", "command", "args"),
    [
        ("main", "cli", ["apply"]),
        ("main", "cli", ["run", "--kube"]),
        ("main", "cli", ["crds", "apply"]),
        ("kube.plugin", "cli", ["status"]),
        ("kube.plugin", "cli", ["logs", "x"]),
        ("kube.plugin", "cli", ["top"]),
    ],
)
def test_without_its_package_each_command_says_what_to_install(
    module: str, command: str, args: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "p.py"
    file.write_bytes(HELLO)
    more = [str(file)] if args[0] in ("apply", "run") else []
    code = WITHOUT.format(module=module, command=command)
    done = subprocess.run([sys.executable, "-c", code, *args, *more], capture_output=True, text=True, check=False)
    assert done.returncode == exits.USAGE, done.stderr
    assert "PackageMissing" in done.stderr
    assert "pip install 'tartlet[kube]'" in done.stderr
    assert "Traceback" not in done.stderr
