"""Events that the operator posts on objects."""

from __future__ import annotations

from dataclasses import dataclass

from tartlet_operator.api.reasons import EventReason


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """An event to post."""

    reason: EventReason
    message: str
    warning: bool = False
