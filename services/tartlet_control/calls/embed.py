"""The call `embed_txt`: tokens, or token slots that `sample` has written, become embeds at positions."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from tartlet_common.abi import Op, Record
from tartlet_common.engine.step import EmbedTxt as EmbedTxtBatch
from tartlet_common.engine.step import Kind
from tartlet_common.errors.registry import ContextTooLong, InvalidArgument, MalformedSubmission
from tartlet_control.calls.base import MAX_TOKENS, EngineCall, check_distinct, i32, u32
from tartlet_control.tables.ledger import EMBEDS, SLOTS
from tartlet_control.tables.programs import Command, CommandQueue, Held, ProgramState


class EmbedTxt(Command):
    """Embeds `sources` (token ids or, `from_slots`, virtual slots) at `positions` into `embeds`."""

    __slots__ = ("embeds", "from_slots", "looked", "positions", "sources")
    kind = int(Kind.EMBED_TXT)

    def __init__(self, queue: CommandQueue, record: Record, arrived: float, words: list[int]) -> None:
        """Take the payload's `words`: n embeds, n sources, n positions."""
        super().__init__(queue, record, arrived)
        n = len(words) // 3
        self.tokens = n
        self.size = 32 + 16 * n
        self.embeds = words[:n]
        self.sources = words[n : 2 * n]
        self.positions = words[2 * n :]
        self.from_slots = record.b
        self.looked = False  # whether the engine's prefixes were asked for its tokens


def parse_embed_txt(queue: CommandQueue, record: Record, payload: memoryview, arrived: float) -> Command:
    """Parse `embed_txt`: the tokens and positions exist in the model."""
    n = record.a
    if n == 0 or n > MAX_TOKENS:
        raise InvalidArgument(argument="tokens", detail=f"{n} in one call, allowed are 1 to {MAX_TOKENS}")
    if len(payload) != 12 * n:
        raise MalformedSubmission(detail=f"embed_txt of {n} tokens needs {12 * n} payload bytes, not {len(payload)}")
    if record.b > 1:
        raise InvalidArgument(argument="source", detail=f"{record.b} is neither 0 (tokens) nor 1 (slots)")
    command = EmbedTxt(queue, record, arrived, payload.cast("I").tolist())
    spec = queue.spec
    furthest = max(command.positions)
    if furthest >= spec.max_position:
        raise ContextTooLong(position=furthest, limit=spec.max_position)
    if not record.b and max(command.sources) >= spec.vocab_size:
        worst = max(command.sources)
        raise InvalidArgument(argument="token", detail=f"{worst} is not in the vocabulary of {spec.vocab_size}")
    if n > 1:
        check_distinct("embeds", command.embeds)
    return command


class EmbedTxtConflicts:
    """Embeds that the batch writes for one queue."""

    __slots__ = ("_embeds",)

    def __init__(self) -> None:
        self._embeds: set[int] = set()

    def add(self, command: EmbedTxt) -> None:
        """Record the embeds that a command writes."""
        self._embeds.update(command.embeds)

    def conflicts(self, candidate: EmbedTxt) -> bool:
        """Return whether an embed would be written twice."""
        return not self._embeds.isdisjoint(candidate.embeds)


class PackEmbedTxt:
    """Columns of an `embed_txt` batch."""

    def __init__(self) -> None:
        self.lanes: list[int] = []
        self._indptr = [0]
        self._embed: list[int] = []
        self._token: list[int] = []
        self._slot: list[int] = []
        self._position: list[int] = []

    def add(self, c: EmbedTxt, held: Held) -> None:
        """Add a command: a source is a token or a slot, and -1 in the other column."""
        embed, none = [*map(held[EMBEDS].__getitem__, c.embeds)], [-1] * c.tokens
        if c.from_slots:
            self._slot += [*map(held[SLOTS].__getitem__, c.sources)]
            self._token += none
        else:
            self._slot += none
            self._token += c.sources
        self._embed += embed
        self._position += c.positions
        self._indptr.append(len(self._embed))

    def finish(self) -> EmbedTxtBatch:
        """Return the batch."""
        return EmbedTxtBatch(
            u32(self.lanes), i32(self._indptr), i32(self._embed), i32(self._token), i32(self._slot),
            i32(self._position),
        )  # fmt: skip


def _names(c: EmbedTxt) -> Iterable[tuple[int, Iterable[int]]]:
    return ((EMBEDS, c.embeds), (SLOTS, c.sources if c.from_slots else ()))


def _count(program: ProgramState, c: EmbedTxt) -> None:
    """Count tokens that the program brought, not those that it sampled."""
    if not c.from_slots:
        program.input_tokens += c.tokens


EMBED_TXT: Final = EngineCall(
    Op.EMBED_TXT,
    Kind.EMBED_TXT,
    parse_embed_txt,
    EmbedTxtConflicts,
    PackEmbedTxt,
    names=_names,
    writes=attrgetter("embeds"),
    count=_count,
)

ENGINE_CALLS: Final = (EMBED_TXT,)
