"""Journals that clients wrote: what runs them again keeps to its memory, and the runtime's books stay true."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tartlet_common.errors.registry import JournalUnavailable, UnknownProgram
from tartlet_common.rpc.tenancy import EVERYONE, Scope
from tartlet_protos import common_pb2, programs_pb2
from tartlet_runtime.budget.ledger import Ledger, Use
from tartlet_runtime.forks.reading import JournalReader
from tartlet_runtime.forks.recorded import RecordedRuns
from tartlet_runtime.guests.build import python_guest
from tartlet_runtime.journal.records import JournalHeader
from tartlet_runtime.wasm.compiling.engine_flags import flags_digest

PROGRAM = "00000000-0000-0000-0000-000000000001"
FLOOD = b"""import inferlet

async def main(args):
    while True:
        inferlet.send("x" * 900_000)
"""


class Store:
    """A store that holds one journal."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def read(self, program_id: str) -> SimpleNamespace:
        return SimpleNamespace(data=self.data)


def reader(header: JournalHeader, ledger: Ledger) -> JournalReader:
    return JournalReader(RecordedRuns(cast("Any", Store(header.encode())), cast("Any", None), 1 << 20), ledger)


def request() -> programs_pb2.ReadJournalRequest:
    return programs_pb2.ReadJournalRequest(program_id=PROGRAM, first=1, count=1)


@pytest.mark.parametrize(
    "limits",
    [{"reserved_bytes": -(1 << 50)}, {"memory_bytes": -(1 << 50)}, {"memory_bytes": 1 << 60}, {"memory_bytes": "x"}],
)
async def test_limits_that_a_client_wrote_do_not_change_the_ledger(limits: dict[str, Any]) -> None:
    ledger = Ledger(1 << 30)
    header = JournalHeader(PROGRAM, common_pb2.Source.NATIVE, "p.py", (), bytes(16), 0, "", limits=limits)
    assert b'"total":1' in await reader(header, ledger).read(request(), EVERYONE, None)
    assert (ledger.taken[Use.PROGRAMS], ledger.free_bytes) == (0, 1 << 30)


async def test_a_run_whose_commands_fill_the_memory_is_ended() -> None:
    ledger = Ledger(1 << 30)
    component = f"{python_guest().digest}-{flags_digest()}"
    limits = {"memory_bytes": 64 << 20, "cpu_slice_s": 30.0}
    header = JournalHeader(PROGRAM, common_pb2.Source.PYTHON, "p.py", (), bytes(16), 0, component, FLOOD, limits=limits)
    with pytest.raises(JournalUnavailable, match="MiB"):
        await reader(header, ledger).read(request(), EVERYONE, None)
    assert ledger.free_bytes == 1 << 30


async def test_a_tenant_that_reads_many_journals_holds_up_no_other() -> None:
    read: list[str] = []
    header = JournalHeader(PROGRAM, common_pb2.Source.NATIVE, "p.py", (), bytes(16), 0, "", tenant="b")
    one = reader(header, Ledger(1 << 30))

    async def ask(tenant: str) -> None:
        with contextlib.suppress(UnknownProgram):
            await one.read(request(), Scope(tenant), None)
        read.append(tenant)

    await asyncio.gather(*(ask("b") for _ in range(4)), ask("a"))
    assert read == ["b", "a", "b", "b", "b"]
