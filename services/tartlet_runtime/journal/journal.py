"""The journal of one running program: everything that it was told, which determines what it asks for.

Records are collected here until the end of the turn, when `Journals` stores those of all programs at once, before
anything that follows from them leaves the process.
"""

from __future__ import annotations

from tartlet_common.errors.registry import JournalFull
from tartlet_runtime.journal.records import RECORD_BYTES, CommandDigest, Kind, crc_of, encode_record
from tartlet_runtime.journal.space import Space
from tartlet_runtime.journal.store import FIRST_EPOCH, Part


class Journal:
    """What one program was told, and a running digest of what it asked for."""

    __slots__ = (
        "_begun",
        "_bytes",
        "_crc",
        "_limit_bytes",
        "_pending",
        "_pending_bytes",
        "_space",
        "digest",
        "epoch",
        "program_id",
    )

    def __init__(
        self,
        program_id: str,
        header: bytes,
        limit_bytes: int,
        space: Space,
        *,
        epoch: int = FIRST_EPOCH,
        stored_bytes: int = 0,
    ) -> None:
        """Begin a journal with its encoded header, or continue one of which `stored_bytes` are stored already.

        Raises:
            JournalFull: the header alone doesn't fit the program's limit.
        """
        if len(header) > limit_bytes:
            raise JournalFull(limit=limit_bytes)
        self.program_id = program_id
        self.epoch = epoch
        self._space = space
        self._limit_bytes = limit_bytes
        self._begun = stored_bytes > 0
        self._pending = [] if self._begun else [header]
        self._pending_bytes = sum(map(len, self._pending))
        space.pending_bytes += self._pending_bytes
        self._bytes = stored_bytes or len(header)
        self._crc = crc_of(header)
        self.digest = CommandDigest()

    @property
    def counted_bytes(self) -> int:
        """Bytes that it has taken of the space: stored, or about to be."""
        return self._bytes

    @property
    def pending(self) -> bool:
        """Whether there is something to store."""
        return bool(self._pending)

    def append(
        self,
        clock_ns: int,
        data: bytes,
        from_control: int = 0,
        read_to: int = 0,
        kind: int = Kind.DELIVERY,
        digest: bytes = b"",
    ) -> None:
        """Record a delivery before the guest sees it, or something else that the program was told.

        Args:
            clock_ns: the guest's time since its start, nanoseconds.
            data: what `kind` says.
            from_control: how many of control's records the guest was given so far.
            read_to: the offset up to which clients have read the program's output.
            kind: what the record tells.
            digest: of the guest's commands so far, if the record is another journal's.

        Raises:
            JournalFull: it doesn't fit the program's limit, or the space of all journals.
        """
        size = RECORD_BYTES + len(data)
        if kind != Kind.END:  # which always fits: otherwise a program that ends for a full journal would live again
            if self._bytes + size > self._limit_bytes:
                raise JournalFull(limit=self._limit_bytes)
            self._space.add(size, self._bytes + size)
            self._bytes += size
        digest = digest or self.digest.value()
        self._pending.append(encode_record(self._crc, clock_ns, digest, data, from_control, read_to, kind))
        self._pending_bytes += size
        self._space.pending_bytes += size

    def discard(self) -> None:
        """Forget what is pending."""
        self._pending.clear()
        self._space.pending_bytes -= self._pending_bytes
        self._pending_bytes = 0

    def take(self) -> Part | None:
        """Remove what is pending and return it, or None if nothing is."""
        pending = self._pending
        if not pending:
            return None
        data = pending[0] if len(pending) == 1 else b"".join(pending)
        self.discard()
        begins, self._begun = not self._begun, True
        return Part(self.program_id, self.epoch, data, begins)
