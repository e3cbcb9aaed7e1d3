"""Programs whose taking over fails: their journals stay for the next owner, which may be the same runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tartlet_common.errors.registry import Unavailable
from tartlet_protos import control_pb2
from tartlet_runtime.abi.limits import default_limits
from tartlet_runtime.journal.records import Kind, crc_of, encode_record
from tartlet_runtime.journal.store import Part, Turn
from tartlet_runtime.serving.adoption import Adoption
from tests.runtime.harness import make_settings, until
from tests.runtime.journal.test_file_owners import HEADER, append, store


def record(number: int) -> bytes:
    return encode_record(crc_of(HEADER), number, b"digest00", b"\0message", 0, 0, Kind.MESSAGE)


class Table:
    """A table of programs that compiles when the test lets it, and then fails or not."""

    def __init__(self, directory: Path) -> None:
        self.limits = default_limits(make_settings(directory))
        self.compiling: list[asyncio.Future[str]] = []
        self.adopted: list[int] = []

    def supersede(self, program_id: str) -> None:
        pass

    def maker(self, spec: Any, recorded: str) -> None:
        assert recorded == "c"

    async def compile(self, spec: Any) -> str:
        self.compiling.append(asyncio.get_running_loop().create_future())
        return await self.compiling[-1]

    def adopt(self, spec: Any, make_guest: Any, past: Any, *, whole: bool) -> None:
        assert not whole
        self.adopted.append(past.epoch)


class Link:
    def __init__(self) -> None:
        self.starts: list[control_pb2.ProgramStart] = []
        self.on_lost: Callable[[], None]

    def start(self, start: control_pb2.ProgramStart) -> None:
        self.starts.append(start)


async def test_a_taking_over_that_fails_late_leaves_the_journal_to_a_later_one_of_this_runtime(tmp_path: Path) -> None:
    directory = tmp_path / "journals"
    first, _ = store(directory, 1 << 29)
    first.open("p")
    append(first, 1, HEADER + record(1))
    here, heard = store(directory, (1 << 29) + 1)
    table, link, tasks = Table(tmp_path), Link(), list[asyncio.Task[None]]()

    def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        tasks.append(asyncio.ensure_future(work))
        return tasks[-1]

    adoption = Adoption(table, here, link, spawn)  # type: ignore[arg-type]
    adoption.begin("p", 2)
    await until(lambda: len(table.compiling) == 1)
    adoption.begin("p", 3)
    await until(lambda: len(table.compiling) == 2)
    table.compiling[1].set_result("guest")
    await tasks[1]
    assert table.adopted == [3]
    table.compiling[0].set_exception(Unavailable(what="the compiler", detail="it is gone"))
    await tasks[0]
    assert [start.epoch for start in link.starts] == [2]
    here.append(Turn(2, (Part("p", 3, record(2)),)))
    assert not heard.refusals
    assert (await here.read("p")).data == HEADER + record(1) + record(2)
    adoption.begin("p", 4)
    await until(lambda: len(table.compiling) == 3)
    table.compiling[2].set_exception(Unavailable(what="the compiler", detail="it is gone"))
    await tasks[2]
    second, _ = store(directory, (1 << 29) + 2)
    assert (await second.take_over("p", 5)).data == HEADER + record(1) + record(2)


async def test_what_a_control_has_asked_for_that_is_gone_is_left_to_the_next_one(tmp_path: Path) -> None:
    directory = tmp_path / "journals"
    first, _ = store(directory, 1 << 29)
    first.open("p")
    append(first, 1, HEADER + record(1))
    here, _ = store(directory, (1 << 29) + 1)
    table, link, tasks = Table(tmp_path), Link(), list[asyncio.Task[None]]()

    def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        tasks.append(asyncio.ensure_future(work))
        return tasks[-1]

    adoption = Adoption(table, here, link, spawn)  # type: ignore[arg-type]
    adoption.begin("p", 2)
    await until(lambda: len(table.compiling) == 1)
    assert not await here.live(), "it is about to run here"
    link.on_lost()
    await asyncio.wait(tasks)
    assert not table.adopted
    assert not link.starts, "the next control has asked for nothing yet"
    assert [found.epoch for found in await here.live()] == [2]
