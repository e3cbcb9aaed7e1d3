"""Commands as control holds them between arrival and dispatch.

Ids in a command are virtual: they are translated when it is dispatched, in the order of its queue, so what an earlier
command of the queue freed can't be reached (and pages change hands safely). Lists are plain Python lists: for the
handful of ids a decode step names, they cost a tenth of a numpy array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from tartlet_common.engine.step import Kind
from tartlet_common.errors.registry import TartletError

if TYPE_CHECKING:
    from tartlet_control.tables.programs import CommandQueue

CONTROL: Final = 0
"""`Command.kind` of what control itself executes when it reaches the head of its queue."""
EMBED_TXT: Final = int(Kind.EMBED_TXT)
FORWARD: Final = int(Kind.FORWARD)
COPY_KVPAGE: Final = int(Kind.COPY_KVPAGE)
MASK_KVPAGE: Final = int(Kind.MASK_KVPAGE)
GET_NEXT_DIST: Final = int(Kind.GET_NEXT_DIST)
SAMPLE: Final = int(Kind.SAMPLE)


class Command:
    """What all commands share. `size` is its share of a step's frame in bytes, `tokens` of a batch's tokens."""

    __slots__ = ("arrived", "awaited", "queue", "size", "ticket", "tokens")
    kind: ClassVar[int] = CONTROL
    keeps: ClassVar[bool] = False  # takes effect although cancelled (alloc, dealloc)

    def __init__(self, queue: CommandQueue, ticket: int, awaited: int, arrived: float) -> None:
        self.queue = queue
        self.ticket = ticket
        self.awaited = awaited
        self.arrived = arrived
        self.tokens = 0
        self.size = 32


class Synchronize(Command):
    """Answered when all earlier commands of the queue have ended."""

    __slots__ = ()


class Reset(Command):
    """Ends the poisoning of the queue."""

    __slots__ = ()


class Faulty(Command):
    """A record that couldn't become a command: it fails when its turn comes, as any other would."""

    __slots__ = ("error",)

    def __init__(self, queue: CommandQueue, ticket: int, awaited: int, arrived: float, error: TartletError) -> None:
        super().__init__(queue, ticket, awaited, arrived)
        self.error = error


class Alloc(Command):
    """Take `ids` (virtual) from pool `pool`."""

    __slots__ = ("ids", "pool")
    keeps = True

    def __init__(
        self, queue: CommandQueue, ticket: int, awaited: int, arrived: float, pool: int, ids: list[int]
    ) -> None:
        super().__init__(queue, ticket, awaited, arrived)
        self.pool = pool
        self.ids = ids
        self.size = 32 + 4 * len(ids)


class Dealloc(Alloc):
    """Give `ids` (virtual) back to pool `pool`."""

    __slots__ = ()


class EmbedTxt(Command):
    """Embed `sources` (token ids or, `from_slots`, virtual slots) at `positions` into `embeds`."""

    __slots__ = ("embeds", "from_slots", "positions", "sources")
    kind = EMBED_TXT

    def __init__(
        self, queue: CommandQueue, ticket: int, awaited: int, arrived: float, words: list[int], from_slots: int
    ) -> None:
        self.queue = queue
        self.ticket = ticket
        self.awaited = awaited
        self.arrived = arrived
        n = len(words) // 3
        self.tokens = n
        self.size = 32 + 16 * n
        self.embeds = words[:n]
        self.sources = words[n : 2 * n]
        self.positions = words[2 * n :]
        self.from_slots = from_slots


class Forward(Command):
    """`forward`, as docs/abi.md has it; `mask` holds packed rows or is empty."""

    __slots__ = ("iemb", "ikv", "mask", "oemb", "okv", "okv_offset")
    kind = FORWARD

    def __init__(
        self,
        queue: CommandQueue,
        ticket: int,
        awaited: int,
        arrived: float,
        lists: tuple[list[int], list[int], list[int], list[int]],
        okv_offset: int,
        mask: bytes,
    ) -> None:
        self.queue = queue
        self.ticket = ticket
        self.awaited = awaited
        self.arrived = arrived
        self.ikv, self.iemb, self.okv, self.oemb = lists
        self.tokens = len(self.iemb)
        self.okv_offset = okv_offset
        self.mask = mask
        self.size = 64 + 4 * (len(self.ikv) + self.tokens + len(self.okv) + len(self.oemb)) + len(mask)


class CopyKvPage(Command):
    """Copy `length` tokens between two pages."""

    __slots__ = ("dst", "dst_offset", "length", "src", "src_offset")
    kind = COPY_KVPAGE

    def __init__(
        self,
        queue: CommandQueue,
        ticket: int,
        awaited: int,
        arrived: float,
        pages: tuple[int, int],
        span: tuple[int, int, int],
    ) -> None:
        super().__init__(queue, ticket, awaited, arrived)
        self.src, self.dst = pages
        self.src_offset, self.dst_offset, self.length = span


class MaskKvPage(Command):
    """Set the mask bits of a page."""

    __slots__ = ("bits", "page")
    kind = MASK_KVPAGE

    def __init__(self, queue: CommandQueue, ticket: int, awaited: int, arrived: float, page: int, bits: int) -> None:
        super().__init__(queue, ticket, awaited, arrived)
        self.page = page
        self.bits = bits


class GetNextDist(Command):
    """Top-K distributions after `embeds`."""

    __slots__ = ("embeds", "top_k")
    kind = GET_NEXT_DIST

    def __init__(
        self, queue: CommandQueue, ticket: int, awaited: int, arrived: float, embeds: list[int], top_k: int
    ) -> None:
        super().__init__(queue, ticket, awaited, arrived)
        self.embeds = embeds
        self.top_k = top_k
        self.tokens = len(embeds)  # each takes a row of logits on the engine
        self.size = 32 + 8 * top_k * len(embeds)  # of the answer, which is larger than the question


class Sample(Command):
    """Sample a token from `embed` into `slot`; `params` is abi.SAMPLE_PARAMS, `stop` u32 stop tokens."""

    __slots__ = ("embed", "params", "slot", "stop")
    kind = SAMPLE

    def __init__(
        self,
        queue: CommandQueue,
        ticket: int,
        awaited: int,
        arrived: float,
        embed: int,
        slot: int,
        params: bytes,
        stop: bytes,
    ) -> None:
        self.queue = queue
        self.ticket = ticket
        self.awaited = awaited
        self.arrived = arrived
        self.tokens = 0
        self.size = 64 + len(stop)
        self.embed = embed
        self.slot = slot
        self.params = params
        self.stop = stop


WorkerCommand = EmbedTxt | Forward | CopyKvPage | MaskKvPage | GetNextDist | Sample
