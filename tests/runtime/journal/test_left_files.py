"""Journals of programs that outlive their runtime: in files, at every moment at which a runtime may die."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tartlet_common.errors.registry import Superseded, UnknownProgram
from tartlet_runtime.journal import kept_files
from tartlet_runtime.journal.file_store import FileStore
from tartlet_runtime.journal.records import JournalHeader
from tartlet_runtime.journal.space import Space
from tartlet_runtime.journal.store import Part, Turn
from tests.runtime.journal.test_file_owners import Heard, kept, store

GONE = 1 << 29  # no process has such an id


def header(program_id: str, start_ns: int = 0) -> bytes:
    return JournalHeader(program_id, 1, "p.py", (), b"s", start_ns, "c", b"source").encode()


def begin(to: FileStore, ids: Iterable[str]) -> None:
    ids = list(ids)
    for program_id in ids:
        to.open(program_id)
    to.append(Turn(1, tuple(Part(program_id, 1, header(program_id), begins=True) for program_id in ids)))


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def restarted(directory: Path, pid: int, space: Space, time: Time) -> FileStore:
    made = FileStore(directory, space, pid, takeover_grace_s=30.0, now=time)
    made.listen(Heard())
    return made


async def test_journals_of_live_programs_outlast_a_restart_whatever_their_number_and_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_files, "MAX_KEPT", 10)
    first, _ = store(tmp_path, GONE)
    ids = [f"p{i}" for i in range(40)]
    begin(first, ids)
    time, space = Time(), Space(20 * len(header("p00")))  # less than the journals that were left
    time.now = 1e10  # files are older than the grace
    second = restarted(tmp_path, GONE + 1, space, time)
    assert sorted(second.leftovers) == sorted(ids)
    space.make_room()
    for program_id in ids[:20]:
        assert (await second.take_over(program_id, 2)).data == header(program_id)
        space.make_room()
    second.leave("p0", 2)
    time.now += 29
    third = restarted(tmp_path, GONE + 2, small := Space(1), time)
    assert (await third.take_over("p39", 2)).data == header("p39")
    assert len(kept(tmp_path)) == 39
    time.now += 31
    small.make_room()
    assert not kept(tmp_path), "nobody wanted them for the whole grace"


async def test_taking_over_many_programs_opens_a_few_files_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 60
    survivor, _ = store(tmp_path, GONE)
    left, _ = store(tmp_path, GONE + 1)
    begin(left, [f"left{i}" for i in range(count)])
    begin(survivor, [f"own{i}" for i in range(count)])
    opened = 0
    really = Path.open

    def counting(path: Path, *args: Any, **kwargs: Any) -> Any:
        nonlocal opened
        opened += 1
        return really(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", counting)
    for i in range(count):
        await survivor.take_over(f"left{i}", 2)
    assert opened < 6 * count
    with pytest.raises(UnknownProgram):
        await survivor.take_over("other", 2)


class Killed(BaseException):
    """Stands for SIGKILL: nothing runs after it, and no file is closed."""


@pytest.mark.parametrize("how", ["begins anew", "takes over its own"])
async def test_a_runtime_killed_at_any_call_leaves_the_old_journal_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    new = header("p", 9) if how == "begins anew" else header("p")
    seen, calls, names = set[bytes](), 0, ("pwrite", "write", "ftruncate")
    really = {name: getattr(os, name) for name in names}
    for last in range(100):
        directory = tmp_path / str(last)
        runtime, _ = store(directory, GONE)
        begin(runtime, ["p", "q"])
        runtime.close("q", keep=False)  # a slot to write over
        calls = 0

        def call(name: str, fd: int, data: Any, *rest: Any, last: int = last) -> Any:
            nonlocal calls
            calls += 1
            if calls > last:
                if name == "pwrite":
                    really[name](fd, data[: len(data) // 2], *rest)
                raise Killed
            return really[name](fd, data, *rest)

        with monkeypatch.context() as patch:
            for name in names:
                patch.setattr(os, name, lambda *args, name=name: call(name, *args))
            try:
                if how == "begins anew":
                    runtime.begin_anew("p")
                    runtime.append(Turn(2, (Part("p", 1, new, begins=True),)))
                else:
                    await runtime.take_over("p", 2)
            except Killed:
                pass
        again, _ = store(directory, GONE + 1)
        assert again.leftovers == ["p"]
        seen.add((await again.take_over("p", 3)).data)
        if calls <= last:
            break
    assert seen == {header("p"), new}
    assert calls > 1


async def test_the_list_of_owners_stays_small_and_everybody_goes_on_reading_it(tmp_path: Path) -> None:
    first, heard = store(tmp_path, GONE)
    second, _ = store(tmp_path, GONE + 1)
    begin(first, ["kept", "late"])
    await second.take_over("kept", 7)
    listed = tmp_path / "takeovers"
    for i in range(8000):
        begin(first, [name := f"program-{i:05}"])
        await first.take_over(name, 2)
        first.close(name, keep=False)
    assert listed.stat().st_size < 100_000
    with pytest.raises(Superseded):
        await second.take_over("kept", 7)
    await second.take_over("late", 2)
    first.append(Turn(3, (Part("late", 1, b"x"), Part("kept", 1, b"x"))))
    assert [type(each) for each in heard.refusals] == [Superseded, Superseded]
    third, _ = store(tmp_path, GONE + 2)
    with pytest.raises(Superseded):
        await third.take_over("kept", 7)
