"""Runtimes that are, or were a moment ago, connected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tartlet_control.tables.outbox import Outbox

if TYPE_CHECKING:
    from tartlet_control.tables.programs import Program


class RuntimeSession:
    """One incarnation of a runtime: its programs by handle, and what waits to be sent to it.

    It outlives its stream: a runtime that comes back within the grace finds its programs as it left them.
    """

    __slots__ = ("address", "gone_since", "incarnation", "outbox", "programs", "runtime_id")

    def __init__(self, runtime_id: str, incarnation: str, address: str) -> None:
        self.runtime_id = runtime_id
        self.incarnation = incarnation
        self.address = address
        self.programs: dict[int, Program] = {}
        self.outbox = Outbox()
        self.gone_since: float | None = None  # None: connected
