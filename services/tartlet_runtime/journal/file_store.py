"""Journals as files of one directory, which outlive this process, but not a power cut: `write`, no fsync.

Files are slots that are written over: making and unlinking one for each of 896 launches would cost more than the
launches (as would truncating them). Slots are named by the process that uses them; `FileStore.leftovers` names what a
killed runtime left. A journal takes another's place only when it is whole. Owners' epochs stand in the file
`takeovers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tartlet_common.config.paths import make_private
from tartlet_common.errors.registry import DiskFull, InvalidSource, JournalUnavailable, Superseded, UnknownProgram
from tartlet_runtime.journal.kept_files import KeptFiles
from tartlet_runtime.journal.records import MAGIC, ParsedJournal, parse_journal
from tartlet_runtime.journal.space import Space
from tartlet_runtime.journal.store import FIRST_EPOCH, Listener, LiveJournal, Part, StoredJournal, Turn
from tartlet_runtime.journal.takeovers import Takeovers

_BIG_SLOT_BYTES = 1 << 20  # a larger one gives its space back
_PROGRAM_ID = re.compile(rb'"program_id":"([^"]*)"')


@dataclass(slots=True)
class _Slot:
    fd: int
    path: Path
    at: int = 0  # bytes written
    epoch: int = FIRST_EPOCH  # of its program here


class FileStore:
    """The directory of a runtime's journals: slots in use, slots to write over, and journals that were kept."""

    immediate = True
    unstored_bytes = 0
    trouble = ""

    def __init__(
        self,
        directory: Path,
        space: Space,
        pid: int | None = None,
        *,
        takeover_grace_s: float = 60.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Create `directory` (private); slots that a killed runtime left are kept as journals of their programs.

        Args:
            directory: of the journals.
            space: the bytes that they may take.
            pid: names this store's slots: its process; None: this one.
            takeover_grace_s: how long a journal of a program without a runtime is kept for the next one at least.
            now: seconds since the epoch.

        Raises:
            PermissionDenied: somebody else owns the directory.
        """
        self._directory = make_private(directory)
        self.name = f"files {_identity(directory / 'store-id')}"
        self._pid = os.getpid() if pid is None else pid
        self._space = space
        self._listener: Listener
        self._free: list[_Slot] = []
        self._used: dict[str, _Slot] = {}
        self._made = 0
        self._anew: set[str] = set()  # whose next part takes the journal's place
        self._dead: dict[str, str] = {}  # the programs of slots of other runtimes that are gone, by the slots' names
        self._kept = KeptFiles(space, takeover_grace_s, now)
        self._takeovers = Takeovers(directory / "takeovers")
        with self._takeovers.lock(alone=True):
            self._takeovers.hear()
            for path in sorted(directory.glob("*.journal"), key=lambda path: path.stat().st_mtime):
                self._kept.find(path)
            self.leftovers = [kept for slot in sorted(directory.glob("slot-*")) if (kept := self._keep_leftover(slot))]
            self._takeovers.tidy(self._programs)

    async def run(self) -> None:
        """Return at once: `append` does the work."""

    def listen(self, listener: Listener) -> None:
        """Tell `listener` from now on how far turns are stored."""
        self._listener = listener

    def open(self, program_id: str) -> None:
        """Take a slot for a new program.

        Raises:
            DiskFull: no file can be made.
        """
        self._used[program_id] = self._any_slot()

    def begin_anew(self, program_id: str) -> None:
        """Let the program's next part take the place of its journal, which stays until then."""
        if program_id in self._used:
            self._anew.add(program_id)

    def append(self, turn: Turn) -> None:
        """Write a turn, one `write` a program."""
        with self._takeovers.lock(alone=False):
            self._hear_of_takeovers()
            for part in turn.parts:
                self._append(part)
        self._listener.stored(turn.number)

    def _append(self, part: Part) -> None:
        slot = self._used.get(part.program_id)
        if slot is None:
            return
        if self._takeovers.epoch(part.program_id) > part.epoch:
            self._listener.refused(part.program_id, Superseded(program=part.program_id))
            return
        data = part.data
        try:
            if slot.at and os.fstat(slot.fd).st_size < slot.at:
                detail = "its file is shorter than what was written"
                self._listener.refused(part.program_id, JournalUnavailable(detail=detail))
                return
            if part.program_id in self._anew:
                self._replace(part.program_id, data)
            else:
                _write(slot, data)
        except DiskFull as e:
            self._listener.refused(part.program_id, e)
        except OSError as e:
            self._listener.refused(part.program_id, DiskFull(path=slot.path.name, detail=e.strerror))

    def _replace(self, program_id: str, data: bytes) -> None:
        """Put a whole journal in the place of a program's slot."""
        slot, fresh = self._used[program_id], self._any_slot()
        try:
            _write_whole(fresh, data)
            fresh.path.rename(slot.path)
        except OSError:
            self._clear(fresh)
            raise
        os.close(slot.fd)
        fresh.path, fresh.epoch = slot.path, slot.epoch
        self._used[program_id] = fresh
        self._anew.discard(program_id)

    def drop(self, program_id: str) -> None:
        """No-op: all that was appended is stored."""

    def close(self, program_id: str, *, keep: bool) -> None:
        """Rename an ended program's journal to `<program id>.journal`, or write over its slot."""
        self._close(program_id, keep=keep, waits=False)

    def _close(self, program_id: str, *, keep: bool, waits: bool) -> None:
        slot = self._used.pop(program_id)
        self._anew.discard(program_id)
        if keep:
            with contextlib.suppress(OSError):  # a full disk keeps what fits
                os.ftruncate(slot.fd, slot.at)
            os.close(slot.fd)
            slot.path.rename(self.path(program_id))
            self._kept.add(self.path(program_id), slot.at, waits=waits)
            return
        self._clear(slot)

    def leave(self, program_id: str, epoch: int) -> None:
        """Keep a journal for its next owner, or drop it if that has copied it."""
        if program_id not in self._used or self._used[program_id].epoch > epoch:
            return
        with self._takeovers.lock(alone=False):
            self._hear_of_takeovers()
            self._close(program_id, keep=self._takeovers.epoch(program_id) <= epoch, waits=True)

    def forget(self, program_id: str) -> None:
        """No-op: what is still there is kept for a replay."""

    def _clear(self, slot: _Slot) -> None:
        try:
            if slot.at:
                os.pwrite(slot.fd, bytes(len(MAGIC)), 0)
            if slot.at > _BIG_SLOT_BYTES:
                os.ftruncate(slot.fd, 0)
        except OSError:  # a full disk: give the file up, the next program gets another
            os.close(slot.fd)
            slot.path.unlink(missing_ok=True)
        else:
            slot.at, slot.epoch = 0, FIRST_EPOCH
            self._free.append(slot)

    # ---- other owners -----------------------------------------------------------------------------------------

    async def take_over(self, program_id: str, epoch: int) -> StoredJournal:
        """Become the owner of a program with `epoch`, which must be higher than its owner's; copy its journal.

        Raises:
            UnknownProgram: the directory has no such journal.
            Superseded: somebody else has become the owner with this epoch or a later one.
            DiskFull: the journal can't be copied.
        """
        with self._takeovers.lock(alone=True):
            self._hear_of_takeovers()
            if self._takeovers.epoch(program_id) >= epoch:
                raise Superseded(program=program_id)
            path, data = self._find(program_id)
            slot = self._any_slot()
            try:
                _write_whole(slot, data)
                self._takeovers.add(program_id, epoch)
            except OSError as e:
                self._clear(slot)
                raise DiskFull(path=slot.path.name, detail=e.strerror) from e
            before = self._used.get(program_id)  # this runtime was its owner before
            slot.epoch = epoch
            self._used[program_id] = slot
            self._anew.discard(program_id)
            if before is not None:
                self._clear(before)
            self._kept.delete(self.path(program_id))
            if path.name in self._dead:
                path.unlink(missing_ok=True)
            self._takeovers.tidy(self._programs)
        return StoredJournal(epoch, data)

    async def read(self, program_id: str) -> StoredJournal:
        """Return a program's journal.

        Raises:
            UnknownProgram: the directory has no such journal.
        """
        with self._takeovers.lock(alone=False):
            self._hear_of_takeovers()
            return StoredJournal(self._takeovers.epoch(program_id), self._find(program_id)[1])

    async def live(self) -> list[LiveJournal]:
        """Return the journals that runtimes which are gone have left. Of ended programs, these are ends not told."""
        kept = self._kept.waiting(self._directory)
        untold = set(self.leftovers) | {name for slot, name in self._others().items() if slot in self._dead}
        untold |= {path.stem for path, waits in kept.items() if waits}
        left = untold | {path.stem for path in kept}
        journals: list[LiveJournal] = []
        for program_id in left - self._used.keys():
            with contextlib.suppress(UnknownProgram), self._takeovers.lock(alone=False):
                self._hear_of_takeovers()
                parsed = parse_journal(self._find(program_id)[1], program_id)
                if parsed.is_live or (program_id in untold and parsed.header.can_run_again):
                    journals.append(LiveJournal(self._takeovers.epoch(program_id), parsed.header))
            await asyncio.sleep(0)  # programs need the loop, too
        return journals

    async def delete(self, program_ids: Iterable[str]) -> None:
        """Delete kept journals."""
        for program_id in program_ids:
            path = self.path(program_id)
            if path in self._kept:
                self._kept.delete(path)

    def _find(self, program_id: str) -> tuple[Path, bytes]:
        """Return the longest journal of a program: earlier owners may have left copies with fewer records.

        Raises:
            UnknownProgram: there is none.
        """
        for _ in range(2):
            found: list[tuple[tuple[int, int], Path, bytes]] = []
            for path in self._places(program_id):
                with contextlib.suppress(OSError, InvalidSource, ValueError, KeyError, TypeError):
                    data = path.read_bytes()
                    parsed = parse_journal(data, path.name)
                    if parsed.header.program_id == program_id:
                        found.append((_age(parsed), path, data[: parsed.size]))
            if found:
                return max(found)[1:]
            self._dead.clear()  # whose runtime seemed to be gone may have used the slot for another program
        raise UnknownProgram(program=program_id)

    def _places(self, program_id: str) -> Iterator[Path]:
        """Yield the files in which a program's journal may be."""
        yield self.path(program_id)
        if program_id in self._used:
            yield self._used[program_id].path
        yield from [self._directory / name for name, held in self._others().items() if held == program_id]

    def _others(self) -> dict[str, str]:
        """Return the program of each slot of other runtimes. Slots of those that are gone are read once."""
        own, others, dead = f"slot-{self._pid}-", dict[str, str](), dict[str, str]()
        is_gone: dict[str, bool] = {}
        for name in os.listdir(self._directory):  # noqa: PTH208 - a Path for each of thousands takes longer
            if not name.startswith("slot-") or name.startswith(own):
                continue
            pid = name.split("-")[1]
            if pid not in is_gone:
                is_gone[pid] = not Path("/proc", pid).exists()
            others[name] = self._dead[name] if name in self._dead else _program_of(self._directory / name)
            if is_gone[pid]:
                dead[name] = others[name]
        self._dead = dead
        return others

    def _programs(self) -> set[str]:
        """Return the programs whose journals are in the directory."""
        kept = {path.stem for path in self._directory.glob("*.journal")}
        return kept | set(self._used) | set(self._others().values())

    def _hear_of_takeovers(self) -> None:
        for program_id in self._takeovers.hear():
            self._kept.let_go(self.path(program_id))

    # ---- files --------------------------------------------------------------------------------------------------

    def path(self, program_id: str) -> Path:
        """Return the path of a kept journal."""
        return self._directory / f"{program_id}.journal"

    def close_all(self) -> None:
        """Delete empty slots as the runtime stops; slots in use stay for their programs."""
        for slot in self._free:
            os.close(slot.fd)
            slot.path.unlink(missing_ok=True)
        for slot in self._used.values():
            os.close(slot.fd)
        self._free, self._used = [], {}
        self._takeovers.close()

    def _any_slot(self) -> _Slot:
        return self._free.pop() if self._free else self._new_slot()

    def _new_slot(self) -> _Slot:
        path = self._directory / f"slot-{self._pid}-{self._made}"
        self._made += 1
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as e:
            raise DiskFull(path=path.name, detail=e.strerror) from e
        return _Slot(fd, path)

    def _keep_leftover(self, slot: Path) -> str | None:
        pid = slot.name.split("-")[1]
        if pid != str(self._pid) and Path("/proc", pid).exists():
            return None  # another runtime's, which is alive
        try:
            parsed = parse_journal(slot.read_bytes(), slot.name)
            os.truncate(slot, parsed.size)
        except (InvalidSource, ValueError, KeyError, TypeError):
            slot.unlink(missing_ok=True)  # empty, or torn before its program did anything
            return None
        path = self.path(parsed.header.program_id)
        if path in self._kept:  # two owners left copies of one journal: that of the later one has more
            with contextlib.suppress(InvalidSource, ValueError, KeyError, TypeError):
                if _age(parse_journal(path.read_bytes(), path.name)) >= _age(parsed):
                    slot.unlink()
                    return None
        slot.rename(path)
        self._kept.add(path, parsed.size, waits=True)
        return parsed.header.program_id


def _write(slot: _Slot, data: bytes) -> None:
    while data:
        written = os.pwrite(slot.fd, data, slot.at)
        slot.at += written
        data = data[written:]


def _write_whole(slot: _Slot, data: bytes) -> None:
    """Write a whole journal to an empty slot, so that a runtime killed meanwhile leaves none there."""
    slot.at = len(MAGIC)
    _write(slot, data[len(MAGIC) :])
    os.pwrite(slot.fd, data[: len(MAGIC)], 0)


def _age(parsed: ParsedJournal) -> tuple[int, int]:
    """Return what is greater for a later copy of one program's journal: the start of its run, and its size."""
    return parsed.header.start_ns, parsed.size


def _program_of(path: Path) -> str:
    """Return the program that a file's first bytes name, or "" if these begin no journal."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        beginning = file.read(128)
        found = _PROGRAM_ID.search(beginning)
        if beginning.startswith(MAGIC) and found is not None:
            return found[1].decode(errors="replace")
    return ""


def _identity(path: Path) -> str:
    """Return the identity of a directory, which the first runtime that uses it chooses."""
    with contextlib.suppress(FileExistsError):
        fresh = path.with_name(f"{path.name}-{os.getpid()}")
        fresh.write_text(uuid.uuid4().hex)
        try:
            os.link(fresh, path)  # whole, or not at all
        finally:
            fresh.unlink()
    return path.read_text()
