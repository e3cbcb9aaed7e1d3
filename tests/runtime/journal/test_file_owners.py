"""Journals in files that several runtimes have owned one after the other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tartlet_common.errors.registry import Superseded, TartletError
from tartlet_runtime.journal.file_store import FileStore
from tartlet_runtime.journal.records import JournalHeader, Kind, crc_of, encode_record
from tartlet_runtime.journal.space import Space
from tartlet_runtime.journal.store import Part, Turn

HEADER = JournalHeader("p", 1, "p.py", (), b"s", 0, "c", b"source").encode()


class Heard:
    """Keeps refusals."""

    def __init__(self) -> None:
        self.refusals: list[TartletError] = []

    def stored(self, turn: int) -> None:
        """No-op: files are stored at once."""

    def refused(self, program_id: str, error: TartletError) -> None:
        self.refusals.append(error)


def store(directory: Path, pid: int) -> tuple[FileStore, Heard]:
    made, heard = FileStore(directory, Space(1 << 30), pid), Heard()
    made.listen(heard)
    return made, heard


def record(number: int) -> bytes:
    return encode_record(crc_of(HEADER), number, b"digest00", b"%d" % number, 0, 0, 0)


def kept(directory: Path) -> list[Path]:
    return list(directory.glob("*.journal"))


def append(to: FileStore, epoch: int, data: bytes) -> None:
    to.append(Turn(1, (Part("p", epoch, data),)))


@pytest.mark.parametrize("first_pid", [(1 << 29), (1 << 29) + 9])  # what is left is found in the order of these
async def test_the_copy_with_all_records_counts_whatever_earlier_owners_left(tmp_path: Path, first_pid: int) -> None:
    first, _ = store(tmp_path, first_pid)
    first.open("p")
    append(first, 1, HEADER + record(1))
    second, _ = store(tmp_path, (1 << 29) + 1)  # the first one is dead: no such process
    await second.take_over("p", 2)
    append(second, 2, record(2))
    append(first, 1, record(99))
    third, _ = store(tmp_path, (1 << 29) + 2)
    taken = await third.take_over("p", 3)
    assert taken.data == HEADER + record(1) + record(2)
    assert taken.epoch == 3


async def test_an_owner_that_leaves_keeps_the_journal_for_the_next_one_and_drops_it_behind_that(tmp_path: Path) -> None:
    first, heard = store(tmp_path, 1 << 29)
    first.open("p")
    append(first, 1, HEADER + record(1))
    first.leave("p", 1)
    second, _ = store(tmp_path, (1 << 29) + 1)
    assert (await second.take_over("p", 2)).data == HEADER + record(1)
    assert not kept(tmp_path), "the next owner has a copy"
    with pytest.raises(Superseded):
        await first.take_over("p", 2)
    again = await first.take_over("p", 3)
    second.leave("p", 2)
    assert not kept(tmp_path), "somebody else owns it"
    assert (await first.read("p")).data == again.data
    assert not heard.refusals


async def test_what_dead_runtimes_left_is_listed_unless_an_end_was_told_or_it_has_an_owner(tmp_path: Path) -> None:
    headers = {
        name: JournalHeader(name, 1, "p.py", (), b"s", 0, "c").encode()
        for name in ("p", "left", "left-untold", "untold", "told", "kept", "own")
    }
    dead, _ = store(tmp_path, 1 << 29)
    for name, data in headers.items():
        dead.open(name)
        dead.append(Turn(1, (Part(name, 1, data),)))
    for name in ("untold", "left-untold", "told", "kept"):
        end = encode_record(crc_of(headers[name]), 1, b"digest00", b"{}", 0, 0, Kind.END)
        dead.append(Turn(1, (Part(name, 1, end),)))
    dead.close("told", keep=False)
    dead.close("kept", keep=True)
    dead.leave("left", 1)
    dead.leave("left-untold", 1)
    alive, _ = store(tmp_path, os.getpid())
    await alive.take_over("own", 2)
    assert {(j.header.program_id, j.epoch) for j in await alive.live()} == {
        ("p", 1),
        ("left", 1),
        ("left-untold", 1),
        ("untold", 1),
    }
    await alive.take_over("p", 3)
    alive.leave("p", 3)
    assert ("p", 3) in {(j.header.program_id, j.epoch) for j in await alive.live()}
