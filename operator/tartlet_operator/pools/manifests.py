"""The objects that an EnginePool becomes: a Deployment with one engine in each pod, and a PodDisruptionBudget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tartlet_operator.api.common import quantity
from tartlet_operator.api.engine_pool import EnginePoolSpec
from tartlet_operator.api.identity import ENGINE_ID, TLS_DIR, TLS_VOLUME, is_operators, leaves_identity
from tartlet_operator.api.meta import Meta, owner, pool_labels, pool_selector
from tartlet_operator.api.pool_model import EnvVar, ModelInit
from tartlet_operator.machinery.worker_defaults import WorkerDefaults
from tartlet_operator.pools import model_parts
from tartlet_operator.pools.model_parts import MODELS_DIR

SCRATCH_DIR: Final = "/tmp"  # noqa: S108 - an emptyDir of the pod's own
ADAPTERS_DIR: Final = "/etc/tartlet/adapters"
"""Where the engine's container has the list of adapters, as a directory: the kubelet follows changes of no file."""
ADAPTERS_KEY: Final = "list"
_ADAPTERS_VOLUME: Final = "adapter-list"
HEALTH_PORT: Final = 8080
GROUP: Final = 10001
"""The group of our image's user. Without it the kubelet would use root's."""
END_MARGIN_S: Final = 15
"""Time between the end of a drain's grace and the kubelet's SIGKILL."""
_PROBE_PERIOD_S: Final = 2
_ROLLOUTS: Final = {
    "surge": {"maxSurge": 1, "maxUnavailable": 0},
    "replace": {"maxSurge": 0, "maxUnavailable": 1},
}


def deployment(spec: EnginePoolSpec, meta: Meta, defaults: WorkerDefaults) -> dict[str, Any]:
    """Return the pool's Deployment.

    With `rollout: surge` a new pod is ready before an old one goes, with `replace` an old one goes first. An old pod
    drains: it gets SIGTERM, then at most the grace, so a rollout ends no program that is shorter than the grace.
    """
    template = spec.pod_template
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "labels": pool_labels(meta.name),
            "ownerReferences": [owner("EnginePool", meta)],
        },
        "spec": {
            "replicas": spec.replicas,
            "paused": False,
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": spec.start_deadline_seconds + 60,
            "selector": {"matchLabels": pool_selector(meta.name)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": _ROLLOUTS[spec.rollout]},
            "template": {
                "metadata": {
                    "labels": {**template.labels, **pool_labels(meta.name)},
                    "annotations": dict(template.annotations),
                },
                "spec": _pod_spec(spec, meta, defaults),
            },
        },
    }


def disruption_budget(spec: EnginePoolSpec, meta: Meta) -> dict[str, Any]:
    """Return the pool's PodDisruptionBudget.

    It always lets one pod go, and every broken one, so that nodes can be drained.
    """
    budget: dict[str, Any] = {"maxUnavailable": 1}
    if spec.min_available is not None:
        budget = {"minAvailable": min(spec.min_available, max(spec.replicas - 1, 0))}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "labels": pool_labels(meta.name),
            "ownerReferences": [owner("EnginePool", meta)],
        },
        "spec": {
            **budget,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": pool_selector(meta.name)},
        },
    }


def adapter_list(spec: EnginePoolSpec, meta: Meta) -> dict[str, Any] | None:
    """Return the ConfigMap with the list of adapters, which the engines of a pool follow; None: it names no list."""
    if spec.model.adapters is None:
        return None
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": _adapters_map(meta.name),
            "namespace": meta.namespace,
            "labels": pool_labels(meta.name),
            "ownerReferences": [owner("EnginePool", meta)],
        },
        "data": {ADAPTERS_KEY: model_parts.adapter_lines(spec.model)},
    }


def _adapters_map(pool: str) -> str:
    return f"{pool}-adapters"


def _pod_spec(spec: EnginePoolSpec, meta: Meta, defaults: WorkerDefaults) -> dict[str, Any]:
    template = spec.pod_template
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # variables of a Service would be read as settings
        "terminationGracePeriodSeconds": spec.drain.grace_seconds + END_MARGIN_S,
        "securityContext": {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
            **_file_group(spec),
        },
        "containers": [_container(spec, meta, defaults)],
        "volumes": _replaced(
            _volumes(spec, meta, defaults), (v for v in template.volumes if v.get("name") != TLS_VOLUME), "name"
        ),
    }
    if spec.model.init is not None:
        pod["initContainers"] = [_init_container(spec, spec.model.init, defaults)]
    spread = [
        {"labelSelector": {"matchLabels": pool_selector(meta.name)}, **c} for c in spec.topology_spread_constraints
    ]
    claims = spec.resource_claims
    pull_secrets = dict.fromkeys((*defaults.pull_secrets, *template.image_pull_secrets))
    return pod | _present(
        {
            "nodeSelector": dict(spec.node_selector),
            "tolerations": list(spec.tolerations),
            "topologySpreadConstraints": spread,
            "serviceAccountName": template.service_account_name or defaults.service_account,
            "priorityClassName": template.priority_class_name,
            "runtimeClassName": template.runtime_class_name,
            "imagePullSecrets": [{"name": name} for name in pull_secrets],
            "affinity": template.affinity,
            "resourceClaims": [c.model_dump(by_alias=True, exclude_none=True, exclude={"request"}) for c in claims],
        }
    )


def _file_group(spec: EnginePoolSpec) -> dict[str, Any]:
    """Return the group of the volumes' files, which is ours by default where an engine writes to a shared volume."""
    group = spec.pod_template.fs_group or (GROUP if model_parts.shared(spec.model) else None)
    return {"fsGroup": group, "fsGroupChangePolicy": "OnRootMismatch"} if group is not None else {}


def _init_container(spec: EnginePoolSpec, init: ModelInit, defaults: WorkerDefaults) -> dict[str, Any]:
    """Return the container that fetches the model. It may be anybody's image, so it gets none of our settings."""
    mounts = [{"name": "models", "mountPath": MODELS_DIR}, {"name": "scratch", "mountPath": SCRATCH_DIR}]
    return {
        "name": "model",
        "image": init.image or spec.image or defaults.image,
        "imagePullPolicy": spec.image_pull_policy or defaults.pull_policy,
        "command": model_parts.init_command(spec.model, init),
        "env": _replaced(
            [{"name": "HOME", "value": SCRATCH_DIR}], model_parts.init_environment(spec.model, init), "name"
        ),
        # a quota may require them; they cost nothing, a pod needs the larger of its init container's and container's
        "resources": _present({k: _plain(v) for k, v in _resources(spec).items()}),
        "securityContext": _restricted(),
        "volumeMounts": _replaced(mounts, filter(leaves_identity, init.volume_mounts), "mountPath"),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _container(spec: EnginePoolSpec, meta: Meta, defaults: WorkerDefaults) -> dict[str, Any]:
    template = spec.pod_template
    return {
        "name": "worker",
        "image": spec.image or defaults.image,
        "imagePullPolicy": spec.image_pull_policy or defaults.pull_policy,
        "command": ["tartlet", "serve", "--role", "worker"],
        "env": _replaced(
            environment(spec, meta, defaults), _env(e for e in template.env if not is_operators(e.name)), "name"
        ),
        "ports": [{"name": "health", "containerPort": HEALTH_PORT, "protocol": "TCP"}],
        "resources": _present({**_with_host_pages(spec), "claims": _claims(spec)}),
        "securityContext": {**_restricted(), "runAsGroup": GROUP},
        "volumeMounts": _replaced(
            _mounts(spec, defaults), filter(leaves_identity, template.volume_mounts), "mountPath"
        ),
        # loading is no failure before the deadline; later a stalled loop restarts the container, and an engine that
        # lost control is only taken out of service
        "startupProbe": {
            **_probe("/readyz"),
            "failureThreshold": -(-spec.start_deadline_seconds // _PROBE_PERIOD_S),
        },
        "livenessProbe": {**_probe("/livez"), "periodSeconds": 10, "failureThreshold": 3},
        "readinessProbe": {**_probe("/readyz"), "failureThreshold": 1},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def environment(spec: EnginePoolSpec, meta: Meta, defaults: WorkerDefaults) -> list[dict[str, Any]]:
    """Return the worker's settings as environment variables."""
    engine = spec.engine
    values: dict[str, object] = {
        "CONTROL": defaults.control,
        "POOL": f"{meta.namespace}/{meta.name}",
        "ENGINE": engine.backend.lower(),
        "MODEL_NAME": spec.model.name,
        "DEVICE": engine.device,
        "DTYPE": engine.dtype,
        "PAGE_SIZE": engine.page_size,
        "KV_MEMORY_BYTES": engine.kv_memory if engine.kv_memory == "auto" else int(quantity(engine.kv_memory)),
        "NUM_EMBEDS": engine.num_embeds,
        "NUM_SLOTS": engine.num_slots,
        "MAX_BATCH_TOKENS": engine.max_batch_tokens,
        "MAX_BATCH_COMMANDS": engine.max_batch_commands,
        "THREADS": engine.threads,
        "BATCH_INVARIANT": str(engine.batch_invariant).lower(),
        "DRAIN_GRACE_S": spec.drain.grace_seconds,
        "HEALTH_ADDRESS": f"0.0.0.0:{HEALTH_PORT}",
        "LOG_FORMAT": defaults.log_format,
        "LOG_LEVEL": defaults.log_level,
    }
    # Only if they are set: other variables would restart each pool at an upgrade.
    if host_kv_bytes := _host_kv_bytes(spec):
        values["HOST_KV_BYTES"] = host_kv_bytes
    values |= {
        name: value for name, value in (("ATTENTION", engine.attention), ("GRAPHS", engine.graphs)) if value != "auto"
    }
    if spec.model.adapters is not None:
        values["ADAPTERS_FILE"] = f"{ADAPTERS_DIR}/{ADAPTERS_KEY}"
    if engine.backend == "Torch":
        values["MODEL"] = model_parts.directory(spec.model)
    if defaults.tls_secret:
        values["TLS_CERTIFICATE"] = f"{TLS_DIR}/tls.crt"
        values["TLS_KEY"] = f"{TLS_DIR}/tls.key"
        values["TLS_AUTHORITY"] = f"{TLS_DIR}/ca.crt"
        values["TLS_DOMAIN"] = defaults.tls_domain
    out: list[dict[str, Any]] = [{"name": f"TARTLET_WORKER_{k}", "value": str(v)} for k, v in values.items()]
    out.append(
        {
            "name": ENGINE_ID,
            "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}},
        }
    )
    out.append({"name": "OMP_NUM_THREADS", "value": str(engine.threads)})
    out.append({"name": "TARTLET_RUN_DIR", "value": f"{SCRATCH_DIR}/run"})
    out.append({"name": "TARTLET_CACHE_DIR", "value": f"{SCRATCH_DIR}/cache"})
    out.append({"name": "HOME", "value": SCRATCH_DIR})
    if defaults.otlp_endpoint:
        out.append({"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": defaults.otlp_endpoint})
    return out


def _resources(spec: EnginePoolSpec) -> dict[str, dict[str, Any]]:
    return {"requests": dict(spec.resources.requests), "limits": dict(spec.resources.limits)}


def _with_host_pages(spec: EnginePoolSpec) -> dict[str, dict[str, Any]]:
    """Return the resources of the engine's container: what the pool names, and the memory of pages on the host.

    Memory that the pool doesn't name stays unnamed.
    """
    more = _host_kv_bytes(spec)
    return {
        kind: {
            name: str(math.ceil(quantity(amount)) + more) if more and name == "memory" else amount
            for name, amount in amounts.items()
        }
        for kind, amounts in _resources(spec).items()
    }


def _host_kv_bytes(spec: EnginePoolSpec) -> int:
    return int(quantity(spec.engine.host_kv_memory))


def _claims(spec: EnginePoolSpec) -> list[dict[str, str]]:
    """Return the claims whose devices the engine's container uses."""
    return [{"name": c.name} | ({"request": c.request} if c.request else {}) for c in spec.resource_claims]


def _plain(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resources without extended ones, such as GPUs."""
    return {name: amount for name, amount in resources.items() if "/" not in name}


def _env(variables: Iterable[EnvVar]) -> list[dict[str, Any]]:
    return [e.dump() for e in variables]


def _volumes(spec: EnginePoolSpec, meta: Meta, defaults: WorkerDefaults) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [{"name": "scratch", "emptyDir": {}}]
    models = model_parts.volume(spec.model)
    if models is not None:
        volumes.append(models)
    if spec.model.adapters is not None:  # named alike whatever it holds, so that a change makes no other pods
        volumes.append({"name": _ADAPTERS_VOLUME, "configMap": {"name": _adapters_map(meta.name)}})
    if defaults.tls_secret:
        volumes.append({"name": TLS_VOLUME, "secret": {"secretName": defaults.tls_secret, "defaultMode": 0o444}})
    return volumes


def _mounts(spec: EnginePoolSpec, defaults: WorkerDefaults) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [{"name": "scratch", "mountPath": SCRATCH_DIR}]
    if model_parts.volume(spec.model) is not None:
        mounts.append({"name": "models", "mountPath": MODELS_DIR, "readOnly": True})
    if spec.model.adapters is not None:
        mounts.append({"name": _ADAPTERS_VOLUME, "mountPath": ADAPTERS_DIR, "readOnly": True})
    if defaults.tls_secret:
        mounts.append({"name": TLS_VOLUME, "mountPath": TLS_DIR, "readOnly": True})
    return mounts


def _probe(path: str) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "health"},
        "periodSeconds": _PROBE_PERIOD_S,
        "timeoutSeconds": 2,
    }


def _restricted() -> dict[str, Any]:
    """Return the security context that the restricted standard asks of a container, with a read-only root."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _replaced(ours: Iterable[Mapping[str, Any]], theirs: Iterable[Mapping[str, Any]], key: str) -> list[dict[str, Any]]:
    """Return both lists as one. Of two entries with the same key the user's stays, in the operator's place."""
    out = {str(entry[key]): dict(entry) for entry in ours}
    for entry in theirs:
        out[str(entry.get(key, ""))] = dict(entry)
    return list(out.values())


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object without empty fields."""
    return {k: v for k, v in values.items() if v}
