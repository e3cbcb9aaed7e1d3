"""The Deployment and PodDisruptionBudget that an EnginePool becomes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tartlet_common.config.lists import Listing, adapters_listed
from tartlet_common.config.load import load
from tartlet_common.config.settings import OperatorSettings, WorkerSettings
from tartlet_operator.api import EnginePool
from tartlet_operator.api.common import quantity
from tartlet_operator.api.identity import ENGINE_ID
from tartlet_operator.machinery.worker_defaults import WorkerDefaults
from tartlet_operator.pools.manifests import END_MARGIN_S, adapter_list, deployment, disruption_budget
from tartlet_operator.pools.subset import covers, leftover
from tests.operator.objects import META, pool

DEFAULTS = WorkerDefaults(
    image="w:1", pull_policy="IfNotPresent", control="c:7443", tls_secret="tls", log_format="text"
)

CLAIMED: dict[str, Any] = {"name": "m", "volumeClaim": {"claimName": "c"}}
SHARED: dict[str, Any] = {**CLAIMED, "path": "qwen", "init": {"command": ["get", "$(MODEL_DIR)"]}}


def pod(p: EnginePool) -> dict[str, Any]:
    out: dict[str, Any] = deployment(p.spec, META, DEFAULTS)["spec"]["template"]["spec"]
    return out


def settings_of(p: EnginePool) -> WorkerSettings:
    """Return the settings that the worker in the pod would read."""
    env = {e["name"]: e.get("value", "pod-0") for e in pod(p)["containers"][0]["env"]}
    return load(WorkerSettings, "worker", env=env).settings


def test_every_engine_field_reaches_the_worker() -> None:
    engine = {
        "device": "cuda:1",
        "dtype": "float32",
        "pageSize": 8,
        "kvMemory": "2Gi",
        "hostKvMemory": "3Gi",
        "numEmbeds": 100,
        "numSlots": 200,
        "maxBatchTokens": 300,
        "maxBatchCommands": 40,
        "threads": 5,
        "batchInvariant": True,
        "attention": "triton",
        "graphs": "off",
    }
    model = {"name": "m", "path": "a/b", "volumeClaim": {"claimName": "models"}}
    p = EnginePool.model_validate({"spec": {"model": model, "engine": engine, "drain": {"graceSeconds": 77}}})
    s = settings_of(p)
    assert (s.engine, s.model_name, str(s.model)) == ("torch", "m", "/models/a/b")
    assert (s.device, s.dtype, s.page_size, s.kv_memory_bytes) == ("cuda:1", "float32", 8, 2 << 30)
    assert (s.host_kv_bytes, s.attention, s.graphs) == (3 << 30, "triton", "off")
    assert (s.num_embeds, s.num_slots, s.max_batch_tokens, s.max_batch_commands) == (100, 200, 300, 40)
    assert (s.threads, s.batch_invariant, s.drain_grace_s) == (5, True, 77)
    assert (s.control, s.engine_id, str(s.tls_certificate)) == ("c:7443", "pod-0", "/etc/tartlet/tls/tls.crt")


def test_the_list_of_adapters_is_a_file_that_changes_without_other_pods() -> None:
    adapters = [{"name": "polite", "path": "demo/adapters/polite"}, {"name": "b", "path": "b"}]
    fetched = {"name": "m", "path": "demo", "init": {"image": "i", "command": ["cp", "$(MODEL_DIR)"]}}
    claimed = {**fetched, "init": {"command": ["cp", "$(MODEL_DIR)"]}, "volumeClaim": {"claimName": "c"}}
    for model in (fetched, claimed):
        some, none = (pool(model={**model, "adapters": listed}) for listed in (adapters, []))
        never = pool(model=model)
        s = settings_of(some)
        assert s.model is not None
        assert s.adapters_file is not None
        root, made = s.model.parent, pod(some)
        [mount] = [m for m in made["containers"][0]["volumeMounts"] if m["mountPath"] == str(s.adapters_file.parent)]
        [volume] = [v for v in made["volumes"] if v["name"] == mount["name"]]
        lists = [adapter_list(p.spec, META) for p in (some, none)]
        assert [x["metadata"]["name"] for x in lists if x is not None] == [volume["configMap"]["name"]] * 2
        files = [x["data"][s.adapters_file.name] for x in lists if x is not None]
        assert [adapters_listed(text, Path("/")) for text in files] == [
            Listing({"polite": root / "demo/adapters/polite", "b": root / "b"}, {}),
            Listing({}, {}),
        ]
        assert pod(some) == pod(none) != pod(never)
        assert adapter_list(never.spec, META) is None
        assert settings_of(never).adapters_file is None


def test_a_fake_engine_has_no_model_to_load() -> None:
    p = pool(engine={"backend": "Fake"})
    assert settings_of(p).engine == "fake"
    assert settings_of(p).model is None
    assert "models" not in {v["name"] for v in pod(p)["volumes"]}


def test_pods_meet_the_restricted_standard() -> None:
    p = pool(model={"name": "m", "init": {"image": "i", "command": ["cp"]}})
    spec = pod(p)
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["automountServiceAccountToken"] is False
    for container in (*spec["containers"], *spec["initContainers"]):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert all("hostPath" not in v for v in spec["volumes"])


def test_the_init_step_has_its_own_environment_and_mounts() -> None:
    token = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    source = {"name": "source", "mountPath": "/source", "readOnly": True}
    init = {"image": "i", "command": ["cp"], "env": [token], "volumeMounts": [source]}
    spec = pod(pool(model={"name": "m", "init": init}, podTemplate={"env": [{"name": "ENGINES", "value": "1"}]}))
    (made,) = spec["initContainers"]
    assert made["env"] == [{"name": "HOME", "value": "/tmp"}, {"name": "MODEL_DIR", "value": "/models"}, token]
    assert {m["mountPath"]: m["name"] for m in made["volumeMounts"]} == {
        "/models": "models",
        "/tmp": "scratch",
        "/source": "source",
    }
    assert source not in spec["containers"][0]["volumeMounts"]
    assert made["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_the_init_step_has_the_resources_that_a_quota_asks_for_and_no_gpu() -> None:
    init = {"image": "i", "command": ["cp"]}
    limits = {"cpu": 2, "memory": "4Gi", "nvidia.com/gpu": 1}
    resources = {"requests": {"cpu": 1, "memory": "2Gi"}, "limits": limits}
    spec = pod(pool(model={"name": "m", "init": init}, resources=resources))
    assert spec["initContainers"][0]["resources"] == {**resources, "limits": {"cpu": 2, "memory": "4Gi"}}
    assert spec["containers"][0]["resources"] == resources
    gpu = pool(model={"name": "m", "init": init}, resources={"limits": {"nvidia.com/gpu": 1}})
    assert pod(gpu)["initContainers"][0]["resources"] == {}


def test_pages_on_the_host_are_counted_in_the_memory_that_a_pool_names() -> None:
    resources: dict[str, Any] = {"requests": {"cpu": 1, "memory": "2Gi"}, "limits": {"nvidia.com/gpu": 1}}
    model = {"name": "m", "init": {"image": "i", "command": ["cp"]}}
    spec = pod(pool(model=model, engine={"hostKvMemory": "1.5Gi"}, resources=resources))
    assert spec["containers"][0]["resources"] == {
        "requests": {"cpu": 1, "memory": str(7 << 29)},
        "limits": {"nvidia.com/gpu": 1},
    }
    assert spec["initContainers"][0]["resources"] == {"requests": resources["requests"]}
    limited = pod(pool(model=model, engine={"hostKvMemory": "1Gi"}, resources={"limits": {"memory": 2**30}}))
    assert limited["containers"][0]["resources"] == {"limits": {"memory": str(2 << 30)}}
    without = pod(pool(model=model, resources=resources))["containers"][0]
    assert without["resources"] == resources
    unset = {f"TARTLET_WORKER_{name}" for name in ("HOST_KV_BYTES", "ATTENTION", "GRAPHS")}
    assert not unset & {e["name"] for e in without["env"]}


def test_a_rollout_adds_before_it_removes_and_leaves_time_to_drain() -> None:
    made = deployment(pool(drain={"graceSeconds": 90}).spec, META, DEFAULTS)
    assert made["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 90 + END_MARGIN_S


@pytest.mark.parametrize(("rollout", "surge", "gone"), [("surge", 1, 0), ("replace", 0, 1)])
def test_a_pool_without_a_spare_gpu_lets_an_engine_go_first(rollout: str, surge: int, gone: int) -> None:
    made = deployment(pool(rollout=rollout).spec, META, DEFAULTS)
    assert made["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": surge, "maxUnavailable": gone},
    }


def test_the_worker_measures_its_kv_memory_where_the_pool_says_auto() -> None:
    assert settings_of(pool(engine={"kvMemory": "auto"})).kv_memory_bytes == "auto"


def test_files_of_volumes_get_a_group_where_one_is_named_or_the_engines_write_together() -> None:
    assert "fsGroup" not in pod(pool(model=CLAIMED))["securityContext"]
    named = pod(pool(model=CLAIMED, podTemplate={"fsGroup": 2000}))["securityContext"]
    assert (named["fsGroup"], named["fsGroupChangePolicy"]) == (2000, "OnRootMismatch")
    assert pod(pool(model=SHARED))["securityContext"]["fsGroup"] == 10001


def test_engines_that_share_a_claim_download_into_it_once() -> None:
    p = pool(model=SHARED, image="engine:2")
    spec = pod(p)
    (init,), (engine,) = spec["initContainers"], spec["containers"]
    (models,) = [v for v in spec["volumes"] if v["name"] == "models"]
    assert models == {"name": "models", "persistentVolumeClaim": {"claimName": "c"}}
    assert next(m for m in engine["volumeMounts"] if m["name"] == "models")["readOnly"]
    assert (init["image"], init["command"][:3]) == ("engine:2", ["python3", "-m", "tartlet_worker.fetch"])
    assert init["command"][-3:] == ["--", "get", "$(MODEL_DIR)"]
    into = next(word for word in init["command"] if word.startswith("--into="))[7:]
    environment = {e["name"]: e["value"] for e in init["env"]}
    assert environment["MODEL_DIR"] == f"{into}.partial/qwen"
    assert str(settings_of(p).model) == f"{into}/qwen"


def test_another_download_never_meets_the_files_of_the_one_before() -> None:
    def engine_reads(**init: Any) -> str:
        return str(settings_of(pool(model={**SHARED, "init": {**SHARED["init"], **init}})).model)

    changed = {"command": ["get", "-r", "2", "$(MODEL_DIR)"]}, {"env": [{"name": "REVISION", "value": "2"}]}
    assert len({engine_reads(), *(engine_reads(**each) for each in changed)}) == 3
    assert engine_reads() == engine_reads(sizeLimit="1Gi")


def test_a_model_in_an_image_and_devices_of_a_driver_reach_the_pod() -> None:
    claims = [
        {"name": "gpu", "resourceClaimTemplateName": "h100", "request": "one"},
        {"name": "fabric", "resourceClaimName": "shared"},
    ]
    model = {"name": "m", "path": "qwen", "image": {"reference": "models:qwen", "pullPolicy": "Always"}}
    p = pool(model=model, resourceClaims=claims, resources={"limits": {"memory": "1Gi"}})
    spec = pod(p)
    assert {"name": "models", "image": {"reference": "models:qwen", "pullPolicy": "Always"}} in spec["volumes"]
    assert str(settings_of(p).model) == "/models/qwen"
    assert spec["resourceClaims"] == [
        {"name": "gpu", "resourceClaimTemplateName": "h100"},
        {"name": "fabric", "resourceClaimName": "shared"},
    ]
    assert spec["containers"][0]["resources"] == {
        "limits": {"memory": "1Gi"},
        "claims": [{"name": "gpu", "request": "one"}, {"name": "fabric"}],
    }


def test_loading_may_take_its_deadline_but_a_stalled_loop_restarts() -> None:
    container = pod(pool(startDeadlineSeconds=300))["containers"][0]
    start, live, ready = (container[f"{k}Probe"] for k in ("startup", "liveness", "readiness"))
    assert start["failureThreshold"] * start["periodSeconds"] == 300
    assert (start["httpGet"]["path"], live["httpGet"]["path"]) == ("/readyz", "/livez")
    assert ready["httpGet"]["path"] == "/readyz"


def test_overrides_replace_by_name_and_keep_the_selector() -> None:
    template = {
        "labels": {"tartlet.dev/pool": "stolen", "team": "x"},
        "annotations": {"a": "b"},
        "env": [
            {"name": "OMP_NUM_THREADS", "value": "9"},
            {"name": "MINE", "value": "1"},
        ],
        "volumes": [{"name": "scratch", "emptyDir": {"medium": "Memory"}}, {"name": "site", "emptyDir": {}}],
        "volumeMounts": [{"name": "site", "mountPath": "/opt/site"}],
        "serviceAccountName": "sa",
        "priorityClassName": "high",
        "runtimeClassName": "gvisor",
        "imagePullSecrets": ["s"],
        "affinity": {"nodeAffinity": {}},
    }
    made = deployment(pool(podTemplate=template).spec, META, DEFAULTS)
    labels = made["spec"]["template"]["metadata"]["labels"]
    assert labels["tartlet.dev/pool"] == "p"
    assert labels["team"] == "x"
    assert made["spec"]["selector"]["matchLabels"].items() <= labels.items()
    spec = made["spec"]["template"]["spec"]
    env = {e["name"]: e.get("value") for e in spec["containers"][0]["env"]}
    assert (env["OMP_NUM_THREADS"], env["MINE"], env[ENGINE_ID]) == ("9", "1", None)
    volumes = {v["name"]: v for v in spec["volumes"]}
    assert volumes["scratch"] == {"name": "scratch", "emptyDir": {"medium": "Memory"}}
    assert {"name": "site", "mountPath": "/opt/site"} in spec["containers"][0]["volumeMounts"]
    assert (spec["serviceAccountName"], spec["priorityClassName"]) == ("sa", "high")
    assert (spec["runtimeClassName"], spec["imagePullSecrets"]) == ("gvisor", [{"name": "s"}])
    assert spec["affinity"] == {"nodeAffinity": {}}
    assert made["spec"]["template"]["metadata"]["annotations"] == {"a": "b"}


def test_nothing_in_a_pool_changes_its_engines_identity() -> None:
    """As in an object that an API server took before the CRD had these rules."""
    key = {"name": "tls", "secret": {"secretName": "anothers"}}
    over = [
        {"name": "mine", "mountPath": path} for path in ("/etc/tartlet/tls", "/etc//tartlet/", "/etc/tartlet/tls/a")
    ]
    template = {
        "env": [{"name": name, "value": "a/demo"} for name in ("TARTLET_WORKER_POOL", ENGINE_ID, "TARTLET_RUN_DIR")],
        "volumes": [key, {"name": "mine", "emptyDir": {}}],
        "volumeMounts": [{"name": "tls", "mountPath": "/copy"}, *over],
    }
    leak = {"image": "x", "command": ["y"], "volumeMounts": [{"name": "tls", "mountPath": "/key"}]}
    defaults = replace(DEFAULTS, tls_secret="tartlet-worker-tls", tls_domain="r.ns.tartlet.internal")
    spec = {"model": {"name": "m", "init": leak}, "engine": {}}
    made = deployment(pool(**spec, podTemplate=template).spec, META, defaults)["spec"]["template"]["spec"]
    worker, init = made["containers"][0], made["initContainers"][0]
    env = {e["name"]: e.get("value") for e in worker["env"]}
    assert env["TARTLET_WORKER_POOL"] == f"{META.namespace}/{META.name}"
    assert env["TARTLET_WORKER_TLS_DOMAIN"] == "r.ns.tartlet.internal"
    assert (env[ENGINE_ID], env["TARTLET_RUN_DIR"]) == (None, "/tmp/run")
    assert [v["secret"]["secretName"] for v in made["volumes"] if "secret" in v] == ["tartlet-worker-tls"]
    assert [m["mountPath"] for m in worker["volumeMounts"] if m["name"] in ("tls", "mine")] == ["/etc/tartlet/tls"]
    assert "tls" not in [m["name"] for m in init["volumeMounts"]]


def test_engines_use_the_operators_settings_unless_their_pool_overrides_them() -> None:
    told = WorkerDefaults.of(
        OperatorSettings(
            log_level="warning", worker_pull_secrets=" mine,,site", worker_otlp_endpoint="http://otlp:4317"
        )
    )

    def made(**template: object) -> tuple[dict[str, Any], list[dict[str, str]]]:
        spec = deployment(pool(podTemplate=template).spec, META, told)["spec"]["template"]["spec"]
        return {e["name"]: e.get("value") for e in spec["containers"][0]["env"]}, spec["imagePullSecrets"]

    env, secrets = made(imagePullSecrets=["own", "mine"])
    assert (env["TARTLET_WORKER_LOG_LEVEL"], env["OTEL_EXPORTER_OTLP_ENDPOINT"]) == ("warning", "http://otlp:4317")
    assert secrets == [{"name": "mine"}, {"name": "site"}, {"name": "own"}]
    own = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://own:4317"}
    env, _ = made(env=[{"name": name, "value": value} for name, value in own.items()])
    assert own.items() <= env.items()
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" not in {e["name"] for e in pod(pool())["containers"][0]["env"]}


def test_the_gpu_example_asks_for_its_gpu_and_is_spread(repo: Path) -> None:
    p = EnginePool.model_validate(yaml.safe_load((repo / "docs/examples/enginepool-gpu.yaml").read_text()))
    spec = pod(p)
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert spec["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert spec["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]["tartlet.dev/pool"] == "p"
    assert spec["initContainers"][0]["command"] == ["cp", "-r", "/checkpoint", "/models/llama"]


def test_the_pools_image_wins_over_the_operators() -> None:
    assert pod(pool())["containers"][0]["image"] == "w:1"
    own = pod(pool(image="mine:2", imagePullPolicy="Always"))["containers"][0]
    assert (own["image"], own["imagePullPolicy"]) == ("mine:2", "Always")


@given(st.integers(0, 50), st.none() | st.integers(0, 60))
def test_a_budget_always_lets_one_pod_and_every_broken_pod_go(replicas: int, minimum: int | None) -> None:
    budget = disruption_budget(pool(replicas=replicas, minAvailable=minimum).spec, META)["spec"]
    allowed = budget["maxUnavailable"] if "maxUnavailable" in budget else replicas - budget["minAvailable"]
    assert allowed >= min(1, replicas)
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=1), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=2), JSON))
def test_an_object_covers_itself_and_whatever_the_server_added(value: dict[str, Any]) -> None:
    assert covers(value, value)
    assert covers({**value, "added": {"by": "server"}}, value)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=2), st.integers(1, 9), min_size=1))
def test_an_object_does_not_cover_what_it_lacks(value: dict[str, int]) -> None:
    key = next(iter(value))
    assert not covers({k: v for k, v in value.items() if k != key}, value)
    assert not covers({**value, key: value[key] + 1}, value)


def test_quantities_are_compared_by_worth() -> None:
    assert covers({"limits": {"cpu": "1", "memory": "1Gi"}}, {"limits": {"cpu": "1000m", "memory": "1024Mi"}})
    assert not covers({"limits": {"cpu": "2"}}, {"limits": {"cpu": "1000m"}})
    assert not covers({"limits": {"cpu": "1", "memory": "1Gi"}}, {"limits": {"cpu": "1"}})


@pytest.mark.parametrize("text", ["x", "1 Gi", "", "Gi"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        quantity(text)


def test_what_the_server_keeps_whole_must_be_the_same() -> None:
    assert not covers({"nodeSelector": {"a": "b", "c": "d"}}, {"nodeSelector": {"a": "b"}})
    assert not covers({"tolerations": [{"key": "a", "effect": "NoSchedule"}]}, {"tolerations": [{"key": "a"}]})
    assert covers({}, {"nodeSelector": {}, "tolerations": []})
    assert covers({"emptyDir": {"sizeLimit": "1Gi"}}, {"emptyDir": {"sizeLimit": "1024Mi"}})


def test_what_was_applied_and_is_not_wanted_any_more_is_found() -> None:
    fields: dict[str, Any] = {
        "f:spec": {"f:env": {'k:{"name":"A"}': {".": {}, "f:name": {}}}, "f:priorityClassName": {}}
    }

    def live(**by: str) -> dict[str, Any]:
        return {"metadata": {"managedFields": [{"manager": "me", "operation": "Apply", "fieldsV1": fields} | by]}}

    wanted = {"spec": {"env": [{"name": "A"}], "priorityClassName": "high"}}
    assert not leftover(live(), wanted, "me")
    for less in ({"spec": {"env": [{"name": "A"}]}}, {"spec": {**wanted["spec"], "env": [{"name": "B"}]}}, {}):
        assert leftover(live(), less, "me")
        assert not leftover(live(), less, "somebody-else")
        assert not leftover(live(operation="Update"), less, "me")
        assert not leftover(live(subresource="status"), less, "me")
