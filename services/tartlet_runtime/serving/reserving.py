"""Memory that programs hold from their launch on; spares and outputs of ended programs give way to it."""

from __future__ import annotations

from tartlet_common.errors.registry import MemoryBudgetExceeded
from tartlet_protos import common_pb2
from tartlet_runtime.budget.holding import FREE_BYTES, HOLDINGS, Holding
from tartlet_runtime.budget.ledger import Ledger, Use
from tartlet_runtime.guests.sandboxed import WasmGuests
from tartlet_runtime.program.spec import ProgramSpec
from tartlet_runtime.serving.ended import EndedPrograms


class Reserving:
    """Takes memory for programs."""

    def __init__(self, ledger: Ledger, wasm: WasmGuests | None, ended: EndedPrograms) -> None:
        """Take from `ledger`."""
        self._ledger = ledger
        self._wasm = wasm
        self._ended = ended

    def take(self, spec: ProgramSpec) -> int:
        """Take what a program holds from its launch on, and return how much that is, bytes.

        Raises:
            MemoryBudgetExceeded: the process's memory can't hold it.
        """
        native = spec.language == common_pb2.Source.NATIVE
        texts = len(spec.source) + sum(map(len, spec.args))
        reserved = texts + HOLDINGS * FREE_BYTES + (0 if native else spec.limits.reserved_bytes)
        if reserved > self._ledger.free_bytes:
            self._settle()
        try:
            self._ledger.take(Use.PROGRAMS, reserved)
        except MemoryBudgetExceeded:
            taken = self._ledger.taken
            if reserved > self._ledger.free_bytes + taken[Use.SPARES] + self._ended.bytes:
                raise
            if self._wasm is not None:
                self._wasm.host.drop_spares()
            self._ended.free(reserved)
            self._ledger.take(Use.PROGRAMS, reserved)
        return reserved

    def account(self, use: Use) -> Holding:
        """Return an account of what one program takes beside that."""
        return Holding(self._ledger, use, self._make_room)

    def _make_room(self, wanted_bytes: int) -> None:
        self._settle()
        if wanted_bytes > self._ledger.free_bytes:
            self._ended.free(wanted_bytes)

    def _settle(self) -> None:
        """Let guests that compute on other threads give back the room that they don't need."""
        if self._wasm is not None:
            self._wasm.host.end_steps()
