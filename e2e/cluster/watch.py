"""Records what a cluster says over time, and finds for how long its parts disagreed."""

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
    """An object as it was from a time on (seconds of a monotonic clock); None: it is gone."""

    at_s: float
    kind: str
    name: str
    body: Object | None


@dataclass(slots=True)
class Record:
    """What was seen, in order."""

    seen: list[Seen] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, each: Seen) -> None:
        """Adds what a watch said."""
        with self.lock:
            self.seen.append(each)

    def history(self, kind: str, name: str, condition: str) -> list[str]:
        """The statuses that a condition of an object had, one after the other; empty where it had none."""
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
    """The times (start, length, in seconds) in which the objects didn't agree, up to `end_s`."""
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
    """The events of kubectl's stream, one a line."""
    for line in lines:
        if line.strip():
            yield json.loads(line)


@contextmanager
def recording(kube: Kube, watches: dict[str, list[str]]) -> Iterator[Record]:
    """Records objects while a block runs; `watches`: kind -> what `kubectl get` is asked for, one object at least."""
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
    """Until every watch has told how things stand: what comes next must not be missed.

    Raises:
        TimeoutError: One tells nothing.
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
    """Whether a Deployment's controller has seen its newest spec, and all pods are of it."""
    status = deployment.get("status", {})
    counts = (deployment["spec"].get("replicas", 1), status.get("updatedReplicas", 0), status.get("replicas", 0))
    seen = int(status.get("observedGeneration", 0)) >= int(deployment["metadata"]["generation"])
    return seen and counts == (replicas, replicas, replicas)


def _over(pod: Object) -> bool:
    """Whether a pod runs no more and won't again, as an evicted one: its Deployment counts it no more either."""
    return pod.get("status", {}).get("phase") in ("Failed", "Succeeded")


def pool_agrees(state: State) -> bool:
    """Whether a pool's counts, and its word that it is Ready or not, are what its pods and its Deployment say.

    Not Ready is right while too few pods are ready or a rollout is under way, and at no other time.
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
    """A pool's status agrees with its pods while a block runs, and so long after it, but for so long at a time.

    Raises:
        AssertionError: It didn't.
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
