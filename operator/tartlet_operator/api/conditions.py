"""Conditions after the Kubernetes API conventions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tartlet_operator.api.common import Condition

Status = Literal["True", "False", "Unknown"]
_MESSAGE_CHARS = 4096


@dataclass(frozen=True, slots=True)
class Want:
    """A condition as it should be."""

    type: str
    status: Status
    reason: str
    message: str = ""


def merged(old: Iterable[Condition], wanted: Sequence[Want], *, generation: int, now: str) -> list[Condition]:
    """Return the wanted conditions. A condition whose status stays keeps its transition time.

    Example:
        >>> first = merged([], [Want("Ready", "False", "Starting")], generation=1, now="2026-01-01T00:00:00Z")
        >>> merged(first, [Want("Ready", "False", "Waiting")], generation=2, now="2026-01-02T00:00:00Z")[0].reason
        'Waiting'
    """
    before = {c.type: c for c in old}
    return [
        Condition(
            type=w.type,
            status=w.status,
            reason=w.reason,
            message=w.message[:_MESSAGE_CHARS],
            observed_generation=generation,
            last_transition_time=_since(before.get(w.type), w.status, now),
        )
        for w in wanted
    ]


def find(conditions: Iterable[Condition], kind: str) -> Condition | None:
    """Return the condition of a type, or None."""
    return next((c for c in conditions if c.type == kind), None)


def holds(conditions: Iterable[Condition], kind: str) -> bool:
    """Whether the condition of a type is True."""
    found = find(conditions, kind)
    return found is not None and found.status == "True"


def truth(*, value: bool) -> Status:
    """Return a boolean as a condition's status."""
    return "True" if value else "False"


def _since(old: Condition | None, status: Status, now: str) -> str:
    return old.last_transition_time if old is not None and old.status == status else now
