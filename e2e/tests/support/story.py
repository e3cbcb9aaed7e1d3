"""A story that uses every feature, and the state that it must end in, whatever is killed meanwhile."""

from __future__ import annotations

from e2e.cluster.kube import Kube, Object, condition, until
from e2e.tests.conftest import pool
from e2e.tests.programs.test_answers import API, run
from e2e.tests.support.person import running

HELLO = """
import sys

async def main():
    print("hello", *sys.argv[1:])
    return "done"
"""

BYE = HELLO.replace("hello", "bye")

FAILING = """
async def main():
    print("so far")
    raise ValueError("on purpose")
"""

SLOW = '''
import asyncio
import sys

from inferlet import Context, get_model


async def main() -> str:
    """Keeps its context on one engine for so many seconds."""
    async with Context(await get_model()) as ctx:
        ctx.fill("a")
        for _ in range(int(float(sys.argv[1]) * 5)):
            async for piece in ctx.generate(max_tokens=1):
                pass
            await asyncio.sleep(0.2)
    return "to the end"
'''

TERMINAL = {"Succeeded", "Failed"}
PATIENCE_S = 150
"""How long a step may take while operators are being killed, in seconds."""

EARLY = "irun/-fails-early"
"""A program that always fails, but not always for its own reason."""

AGAIN = 10
"""Retries of runs whose engine, control or runtime may be killed."""

State = dict[str, object]


def inferlet(name: str, pool_name: str, source: Object) -> Object:
    """Returns the manifest of an Inferlet."""
    spec = {"source": source, "pool": pool_name}
    return {"apiVersion": API, "kind": "Inferlet", "metadata": {"name": name}, "spec": spec}


def phases(kube: Kube, prefix: str) -> list[str]:
    """Returns the phases of the runs with this prefix."""
    return [r.get("status", {}).get("phase", "") for r in of(kube, "irun", prefix)]


def of(kube: Kube, kind: str, prefix: str) -> list[Object]:
    """Returns the objects with this prefix."""
    return [o for o in kube.items(kind) if o["metadata"]["name"].startswith(prefix)]


def tell(kube: Kube, name: str) -> None:
    """Plays the story to its end; all names of objects begin with `name`.

    Runs may be launched again as often as what they run on may be taken away.
    """
    mapped = {"configMap": {"name": f"{name}-sources", "key": "mapped.py"}}
    slow, hello = f"{name}-slow", f"{name}-hello"
    kube.apply(
        pool(name),
        inferlet(hello, name, {"inline": HELLO}),
        inferlet(slow, name, {"inline": SLOW}),
        inferlet(f"{name}-fails", name, {"inline": FAILING}),
        inferlet(f"{name}-broken", name, {"inline": "async def main(:\n    pass\n"}),
        inferlet(f"{name}-mapped", name, mapped),
        inferlet(f"{name}-leaves", name, {"inline": HELLO}),
        run(f"{name}-nobody", f"{name}-unknown"),
    )
    kube.wait(f"epool/{name}", "Ready", PATIENCE_S)
    first = [run(f"{slow}-{n}", slow, args=["5"], retries=AGAIN) for n in range(3)]
    lasts = run(f"{name}-lasts", slow, args=["12"], retries=AGAIN)
    kube.apply(*first, lasts, run(f"{name}-gone-0", slow, args=["600"], retries=AGAIN))
    until(lambda: _begun(kube, f"{slow}-", 3) and _begun(kube, f"{name}-gone-", 1), "programs run", PATIENCE_S)
    kube("scale", f"epool/{name}", "--replicas=2")
    kube("delete", f"irun/{name}-gone-0", "--ignore-not-found")
    kube.apply(
        *(run(f"{hello}-{n}", hello, args=[str(n)], retries=AGAIN) for n in range(4)),
        run(f"{name}-late", slow, args=["600"], deadlineSeconds=8, retries=AGAIN),
        run(f"{name}-passes", hello, retries=AGAIN, ttlSecondsAfterFinished=1),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{name}-sources"},
            "data": {"mapped.py": HELLO},
        },
    )
    until(lambda: kube.get(f"epool/{name}")["status"]["readyReplicas"] == 2, "two engines are ready", PATIENCE_S)
    kube.apply(
        *(run(f"{slow}-{n}", slow, args=["3"], retries=AGAIN) for n in range(3, 6)),
        run(f"{name}-gone-1", slow, args=["600"], retries=AGAIN),
    )
    kube("delete", f"irun/{name}-gone-1", "--ignore-not-found")
    until(lambda: "" not in phases(kube, f"{slow}-"), "they are launched", PATIENCE_S)
    kube("scale", f"epool/{name}", "--replicas=1")
    kube("patch", f"epool/{name}", "--type=merge", "-p", '{"spec":{"engine":{"maxBatchCommands":256}}}')
    kube("delete", f"ilet/{name}-leaves", "--wait=false", "--ignore-not-found")
    kube.apply(
        inferlet(hello, name, {"inline": BYE}),
        run(f"{name}-fails-early", f"{name}-fails", retries=1),
        run(f"{name}-mapped-0", f"{name}-mapped", args=["mapped"], retries=AGAIN),
    )


def last_word(kube: Kube, name: str) -> State:
    """Returns the final state without names, numbers and times that differ each time."""

    def settled() -> bool:
        runs = {r["metadata"]["name"]: r.get("status", {}).get("phase") for r in of(kube, "irun", f"{name}-")}
        runs.pop(f"{name}-nobody")
        there = kube.get(f"epool/{name}")
        gone = not of(kube, "ilet", f"{name}-leaves") and f"{name}-passes" not in runs
        return set(runs.values()) <= TERMINAL and gone and _is_settled(there)

    until(settled, f"the story of {name} ends", PATIENCE_S)
    kube.apply(
        run(f"{name}-bye", f"{name}-hello", args=["all"], retries=AGAIN),
        run(f"{name}-fails", f"{name}-fails", retries=1),
    )
    kube.wait(f"irun/{name}-bye", "Succeeded", PATIENCE_S)
    kube.wait(f"irun/{name}-fails", "Failed", PATIENCE_S)
    until(lambda: running(kube, name) == [], "no program is left", PATIENCE_S)
    status = kube.get(f"epool/{name}")["status"]
    counts = {k: status[k] for k in ("replicas", "readyReplicas", "updatedReplicas", "drainingReplicas")}
    state: State = {"pool": {**counts, "conditions": _conditions(status)}}
    for each in of(kube, "ilet", f"{name}-"):
        mine = each["status"]
        state[_key("ilet", each, name)] = {"digest": mine.get("digest"), "conditions": _conditions(mine)}
    for each in of(kube, "irun", f"{name}-"):
        mine = each["status"]
        said = {k: mine.get(k) for k in ("phase", "output", "result")}
        said |= {"error": (mine.get("error") or {}).get("name"), "conditions": _conditions(mine)}
        key = _key("irun", each, name)
        # the last attempt may have been lost, and no further one is left
        state[key] = said if key != EARLY else {"phase": said["phase"]}
    return state


def attempts(kube: Kube, name: str) -> dict[str, int]:
    """Returns how often each run was launched that fails only with the loss of its engine or role."""
    found = {_key("irun", each, name): each["status"]["attempts"] for each in of(kube, "irun", f"{name}-")}
    assert (found.pop("irun/-nobody"), found.pop("irun/-fails"), found.pop(EARLY)) == (0, 2, 2)
    del found["irun/-late"]  # the deadline is over, whether the run was launched or not
    return found


def expected(state: State) -> None:
    """Asserts the contents of a final state, so that two equal wrong ones aren't accepted."""
    runs = {k: v for k, v in state.items() if k.startswith("irun/")}
    assert len(runs) == 17
    assert runs.pop(EARLY) == {"phase": "Failed"}
    errors = {"irun/-fails": "ProgramFailed", "irun/-late": "DeadlineExceeded"}
    for key, each in runs.items():
        assert isinstance(each, dict)
        if key == "irun/-nobody":
            assert each["phase"] in {None, "Pending"}, each
        else:
            wanted = ("Failed", errors[key]) if key in errors else ("Succeeded", None)
            assert (each["phase"], each["error"]) == wanted, (key, each)
    last = runs["irun/-bye"]
    assert isinstance(last, dict)
    assert last["output"] == "bye all\n"
    there = state["pool"]
    assert isinstance(there, dict)
    assert (there["replicas"], there["readyReplicas"], there["updatedReplicas"]) == (1, 1, 1)


def _begun(kube: Kube, prefix: str, count: int) -> bool:
    """Whether this many runs have been launched; some may have ended already."""
    found = phases(kube, prefix)
    return len(found) == count and set(found) <= {"Running", "Succeeded"}


def _is_settled(there: Object) -> bool:
    ready = condition(there, "Ready")
    current = ready.get("observedGeneration") == there["metadata"]["generation"]
    counts = there["status"].get("drainingReplicas", 0) == 0 and there["status"]["replicas"] == 1
    return current and counts and ready.get("status") == "True" and condition(there, "Progressing")["status"] == "False"


def _conditions(status: Object) -> list[tuple[str, str, str]]:
    return sorted((c["type"], c["status"], c["reason"]) for c in status.get("conditions", ()))


def _key(kind: str, each: Object, name: str) -> str:
    return f"{kind}/{each['metadata']['name'].removeprefix(name)}"
