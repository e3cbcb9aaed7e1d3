"""What `kubectl tartlet status` shows of a namespace."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from tartlet_cli.cluster.errors import UNSEEN_TOLD
from tartlet_cli.kube import overview


def test_status_shows_pools_engines_inferlets_and_the_newest_runs() -> None:
    def made(name: str, minute: int = 0) -> dict[str, Any]:
        return {"name": name, "creationTimestamp": f"2026-01-01T00:{minute:02}:00Z"}

    pool: dict[str, Any] = {
        "kind": "EnginePool",
        "metadata": made("demo"),
        "spec": {"model": {"name": "m"}, "replicas": 2},
        "status": {
            "readyReplicas": 1,
            "conditions": [{"type": "Ready", "status": "False", "reason": "EnginesMissing"}],
            "engines": [
                {"pod": "demo-1", "state": "Ready", "node": "n"},
                {"pod": "demo-2", "state": "Broken", "reason": "OOM"},
            ],
        },
    }
    inferlet: dict[str, Any] = {"kind": "Inferlet", "metadata": made("hello"), "spec": {}, "status": {}}
    runs: list[dict[str, Any]] = [
        {
            "kind": "InferletRun",
            "metadata": made(f"r{i}", i),
            "spec": {"inferlet": "hello"},
            "status": {"phase": "Failed" if i else "Running", "error": {"name": "Draining"}, "tokens": {"output": i}},
        }
        for i in range(14)
    ]
    now = datetime(2026, 1, 1, 0, 20, tzinfo=UTC)
    text = overview.text([("prod", "1 ready", "1h")], [pool], [inferlet], runs, now)
    assert "prod     1 ready  1h" in text
    assert "demo  m      1/2    EnginesMissing  20m" in text
    assert "demo-2  demo  Broken  OOM" in text
    assert "hello            Unknown  Unknown   NoStatus" in text
    assert f"NoStatus: {UNSEEN_TOLD}" in text
    inferlet["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "reason": "ReconcileFailed"}]
    text = overview.text([("prod", "1 ready", "1h")], [pool], [inferlet], runs, now)
    assert "NoStatus" not in text
    assert "nobody updates what is shown" not in text
    lines = text.splitlines()
    assert lines[-1] == "and 4 more runs"
    shown = [line.split()[0] for line in lines if line.startswith("r")]
    assert shown == [*(f"r{i}" for i in range(13, 4, -1)), "r0"]  # what still runs is never left out
    assert "r13  hello     Failed   Draining  13" in text
    assert overview.text([], [], [], [], now) == "nothing of Tartlet is here"

    pool["status"]["conditions"][0]["message"] = "no engine: create one"
    inferlet["status"]["conditions"] = [
        {"type": "Ready", "status": "True", "reason": "Catalogued", "message": "fine"},
        {"type": "Runnable", "status": "False", "reason": "PoolNotFound", "message": "there is no pool demo"},
    ]
    for run in runs:
        run["status"]["error"]["message"] = "x" * 1000 + "\nTraceback"
    lines = overview.text(None, [pool], [inferlet], runs, now).splitlines()
    assert lines[-9:-6] == ["epool/demo: no engine: create one", "ilet/hello: there is no pool demo", lines[-7]]
    assert lines[-7] == f"irun/r13: {'x' * 300}..."
    assert lines[-1] == "and 3 more: see their conditions"
    assert not [line for line in lines if line.startswith("irun/r0:")], "it runs"
    assert overview.text([], [pool], [], [], now).endswith("nobody updates what is shown")
    assert "nobody updates" not in overview.text(None, [pool], [], [], now)  # a viewer can't see releases


def test_pools_of_the_values_that_are_missing_or_refused_are_told() -> None:
    wanted = json.dumps([{"name": name, "spec": {}} for name in ("there", "late", "bad")])
    notes = {"tartlet.dev/refused": json.dumps({"bad": "spec.replicas:\n  must be 0 or more"})}
    release = {"metadata": {"name": "r-pools", "annotations": notes}, "data": {"pools.json": wanted}}
    assert overview.unmade([release], [{"metadata": {"name": "there"}}]) == [
        "pool late of the values: the operator hasn't made it yet",
        "pool bad of the values: refused: spec.replicas: must be 0 or more",
    ]
    assert overview.unmade([{"metadata": {"name": "empty"}}], []) == []
