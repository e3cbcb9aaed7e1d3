"""Runs go on while their release is drained, rolled and upgraded: none fails, none starts over."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.artifacts.images import NEXT_VERSION, Image
from e2e.cluster.kube import Kube, Object, step, until
from e2e.cluster.layout import ROOT
from e2e.cluster.network.flows import journals_must_not_pass, journals_pass
from e2e.cluster.network.netpol import Pod
from e2e.cluster.provider import Cluster, Own
from e2e.tests.conftest import CHART, MARK, RELEASE, chart_values, install, make_namespace, pool
from e2e.tests.programs.test_answers import run
from e2e.tests.security.test_safety import live_policies, namespaces
from e2e.tests.support import tool
from e2e.tests.support.story import TERMINAL, inferlet, of, phases
from e2e.tests.support.tool import Heard
from e2e.tests.support.traffic import Traffic
from e2e.tests.support.upkeep import evict, until_whole

NAMESPACE = "e2e-upkeep"
POOL = "kept"
RUNS = 50
VARIANTS = 10
"""So many programs differ; runs of the same variant have the same result."""
ROUNDS = 26
STEP_ROUNDS = 2
"""So many more rounds of each program may end in each step of the test."""
REDIS_USER = 999
COMPONENT = "app.kubernetes.io/component"
SMALL: Object = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "2Gi"}}


def values(redis: str) -> dict[str, Any]:
    """Returns values of a release whose programs outlive their runtime's pod."""
    own = {"image": redis} if redis else {}
    journals = {"store": "redis", "redis": {**own, "storage": "1Gi", "resources": SMALL, "runAsUser": REDIS_USER}}
    two = {"resources": SMALL, "replicas": 2}
    lease = {**own, "resources": SMALL, "runAsUser": REDIS_USER}
    return {"journals": journals, "redis": lease, "control": two, "runtime": two, "operator": two}


@pytest.fixture(scope="module")
def redis(cluster: Cluster) -> str:
    """The image of Redis; "" is the chart's own."""
    return cluster.redis()


@pytest.fixture(scope="module")
def kept(
    cluster: Cluster, image: Image, redis: str, kube: Kube, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kube]:
    """A release with two runtimes, two engines and a Redis for journals."""
    made = Kube(cluster, NAMESPACE)
    make_namespace(made)
    if isinstance(cluster, Own):  # other clusters have a default class of volumes
        made.apply(volume(made.namespace, tmp_path_factory.mktemp("journals")))
    with step("release with a Redis"):
        install(made, image, **values(redis))
    made.apply(pool(POOL, replicas=2, resources=SMALL), inferlet("wanders", POOL, {"inline": source()}))
    with step("two engines"):
        made.wait(f"epool/{POOL}", "Ready")
        made.wait("ilet/wanders", "Runnable")
    yield made
    made("delete", "irun,ilet,epool", "--all", "--timeout=60s")
    made.helm("uninstall", RELEASE, "--wait", "--timeout", "60s")
    made("delete", "namespace", NAMESPACE, "--timeout=90s")
    made("delete", f"persistentvolume/{NAMESPACE}-journals", "--ignore-not-found", "--timeout=60s")


def source() -> str:
    """Returns the text of the program."""
    return (ROOT / "bench" / "guests" / "wanderer.py").read_text()


def volume(namespace: str, path: Path) -> Object:
    """Returns a volume for the journals' claim: a directory of the node that Redis's user owns."""
    os.chown(path, REDIS_USER, REDIS_USER)
    claim = {"namespace": namespace, "name": f"data-{RELEASE}-journals-0"}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{namespace}-journals", "labels": {MARK: "true"}},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": str(path), "type": "Directory"},
            "claimRef": claim,
        },
    }


def launched(kube: Kube, image: Image, prefix: str, count: int) -> dict[str, str]:
    """Launches the runs and a pod that is their tool; returns the runs' programs by name."""
    kube.apply(
        *(
            run(f"{prefix}-{n}", "wanders", args=[str(n % VARIANTS), str(ROUNDS)], deadlineSeconds=3600, lossRetries=0)
            for n in range(count)
        )
    )
    with step(f"{count} runs of {prefix} run"):
        until(lambda: phases(kube, f"{prefix}-").count("Running") == count, f"all runs of {prefix} run", 90)
    programs = {r["metadata"]["name"]: r["status"]["programId"] for r in of(kube, "irun", f"{prefix}-")}
    kube.apply(tool_pod(kube, image, prefix, list(programs.values())))
    kube("wait", f"pod/tool-{prefix}", "--for=condition=Ready", "--timeout=60s")
    return programs


def tool_pod(kube: Kube, image: Image, prefix: str, programs: list[str]) -> Object:
    """Returns a client's pod, as NetworkPolicies and certificates allow it."""
    domain = kube.get(f"service/{RELEASE}-runtime")["metadata"]["annotations"]["tartlet.dev/tls-domain"]
    env = {
        "RUNTIMES": f"{RELEASE}-runtime.{kube.namespace}.svc:7444",
        "DOMAIN": domain,
        "PROGRAMS": json.dumps(programs),
        "ROUNDS": str(ROUNDS),
    }
    made = client_pod(image, f"tool-{prefix}", ["python", "-c", inspect.getsource(tool)])
    (container,) = made["spec"]["containers"]
    container["env"] = [{"name": name, "value": value} for name, value in env.items()]
    container["volumeMounts"] = [
        {"name": "tls", "mountPath": str(tool.TLS), "readOnly": True},
        {"name": "scratch", "mountPath": str(tool.ALLOWED.parent)},
    ]
    made["spec"]["volumes"] = [
        {"name": "tls", "secret": {"secretName": f"{RELEASE}-client-tls", "defaultMode": 0o444}},
        {"name": "scratch", "emptyDir": {}},
    ]
    return made


def client_pod(image: Image, name: str, command: list[str]) -> Object:
    """Returns a pod with the labels of a client."""
    none: Object = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container: Object = {
        "name": "main",
        "image": image.name,
        "command": command,
        "securityContext": none | {"readOnlyRootFilesystem": True},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"tartlet.dev/client": "true"}},
        "spec": {
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        },
    }


def heard(kube: Kube, prefix: str) -> Heard:
    """Returns what the tool has heard so far."""
    lines = kube("logs", f"tool-{prefix}", "--tail=1").split("\n")
    found: Heard = json.loads(lines[0]) if lines[0] else {"calls": 0, "repeated": [], "ended": {}}
    return found


def allow(kube: Kube, prefix: str, rounds: int) -> None:
    """Lets so many rounds of each program end."""
    kube("exec", "-i", f"tool-{prefix}", "--", "tee", str(tool.ALLOWED), text=str(min(rounds, ROUNDS - 1)))


def finished(kube: Kube, prefix: str) -> tuple[Heard, dict[str, Object]]:
    """Lets all rounds end; returns what the tool heard, and the runs' statuses by name."""
    kube("exec", "-i", f"tool-{prefix}", "--", "tee", str(tool.ALLOWED), text=str(ROUNDS))
    with step(f"the runs of {prefix} end"):
        until(lambda: set(phases(kube, f"{prefix}-")) <= TERMINAL, f"all runs of {prefix} end", 90)
        kube("wait", f"pod/tool-{prefix}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
    return heard(kube, prefix), {r["metadata"]["name"]: r["status"] for r in of(kube, "irun", f"{prefix}-")}


def test_runtimes_alone_may_reach_the_journals(
    kept: Kube, kube: Kube, cluster: Cluster, traffic: Traffic, image: Image, fake_pool: str
) -> None:
    """Pods of all kinds connect, and the policies judge each connection that the kernel saw."""
    if not isinstance(cluster, Own):
        pytest.skip("connections are read from the kernel of this machine's own cluster")
    policies = live_policies(kube)
    assert [n for n, flow in journals_pass(RELEASE, NAMESPACE) if not policies.allow(flow)] == []
    assert [n for n, flow in journals_must_not_pass(RELEASE, NAMESPACE) if policies.allow(flow)] == []
    kept.apply(*(idle_pod(image, name, labels) for name, labels in STRANGERS.items()))
    for name in STRANGERS:
        kept("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=60s")
    address = kept.get(f"service/{RELEASE}-journals")["spec"]["clusterIP"]
    tried = {name: connected(kept, f"pod/{name}", address) for name in STRANGERS}
    for role in ("control", "runtime", "worker", "operator"):
        for each in (kept, kube):
            found = each.items("pods", "-l", f"{COMPONENT}={role}")
            tried[f"{role} of {each.namespace}"] = connected(each, f"pod/{found[0]['metadata']['name']}", address)
    traffic.listed(cluster.connections())
    made = {name: traffic.attempt(*end) for name, end in tried.items()}
    assert {f.target.labels[COMPONENT] for f in made.values() if isinstance(f.target, Pod)} == {"journals"}
    rules = traffic.judged_by(namespaces(kube))
    assert [name for name, flow in made.items() if rules.allow(flow)] == [f"runtime of {NAMESPACE}"]
    kept("delete", "pod", *STRANGERS, "--grace-period=1", "--timeout=30s")


STRANGERS = {"web": {"app": "web"}, "client": {"tartlet.dev/client": "true"}}
"""Labels of pods, by name, that belong to no release."""

CONNECT = """
import socket, sys
with socket.create_connection((sys.argv[1], 6379), 5) as made:
    made.sendall(b"PING\\r\\n")
    assert made.recv(16) == b"+PONG\\r\\n"
    print(*made.getsockname())
"""
"""Asks a Redis for a sign of life, and prints the connection's own address and port."""


def connected(kube: Kube, pod: str, address: str) -> tuple[str, int]:
    """Connects from a pod to a Redis; returns the connection's own address and port."""
    ip, port = kube("exec", pod, "--", "python", "-c", CONNECT, address).split()
    return ip, int(port)


def idle_pod(image: Image, name: str, labels: dict[str, str]) -> Object:
    """Returns a pod that does nothing."""
    made = client_pod(image, name, ["python", "-c", "import time; time.sleep(600)"])
    made["metadata"]["labels"] = labels
    return made


def pods_of(kube: Kube) -> list[Object]:
    """Returns the pods of a release, by name."""
    return sorted(kube.items("pods", "-l", COMPONENT), key=lambda pod: str(pod["metadata"]["name"]))


@pytest.mark.beyond_gate
@pytest.mark.timeout(900)
def test_runs_notice_no_eviction_no_rolled_pool_and_no_upgrade(
    kept: Kube, cluster: Cluster, image: Image, redis: str
) -> None:
    launched(kept, image, "calm", VARIANTS)
    told, calm = finished(kept, "calm")
    assert (told["calls"], told["repeated"]) == (2 * VARIANTS * ROUNDS, [])
    expected = [calm[f"calm-{n}"]["result"] for n in range(VARIANTS)]
    assert len(set(expected)) == VARIANTS
    with step("an image of a next release"):
        following = cluster.next_image()

    programs = launched(kept, image, "storm", RUNS)
    pods = pods_of(kept)
    made: dict[str, int] = {}

    @contextmanager
    def during(name: str) -> Iterator[None]:
        """Lets more rounds end during a step, and notes how many calls the tool heard meanwhile."""
        before = heard(kept, "storm")["calls"]  # first: on a slow machine calls are heard before `allow` returns
        allow(kept, "storm", STEP_ROUNDS * (len(made) + 1))
        with step(f"{name}, after {before} calls"):
            yield
        made[name] = heard(kept, "storm")["calls"] - before

    for pod in pods:
        with during(f"{pod['metadata']['name']} evicted"):
            evict(kept, pod)
            until_whole(kept, pod)
    (engine, *_) = kept.items("pods", "-l", f"tartlet.dev/pool={POOL}")
    with during("pool rolled"):
        change = {"spec": {"podTemplate": {"annotations": {"example.org/rolled": "true"}}}}
        kept("patch", f"epool/{POOL}", "--type=merge", "-p", json.dumps(change))
        until_whole(kept, engine)
        kept.wait(f"epool/{POOL}", "Ready")
    (engine, *_) = kept.items("pods", "-l", f"tartlet.dev/pool={POOL}")
    with during("control, runtimes, operators and engines upgraded"):
        upgraded = chart_values(following, **values(redis))
        kept.helm("upgrade", RELEASE, CHART, "--wait", "--timeout", "180s", values=upgraded)
        until_whole(kept, engine)
        kept.wait(f"epool/{POOL}", "Ready")
    after = pods_of(kept)
    assert not {p["metadata"]["uid"] for p in after} & {p["metadata"]["uid"] for p in pods}
    upgraded_ones = [p for p in after if p["metadata"]["labels"][COMPONENT] not in ("redis", "journals")]
    assert {c["image"] for p in upgraded_ones for c in p["spec"]["containers"]} == {following.name}
    if isinstance(cluster, Own):
        assert kept("exec", f"deploy/{RELEASE}-runtime", "--", "tartlet", "version").split()[-1] == NEXT_VERSION
    assert phases(kept, "storm-") == ["Running"] * RUNS
    assert [name for name, calls in made.items() if calls == 0] == []
    told, storm = finished(kept, "storm")
    assert {n: s for n, s in storm.items() if (s["phase"], s["attempts"]) != ("Succeeded", 1)} == {}
    assert [storm[f"storm-{n}"]["result"] for n in range(RUNS)] == expected * (RUNS // VARIANTS)
    assert told == {
        "calls": 2 * RUNS * ROUNDS,
        "repeated": [],
        "ended": {programs[name]: status["result"] for name, status in storm.items()},
    }
