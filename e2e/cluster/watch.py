"""Records a cluster's objects over time, and finds for how long they disagreed."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from e2e.cluster.kube import Kube

Object = dict[str, Any]
_START_S = 20.0


@dataclass(frozen=True, slots=True)
class Seen:
    """An object's state from a time on, in seconds of a monotonic clock; None means that the object is gone."""

    at_s: float
    kind: str
    name: str
    body: Object | None


@dataclass(slots=True)
class Record:
    """The recorded states, in order."""

    seen: list[Seen] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, each: Seen) -> None:
        """Adds a watch's event."""
        with self.lock:
            self.seen.append(each)

    def history(self, kind: str, name: str, condition: str) -> list[str]:
        """Returns the successive statuses of an object's condition; empty without such a condition."""
        with self.lock:
            bodies = [s.body for s in self.seen if (s.kind, s.name) == (kind, name) and s.body is not None]
        found: list[str] = []
        for body in bodies:
            conditions = {c["type"]: c["status"] for c in body.get("status", {}).get("conditions", ())}
            status = conditions.get(condition, "")
            if found[-1:] != [status]:
                found.append(status)
        return found


State = dict[tuple[str, str], Object]
"""Objects by kind and name."""


def disagreements(seen: Iterable[Seen], agree: Callable[[State], bool], end_s: float) -> list[tuple[float, float]]:
    """Returns the periods (start and length, in seconds) up to `end_s` in which the objects disagreed."""
    state: State = {}
    since: float | None = None
    found = []
    for each in sorted(seen, key=lambda s: s.at_s):
        if each.body is None:
            state.pop((each.kind, each.name), None)
        else:
            state[each.kind, each.name] = each.body
        agreed = agree(state)
        if not agreed and since is None:
            since = each.at_s
        elif agreed and since is not None:
            found.append((since, each.at_s - since))
            since = None
    if since is not None:
        found.append((since, end_s - since))
    return found


def events(lines: Iterable[str]) -> Iterator[Object]:
    """Yields the events of kubectl's stream, one for each line."""
    for line in lines:
        if line.strip():
            yield json.loads(line)


@contextmanager
def recording(kube: Kube, watches: dict[str, list[str]]) -> Iterator[Record]:
    """Records objects during a block; `watches` maps a kind to arguments of `kubectl get` that match an object."""
    record = Record()
    processes, threads = [], []
    for kind, arguments in watches.items():
        command = [*kube.cluster.kubectl(), "-n", kube.namespace, "get", *arguments]
        command += ["--watch", "--output-watch-events", "-o", "json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        thread = threading.Thread(target=_read, args=(record, kind, process.stdout))
        thread.start()
        processes.append(process)
        threads.append(thread)
    try:
        _until_seen(record, set(watches))
        yield record
    finally:
        for process in processes:
            process.terminate()
            process.wait()
        for thread in threads:
            thread.join()


def _until_seen(record: Record, kinds: set[str]) -> None:
    """Waits until every watch has reported the present state, so that no later change is missed.

    Raises:
        TimeoutError: A watch reports nothing.
    """
    end = time.monotonic() + _START_S
    while missing := kinds - {s.kind for s in list(record.seen)}:
        if time.monotonic() > end:
            raise TimeoutError(f"nothing was seen of {', '.join(sorted(missing))} within {_START_S:.0f} s")
        time.sleep(0.02)


def _read(record: Record, kind: str, stream: IO[str]) -> None:
    with stream:
        for event in events(stream):
            body = None if event["type"] == "DELETED" else event["object"]
            record.add(Seen(time.monotonic(), kind, event["object"]["metadata"]["name"], body))


def _conditions(body: Object) -> dict[str, str]:
    return {c["type"]: c["status"] for c in body.get("status", {}).get("conditions", ())}


def rolled_out(deployment: Object, replicas: int) -> bool:
    """Whether a Deployment's controller has seen the newest spec and all pods have that spec."""
    status = deployment.get("status", {})
    counts = (deployment["spec"].get("replicas", 1), status.get("updatedReplicas", 0), status.get("replicas", 0))
    seen = int(status.get("observedGeneration", 0)) >= int(deployment["metadata"]["generation"])
    return seen and counts == (replicas, replicas, replicas)


def _over(pod: Object) -> bool:
    """Whether a pod has ended for good, such as an evicted pod; its Deployment no longer counts the pod."""
    return pod.get("status", {}).get("phase") in ("Failed", "Succeeded")


def pool_agrees(state: State) -> bool:
    """Whether a pool's counts and its Ready condition agree with its pods and its Deployment.

    A pool must be not Ready while too few pods are ready or a rollout is under way, and Ready otherwise.
    """
    pods = [body for (kind, _), body in state.items() if kind == "pod" and not _over(body)]
    staying = [p for p in pods if "deletionTimestamp" not in p["metadata"]]
    ready = sum(_conditions(p).get("Ready") == "True" for p in staying)
    counts = {
        "replicas": len(staying),
        "readyReplicas": ready,
        "drainingReplicas": len(pods) - len(staying),
    }
    deployments = [body for (kind, _), body in state.items() if kind == "deployment"]
    for (kind, _), body in state.items():
        if kind != "pool":
            continue
        wanted, says_ready = body["spec"]["replicas"], _conditions(body).get("Ready") == "True"
        if any(body.get("status", {}).get(name, 0) != count for name, count in counts.items()):
            return False
        if says_ready and ready < wanted:
            return False
        if not says_ready and ready >= wanted and any(rolled_out(d, wanted) for d in deployments):
            return False
    return True


@contextmanager
def honest(kube: Kube, pool: str, within_s: float) -> Iterator[Record]:
    """Checks that a pool's status agrees with its pods during a block and for a while after it.

    Disagreements of limited length are allowed.

    Raises:
        AssertionError: The status disagreed for too long.
    """
    label = ["-l", f"tartlet.dev/pool={pool}"]
    watches = {"pool": [f"epool/{pool}"], "pod": ["pods", *label], "deployment": ["deployments", *label]}
    with recording(kube, watches) as record:
        yield record
        time.sleep(within_s)
    found = disagreements(record.seen, pool_agrees, time.monotonic())
    longest = max([length for _, length in found], default=0.0)
    print(f"  its status and its pods disagreed {len(found)} times, for {longest:.1f} s at most", flush=True)
    if not record.seen or longest > within_s:
        raise AssertionError(f"{len(record.seen)} events; disagreements (start, length): {found}")
