"""Journals as files of one directory, which outlive this process, but not a power cut: `write`, no fsync.

Files are slots that are written over: making and unlinking one for each of 896 launches would cost more than the
launches (as would truncating them). Slots are named by the process that uses them; `FileStore.leftovers` names what a
killed runtime left. Owners' epochs stand in the file `takeovers`, one line for each time that a program was taken over.
Whoever takes a program over holds the lock of that file alone, and whoever appends holds it together with others.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tartlet_common.config.paths import make_private
from tartlet_common.errors.registry import DiskFull, InvalidSource, JournalUnavailable, Superseded, UnknownProgram
from tartlet_runtime.journal.records import MAGIC, ParsedJournal, parse_journal
from tartlet_runtime.journal.space import Space
from tartlet_runtime.journal.store import FIRST_EPOCH, Listener, Part, StoredJournal, Turn

_BIG_SLOT_BYTES = 1 << 20  # a larger one gives its space back
MAX_KEPT = 1000
"""Journals kept of programs that failed (or of all, if so configured); the oldest go first."""


@dataclass(slots=True)
class _Slot:
    fd: int
    path: Path
    at: int = 0  # bytes written


class FileStore:
    """The directory of a runtime's journals: slots in use, slots to write over, and journals that were kept."""

    immediate = True
    unstored_bytes = 0
    trouble = ""

    def __init__(self, directory: Path, space: Space, pid: int | None = None) -> None:
        """Create `directory` (private); slots that a killed runtime left are kept as journals of their programs.

        Args:
            directory: of the journals.
            space: the bytes that they may take.
            pid: names this store's slots: its process; None: this one.

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
        self._takeovers = os.open(directory / "takeovers", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._read_bytes = 0  # of `takeovers`
        self._epochs: dict[str, int] = {}  # of programs that were taken over
        space.make_room = self._make_room
        self._kept = sorted(directory.glob("*.journal"), key=lambda path: path.stat().st_mtime)
        self._kept_sizes = {path: path.stat().st_size for path in self._kept}
        space.used_bytes += sum(self._kept_sizes.values())
        self.leftovers = [kept for slot in sorted(directory.glob("slot-*")) if (kept := self._keep_leftover(slot))]

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
        self._used[program_id] = self._free.pop() if self._free else self._new_slot()

    def begin_anew(self, program_id: str) -> None:
        """Write over the program's slot from its beginning on."""
        slot = self._used.get(program_id)
        if slot is not None:
            self._clear(self._used.pop(program_id))
            self.open(program_id)

    def append(self, turn: Turn) -> None:
        """Write a turn, one `write` a program."""
        with self._lock(fcntl.LOCK_SH):
            self._hear_of_takeovers()
            for part in turn.parts:
                self._append(part)
        self._listener.stored(turn.number)

    def _append(self, part: Part) -> None:
        slot = self._used.get(part.program_id)
        if slot is None:
            return
        if self._epochs.get(part.program_id, FIRST_EPOCH) > part.epoch:
            self._listener.refused(part.program_id, Superseded(program=part.program_id))
            return
        data = part.data
        try:
            if slot.at and os.fstat(slot.fd).st_size < slot.at:
                detail = "its file is shorter than what was written"
                self._listener.refused(part.program_id, JournalUnavailable(detail=detail))
                return
            while data:
                written = os.pwrite(slot.fd, data, slot.at)
                slot.at += written
                data = data[written:]
        except OSError as e:
            self._listener.refused(part.program_id, DiskFull(path=slot.path.name, detail=e.strerror))

    def drop(self, program_id: str) -> None:
        """No-op: all that was appended is stored."""

    def close(self, program_id: str, *, keep: bool) -> None:
        """Rename an ended program's journal to `<program id>.journal`, or write over its slot."""
        slot = self._used.pop(program_id)
        if keep:
            with contextlib.suppress(OSError):  # a full disk keeps what fits
                os.ftruncate(slot.fd, slot.at)
            os.close(slot.fd)
            slot.path.rename(self.path(program_id))
            self._keep(self.path(program_id), slot.at)
            return
        self._clear(slot)

    def leave(self, program_id: str, epoch: int) -> None:
        """Keep a journal for its next owner, or drop it if that has copied it."""
        if program_id not in self._used:
            return
        with self._lock(fcntl.LOCK_SH):
            self._hear_of_takeovers()
            self.close(program_id, keep=self._epochs.get(program_id, FIRST_EPOCH) <= epoch)

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
            slot.at = 0
            self._free.append(slot)

    # ---- other owners -----------------------------------------------------------------------------------------

    async def take_over(self, program_id: str, epoch: int) -> StoredJournal:
        """Become the owner of a program with `epoch`, which must be higher than its owner's; copy its journal.

        Raises:
            UnknownProgram: the directory has no such journal.
            Superseded: somebody else has become the owner with this epoch or a later one.
            DiskFull: the journal can't be copied.
        """
        with self._lock(fcntl.LOCK_EX):
            self._hear_of_takeovers()
            if self._epochs.get(program_id, FIRST_EPOCH) >= epoch:
                raise Superseded(program=program_id)
            path, parsed = self._find(program_id)
            data = path.read_bytes()[: parsed.size]
            if program_id in self._used:  # this runtime was its owner before
                self._clear(self._used.pop(program_id))
            self.open(program_id)
            slot = self._used[program_id]
            try:
                slot.at = os.pwrite(slot.fd, data, 0)
                os.write(self._takeovers, f"{program_id} {epoch}\n".encode())
            except OSError as e:
                self._clear(self._used.pop(program_id))
                raise DiskFull(path=slot.path.name, detail=e.strerror) from e
            if path in self._kept_sizes:
                self._forget(path)
        return StoredJournal(epoch, data)

    async def read(self, program_id: str) -> StoredJournal:
        """Return a program's journal.

        Raises:
            UnknownProgram: the directory has no such journal.
        """
        with self._lock(fcntl.LOCK_SH):
            self._hear_of_takeovers()
            path, parsed = self._find(program_id)
            return StoredJournal(self._epochs.get(program_id, FIRST_EPOCH), path.read_bytes()[: parsed.size])

    async def delete(self, program_ids: Iterable[str]) -> None:
        """Delete kept journals."""
        for program_id in program_ids:
            path = self.path(program_id)
            if path in self._kept_sizes:
                self._forget(path)

    def _find(self, program_id: str) -> tuple[Path, ParsedJournal]:
        """Return the longest journal of a program: earlier owners may have left copies with fewer records.

        Raises:
            UnknownProgram: there is none.
        """
        found: list[tuple[Path, ParsedJournal]] = []
        for path in (self.path(program_id), *self._directory.glob("slot-*")):
            with contextlib.suppress(OSError, InvalidSource, ValueError, KeyError, TypeError):
                if program_id.encode() not in _beginning(path):
                    continue
                parsed = parse_journal(path.read_bytes(), path.name)
                if parsed.header.program_id == program_id:
                    found.append((path, parsed))
        if not found:
            raise UnknownProgram(program=program_id)
        return max(found, key=lambda one: (one[1].header.start_ns, one[1].size))

    @contextlib.contextmanager
    def _lock(self, how: int) -> Iterator[None]:
        fcntl.flock(self._takeovers, how)
        try:
            yield
        finally:
            fcntl.flock(self._takeovers, fcntl.LOCK_UN)

    def _hear_of_takeovers(self) -> None:
        size = os.fstat(self._takeovers).st_size
        if size > self._read_bytes:
            lines = os.pread(self._takeovers, size - self._read_bytes, self._read_bytes).decode()
            self._read_bytes = size
            for line in lines.splitlines():
                program_id, epoch = line.split()
                self._epochs[program_id] = int(epoch)

    # ---- kept journals ------------------------------------------------------------------------------------------

    def _keep(self, path: Path, size: int) -> None:
        self._kept.append(path)
        self._kept_sizes[path] = size
        self._space.used_bytes += size
        while len(self._kept) > MAX_KEPT:
            self._forget(self._kept[0])
        self._make_room()

    def _make_room(self) -> None:
        while self._kept and self._space.used_bytes > self._space.limit_bytes:
            self._forget(self._kept[0])

    def _forget(self, path: Path) -> None:
        self._kept.remove(path)
        self._space.used_bytes -= self._kept_sizes.pop(path)
        path.unlink(missing_ok=True)

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
        os.close(self._takeovers)

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
        if path in self._kept_sizes:  # two owners left copies of one journal: that of the later one has more
            if self._kept_sizes[path] >= parsed.size:
                slot.unlink()
                return None
            self._forget(path)
        slot.rename(path)
        self._keep(path, parsed.size)
        return parsed.header.program_id


def _beginning(path: Path) -> bytes:
    """Return the first bytes of a file, in which a journal's header names its program."""
    with path.open("rb") as file:
        return file.read(128)


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
