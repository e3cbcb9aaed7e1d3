"""Which consecutive commands of one queue may share a batch (vertical batching: Pie 5.2).

A batch reads embeds and token slots as they were before it, and the worker makes the K/V of its commands visible in
command order, layer by layer. So a later forward may read pages that an earlier one of its batch writes, but no
embed; and nothing may be written twice, or written after an earlier command read it. Ids are virtual: within one
program they name physical ones uniquely.

What the batch holds of the queue is kept as sets, so that a queue with a thousand commands is gone through once.
"""

from __future__ import annotations

from typing import Protocol, cast

from tartlet_control.calls.commands import (
    COPY_KVPAGE,
    EMBED_TXT,
    FORWARD,
    GET_NEXT_DIST,
    MASK_KVPAGE,
    SAMPLE,
    Command,
    CopyKvPage,
    EmbedTxt,
    Forward,
    MaskKvPage,
    Sample,
)


class Taken(Protocol):
    """The commands of one queue, of one kind, that a batch has taken so far, in order."""

    def add(self, command: Command) -> None:
        """One more is in the batch."""

    def conflicts(self, candidate: Command) -> bool:
        """Whether `candidate` must wait for this batch."""


def taken_of(kind: int) -> Taken:
    """An empty record for commands of `kind`."""
    return _TAKEN[kind]()


class _EmbedTxts:
    __slots__ = ("_embeds",)

    def __init__(self) -> None:
        self._embeds: set[int] = set()

    def add(self, command: Command) -> None:
        self._embeds.update(cast("EmbedTxt", command).embeds)

    def conflicts(self, candidate: Command) -> bool:
        return not self._embeds.isdisjoint(cast("EmbedTxt", candidate).embeds)


class _Forwards:
    __slots__ = ("_reads", "_slots", "_writes")

    def __init__(self) -> None:
        self._reads: set[int] = set()  # embeds
        self._writes: set[int] = set()
        self._slots: dict[int, int] = {}  # page -> bits of the token slots that are written

    def add(self, command: Command) -> None:
        c = cast("Forward", command)
        self._reads.update(c.iemb)
        self._writes.update(c.oemb)
        for page, bits in _written(c).items():
            self._slots[page] = self._slots.get(page, 0) | bits

    def conflicts(self, candidate: Command) -> bool:
        c, writes = cast("Forward", candidate), self._writes
        if not (writes.isdisjoint(c.iemb) and writes.isdisjoint(c.oemb) and self._reads.isdisjoint(c.oemb)):
            return True
        return any(self._slots.get(page, 0) & bits for page, bits in _written(c).items())


def _written(c: Forward) -> dict[int, int]:
    """Page -> bits of the token slots that `c` writes there."""
    if not c.okv:
        return {}
    size = c.queue.spec.page_size
    start, end = c.okv_offset, c.okv_offset + c.tokens
    return {
        c.okv[i]: (1 << min(end - i * size, size)) - (1 << max(start - i * size, 0))
        for i in range(start // size, (end - 1) // size + 1)
    }


class _CopyKvPages:
    __slots__ = ("_touched", "_written")

    def __init__(self) -> None:
        self._touched: set[int] = set()
        self._written: set[int] = set()

    def add(self, command: Command) -> None:
        c = cast("CopyKvPage", command)
        self._touched.update((c.src, c.dst))
        self._written.add(c.dst)

    def conflicts(self, candidate: Command) -> bool:
        c = cast("CopyKvPage", candidate)
        return c.dst in self._touched or c.src in self._written


class _MaskKvPages:
    __slots__ = ("_pages",)

    def __init__(self) -> None:
        self._pages: set[int] = set()

    def add(self, command: Command) -> None:
        self._pages.add(cast("MaskKvPage", command).page)

    def conflicts(self, candidate: Command) -> bool:
        return cast("MaskKvPage", candidate).page in self._pages


class _Samples:
    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: set[int] = set()

    def add(self, command: Command) -> None:
        self._slots.add(cast("Sample", command).slot)

    def conflicts(self, candidate: Command) -> bool:
        return cast("Sample", candidate).slot in self._slots


class _GetNextDists:
    """They only read."""

    __slots__ = ()

    def add(self, command: Command) -> None:
        """Nothing to keep."""

    def conflicts(self, candidate: Command) -> bool:
        return False


_TAKEN: dict[int, type[Taken]] = {
    EMBED_TXT: _EmbedTxts,
    FORWARD: _Forwards,
    COPY_KVPAGE: _CopyKvPages,
    MASK_KVPAGE: _MaskKvPages,
    GET_NEXT_DIST: _GetNextDists,
    SAMPLE: _Samples,
}
