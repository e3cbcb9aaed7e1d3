"""What control hears of a program that begins again: its journal is said to be stored once the guest knows its past."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tartlet_common.errors.registry import JournalUnavailable
from tartlet_runtime.journal.file_store import FileStore
from tartlet_runtime.journal.journals import Journals
from tartlet_runtime.journal.records import JournalHeader, Kind
from tartlet_runtime.journal.space import Space
from tartlet_runtime.program.recorder import UNRECORDED, Recorder
from tartlet_runtime.program.recovered import RecoveredProgram


def recovered(directory: Path, told: list[int], *, degrades: bool = False) -> tuple[RecoveredProgram, Journals]:
    """A program amid its past, of which only the journal is real."""
    space = Space(1 << 30)
    journals = Journals(FileStore(directory, space), space, now=time.monotonic)
    header = JournalHeader("p", 1, "p.py", (), b"s", 0, "c", b"source").encode()
    journal = journals.open("p", header, 1 << 20)
    program: Any = RecoveredProgram.__new__(RecoveredProgram)
    program._is_past, program._skip, program.is_whole, program.heard = True, 0, False, 3
    program._early = []
    program.output = SimpleNamespace(leave=None, caught_up=lambda: None)
    program._world = SimpleNamespace(ops=SimpleNamespace(resume=lambda _: None), clock=SimpleNamespace(now=lambda: 0.0))
    recorder = Recorder(
        journal, journals, lost=lambda _: None, room=lambda: None, stored=told.append, degrades=degrades, heard=3
    )
    program.record(recorder)
    recorder.begin()
    return program, journals


def test_a_message_that_is_stored_during_the_past_is_no_sign_of_life(tmp_path: Path) -> None:
    told: list[int] = []
    program, journals = recovered(tmp_path, told)
    assert program.recorder is not None
    for n in range(3):
        program.recorder.record(n, b"\0hi", 3, 0, Kind.MESSAGE)
        journals.flush()
    assert journals.stored_turn == 3
    assert told == []
    program._live(waits=False)
    assert told == [3]
    program.recorder.record(9, b"delivery", 5)
    journals.flush()
    assert told == [3, 5]


@pytest.mark.parametrize("degrades", [False, True])
def test_that_a_program_goes_on_without_its_journal_is_told_at_once(tmp_path: Path, *, degrades: bool) -> None:
    told: list[int] = []
    program, _ = recovered(tmp_path, told, degrades=degrades)
    assert program.recorder is not None
    program.recorder.lose(JournalUnavailable(detail="the store is gone"))
    assert told == [UNRECORDED] * degrades
