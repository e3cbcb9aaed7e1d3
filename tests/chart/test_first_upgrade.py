"""The Job that patches a hook's pools at the first upgrade; Helm renders it only with a cluster."""

from __future__ import annotations

import io
import json
import runpy
import shutil
import ssl
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.render import CHART, KUBERNETES, named, run

PATCHES: dict[str, Any] = {
    "a": {"spec": {"podTemplate": {"env": [{"name": "A", "value": "$$ $(B) $$(C) $"}]}}},
    "b": {"metadata": {"annotations": {"note": "x" * 150_000, "é": 'a "b" \\ \n <&> \t \x7f', "gone": None}}},
}
MOUNTED = "/etc/tartlet/patches/"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the patches that a copy of the chart renders."""
    copy = shutil.copytree(CHART, tmp_path_factory.mktemp("chart") / "chart")
    (copy / "patches.json").write_text(json.dumps(PATCHES))
    asked = 'include "tartlet.patchPools" (dict "root" . "patches" (.Files.Get "patches.json" | fromJson))'
    (copy / "templates" / "asked.yaml").write_text(f"{{{{ {asked} }}}}\n")
    done = run("template", "t", str(copy), "-n", "prod", "-s", "templates/asked.yaml", *KUBERNETES)
    assert done.returncode == 0, done.stderr
    return [o for o in yaml.safe_load_all(done.stdout) if o]


def test_the_patches_reach_the_job_as_they_are(objects: list[dict[str, Any]]) -> None:
    """Patches are in a file: in a variable the kubelet expands `$$` and `$(B)`, and some patches are too long."""
    ((name, text),) = named(objects, "ConfigMap", "t-pools")["data"].items()
    assert json.loads(text) == PATCHES
    pod = named(objects, "Job", "t-pools")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["volumes"] == [{"name": "patches", "configMap": {"name": "t-pools"}}]
    assert container["volumeMounts"] == [{"name": "patches", "mountPath": MOUNTED.rstrip("/"), "readOnly": True}]
    assert f'"{MOUNTED}{name}"' in container["args"][0]
    assert "$" not in container["args"][0], "the kubelet would look into it"
    notes = {o["kind"]: o["metadata"]["annotations"] for o in objects}
    assert notes["ConfigMap"] == notes["Role"]
    assert int(notes["ConfigMap"]["helm.sh/hook-weight"]) < int(notes["Job"]["helm.sh/hook-weight"])


@pytest.mark.parametrize("code", [400, 404, 422])
def test_what_the_api_server_refuses_for_good_is_tried_once(
    objects: list[dict[str, Any]],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = named(objects, "Job", "t-pools")["spec"]
    script = job["template"]["spec"]["containers"][0]["args"][0]
    (tmp_path / "patches.json").write_text(named(objects, "ConfigMap", "t-pools")["data"]["patches.json"])
    (tmp_path / "token").write_text("token")
    (tmp_path / "script.py").write_text(script.replace(MOUNTED, f"{tmp_path}/").replace(ACCOUNT, str(tmp_path)))
    asked = []

    def refuse(request: urllib.request.Request, **_: object) -> None:
        asked.append((request.method, request.full_url))
        raise urllib.error.HTTPError(request.full_url, code, "no", Message(), io.BytesIO(b"model.name: is immutable"))

    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: None)
    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(tmp_path / "script.py"))
    assert asked == [("PATCH", "https://[::1]:443/apis/tartlet.dev/v1alpha1/namespaces/prod/enginepools/a")]
    assert "pool a: HTTP Error" in (said := capsys.readouterr().out)
    assert "model.name: is immutable" in said
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule == {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [ended.value.code]}}
    assert ended.value.code not in {0, 1, 2}, "Python's own"
