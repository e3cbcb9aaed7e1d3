"""Writes the tables of `kubectl tartlet status` from the objects of a namespace. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from tartlet_cli.cluster.errors import UNSEEN, UNSEEN_TOLD
from tartlet_cli.commands.programs import age, columns

Object = dict[str, Any]
Row = tuple[str, ...]

_RUNS = 10
"""Number of runs shown: first those that go on, then those that ended last."""

_CAUSES = 8
"""Number of objects whose problem is explained below the tables, in one line each."""
_CAUSE_CHARS = 300
_RAISED = re.compile(r"\w*(Error|Exception|Warning): ")

_NO_RELEASE = (
    "no release of Tartlet is in this namespace: unless another's operator watches it (operator.namespaces), nobody "
    "updates what is shown"
)
_RELEASES: Row = ("RELEASE", "RUNTIME", "AGE")
_POOLS: Row = ("POOL", "MODEL", "READY", "REASON", "AGE")
_ENGINES: Row = ("ENGINE", "POOL", "STATE", "REASON", "NODE")
_INFERLETS: Row = ("INFERLET", "MODEL", "READY", "RUNNABLE", "REASON", "AGE")
_RUNS_SHOWN: Row = ("RUN", "INFERLET", "PHASE", "REASON", "TOKENS", "AGE")


def text(
    releases: Sequence[Row] | None,
    pools: Sequence[Object],
    inferlets: Sequence[Object],
    runs: Sequence[Object],
    now: datetime,
    pods: Sequence[str] = (),
) -> str:
    """Write tables of releases, pools, engines, inferlets and runs, as far as there are any; then explain problems.

    Args:
        releases: rows of the first table: name, state of the runtime, age; None: this user may not see them.
        pools: the EnginePools.
        inferlets: the Inferlets.
        runs: the InferletRuns; the newest are shown.
        now: the current time, with its zone.
        pods: what keeps pods and pools of releases from running, one line each.
    """
    shown = newest(runs)
    tables = [
        (_RELEASES, list(releases or ())),
        (_POOLS, [_pool(each, now) for each in pools]),
        (_ENGINES, [row for each in pools for row in _engines(each)]),
        (_INFERLETS, [_inferlet(each, now) for each in inferlets]),
        (_RUNS_SHOWN, [_run(each, now) for each in shown]),
    ]
    parts = [columns([head, *rows]) for head, rows in tables if rows]
    if len(shown) < len(runs):
        left = len(runs) - len(shown)
        parts.append(f"and {left} more run{'s' if left > 1 else ''}")
    causes = [*pods]
    causes += [cause for each in (*pools, *inferlets, *shown) if (cause := _cause(each))]
    if causes:
        more = [f"and {len(causes) - _CAUSES} more: see their conditions"] if len(causes) > _CAUSES else []
        parts.append("\n".join([*causes[:_CAUSES], *more]))
    if any(not _status(each) for each in (*pools, *inferlets, *shown)):
        parts.append(f"{UNSEEN}: {UNSEEN_TOLD}")
    if parts and releases is not None and not releases:
        parts.append(_NO_RELEASE)
    return "\n\n".join(parts) or "nothing of Tartlet is here"


def newest(runs: Sequence[Object]) -> list[Object]:
    """Choose the runs to show: those that go on, then those that ended last, the newest first."""
    latest = sorted(runs, key=lambda run: run["metadata"]["creationTimestamp"], reverse=True)
    going = [run for run in latest if _status(run).get("phase") not in ("Succeeded", "Failed")]
    rest = [run for run in latest if run not in going]
    kept = [*going[:_RUNS], *rest][:_RUNS]
    return [run for run in latest if run in kept]


def unmade(releases: Sequence[Object], pools: Sequence[Object]) -> list[str]:
    """Return the pools of releases' values that don't exist, or that can't be as the values say, one line each.

    Args:
        releases: the ConfigMaps in which the chart tells operators the pools of the values.
        pools: the EnginePools that there are.
    """
    there = {pool["metadata"]["name"] for pool in pools}
    lines = []
    for release in releases:
        wanted = json.loads((release.get("data") or {}).get("pools.json") or "[]")
        refused = json.loads((release["metadata"].get("annotations") or {}).get("tartlet.dev/refused") or "{}")
        for name in (each["name"] for each in wanted):
            if name in refused:
                lines.append(f"pool {name} of the values: refused: {' '.join(refused[name].split())[:_CAUSE_CHARS]}")
            elif name not in there:
                lines.append(f"pool {name} of the values: the operator hasn't made it yet")
    return lines


def since(moment: str, now: datetime) -> str:
    """Write how long ago a time of the API was.

    Example:
        >>> since("2026-01-01T00:00:00Z", datetime(2026, 1, 1, 0, 10, tzinfo=UTC))
        '10m'
    """
    try:
        then = datetime.fromisoformat(moment)
    except ValueError:
        return ""
    return age(max(0.0, (now - then.astimezone(UTC)).total_seconds()))


def _status(found: Object) -> Object:
    return found.get("status") or {}


def _condition(found: Object, kind: str) -> Object:
    return next((c for c in _status(found).get("conditions") or [] if c["type"] == kind), {})


def _age(found: Object, now: datetime) -> str:
    return since(found["metadata"]["creationTimestamp"], now)


def _amiss(found: Object, *kinds: str) -> Object:
    """Return the first condition that isn't in its healthy state."""
    degraded = _condition(found, "Degraded")
    if degraded.get("status") == "True":
        return degraded
    conditions = (_condition(found, kind) for kind in kinds)
    return next((c for c in conditions if c and c["status"] != "True"), {})


def _why(found: Object, *kinds: str) -> str:
    """Return the reason of that condition."""
    return str(_amiss(found, *kinds).get("reason", "")) if _status(found) else UNSEEN


def _brief(message: str, traceback: str = "") -> str:
    r"""Shorten a message to its first line and the line that names the raised error, or else its last line.

    Example:
        >>> _brief("refused: File a.py, line 2\n    if x\nSyntaxError: expected ':'\nCorrect it.")
        "refused: File a.py, line 2 ... SyntaxError: expected ':'"
        >>> _brief("the program raised an exception", "Traceback:\n  line 4\nKeyError: 'a'\n")
        "the program raised an exception: KeyError: 'a'"
    """
    lines = message.strip().splitlines() or [""]
    said = [line for line in lines[1:] if _RAISED.match(line.strip())] or lines[1:]
    told = " ... ".join([lines[0], *(line.strip() for line in said[-1:])])
    raised = traceback.strip().splitlines()[-1:]
    return ": ".join([told, *raised]) if told else ""


def _cause(found: Object) -> str:
    """Explain an object's problem, after its name for kubectl; "" if it has none, or if the table shows all of it."""
    status = _status(found)
    if status.get("phase") in ("Running", "Succeeded"):
        return ""
    kind = {"EnginePool": "epool", "Inferlet": "ilet", "InferletRun": "irun"}[found["kind"]]
    amiss = status.get("error") or _amiss(found, "Ready", "Runnable", "Succeeded")
    told = _brief(str(amiss.get("message") or ""), str(amiss.get("traceback") or ""))
    if len(told) > _CAUSE_CHARS:
        told = f"{told[:_CAUSE_CHARS]}..."
    return f"{kind}/{found['metadata']['name']}: {told}" if told else ""


def _pool(pool: Object, now: datetime) -> Row:
    status = _status(pool)
    ready = f"{status.get('readyReplicas', 0)}/{pool['spec'].get('replicas', 1)}"
    return (
        pool["metadata"]["name"],
        pool["spec"]["model"]["name"],
        ready,
        _why(pool, "Ready", "Available"),
        _age(pool, now),
    )


def _engines(pool: Object) -> list[Row]:
    name = pool["metadata"]["name"]
    return [
        (engine["pod"], name, engine["state"], engine.get("reason", ""), engine.get("node", ""))
        for engine in _status(pool).get("engines") or []
    ]


def _inferlet(inferlet: Object, now: datetime) -> Row:
    ready, runnable = _condition(inferlet, "Ready"), _condition(inferlet, "Runnable")
    return (
        inferlet["metadata"]["name"],
        str(_status(inferlet).get("model") or ""),
        str(ready.get("status", "Unknown")),
        str(runnable.get("status", "Unknown")),
        _why(inferlet, "Ready", "Runnable"),
        _age(inferlet, now),
    )


def _run(run: Object, now: datetime) -> Row:
    status = _status(run)
    phase = str(status.get("phase") or "Pending")
    error = status.get("error") or {}
    why = str(error.get("name") or "") or ("" if phase == "Succeeded" else _why(run, "Succeeded"))
    tokens = str((status.get("tokens") or {}).get("output", 0))
    return run["metadata"]["name"], run["spec"]["inferlet"], phase, why, tokens, _age(run, now)
