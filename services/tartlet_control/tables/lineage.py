"""What a program's page tables, embeds and token slots hold on an engine, as far as its commands have settled.

A `Book` is plain data: `rebuild.notes` writes it and `rebuild.plan` reads it. A row of a table is an array of the
tokens in it, 4 bytes each, and tables that share a row share its array. So a prefix that many forks share is kept once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from tartlet_control.tables.grammars import MAX_TEXT_BYTES, Matcher

Row = array  # of "I": tokens of one row, from its first slot on
Token = tuple[int, int]
"""A token id and the position at which it was embedded."""
Output = tuple["Line", int, int]
"""The output of a forward: its table, the slot of its token, and the table's `writes` at that time."""
Ended = tuple[()]
"""The mark that a skipped command leaves."""
Lost = tuple[str]
"""Names the call whose result can't be made again."""
EmbedContent = Token | Output | Ended | Lost
ENDED: Final[Ended] = ()
_DIGEST_BYTES: Final = 16


class History:
    """The tokens by which penalties change the logits of a slot: those of a prompt, and those that were sampled."""

    __slots__ = ("output", "prompt")

    def __init__(self, prompt: array[int], output: array[int]) -> None:
        self.prompt = prompt
        self.output = output


SlotContent = tuple[int, int, History | None]
"""A token id, whether the slot is ended (0 or 1), and the slot's history."""


def root_of(*options: str) -> bytes:
    """Return the digest before the first row: of the tenant, and of all options under which rows are computed.

    Rows under different options have different digests, so no program takes over another tenant's rows.
    """
    return blake2b("\0".join(options).encode(), digest_size=_DIGEST_BYTES, person=b"tartlet-prefix").digest()


def chain(before: bytes, rows: Iterable[array[int]]) -> list[bytes]:
    """Return the digest of each row, whose digest includes all rows before it.

    Example:
        >>> first, second = array("I", [1, 2]), array("I", [3, 4])
        >>> root = root_of("a tenant")
        >>> chain(chain(root, [first])[0], [second]) == chain(root, [first, second])[1:]
        True
    """
    digests = []
    for row in rows:
        before = blake2b(row.tobytes(), digest_size=_DIGEST_BYTES, key=before).digest()
        digests.append(before)
    return digests


class Line:
    """What one page table holds: slot i holds token i % page_size of row i // page_size.

    Attributes:
        adapter: number of the LoRA adapter under which the plain slots were computed; 0 for none.
        length: slots up to the end of the last forward; what lies behind them is neither seen nor kept.
        plain: leading slots that were written in order, each by a forward without a mask that saw the slots before.
        shared: leading rows that another table has or had.
        under: number of the adapter of the last forward that wrote a slot which isn't plain.
        limit: the first slot that was hidden or dropped; None if none was.
        why: the call that wrote a slot which isn't plain.
        writes: counts the forwards that wrote over earlier slots.
    """

    __slots__ = ("_cuts", "_digests", "_starts", "adapter", "length", "limit", "plain", "queue_id", "rows", "shared",
                 "under", "why", "writes")  # fmt: skip

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        self.rows: list[array[int]] = []
        self.adapter = self.under = 0
        self.length = 0
        self.plain = 0
        self.limit: int | None = None
        self.shared = 0
        self.why = ""
        self.writes = 0
        # The overwritings that still matter: for each its number, and its first slot. Both ascend.
        self._digests: list[bytes] = []  # of the first rows, as far as they were asked for
        self._cuts: list[int] = []
        self._starts: list[int] = []

    @property
    def is_plain(self) -> bool:
        """Whether the tokens alone say what the table holds."""
        return self.plain == self.length and self.limit is None

    def add(self, rows: int) -> None:
        """Add empty rows."""
        self.rows += [array("I") for _ in range(rows)]

    def cut(self, rows: int, page_size: int) -> None:
        """Keep the first `rows` rows."""
        if rows < len(self.rows):
            del self.rows[rows:], self._digests[rows:]
            self.shared = min(self.shared, rows)
            self._shorten(rows * page_size)
            if self.limit is not None and self.limit >= rows * page_size:
                self.limit = None

    def fork(self, rows: int, page_size: int, queue_id: int) -> Line:
        """Return a table that shares the first `rows` rows."""
        child = Line(queue_id)
        child.rows, child._digests = self.rows[:rows], self._digests[:rows]
        self.shared, child.shared = max(self.shared, rows), rows
        child.length, child.plain = min(self.length, rows * page_size), min(self.plain, rows * page_size)
        child.why, child.adapter, child.under = self.why, self.adapter, self.under
        if self.limit is not None and self.limit < rows * page_size:
            child.limit = self.limit
        return child

    def write(self, start: int, tokens: list[int], page_size: int, adapter: int = 0) -> None:
        """Note that a plain forward wrote `tokens` from slot `start` on, which isn't behind the plain slots.

        The adapter of a table is the one of its first slots; a forward under another one that begins behind them isn't
        plain.
        """
        if not start and adapter != self.adapter:
            self.adapter = adapter
            self._digests.clear()
        if start < self.length:
            self._shorten(start)
            del self._digests[start // page_size :]
        at, end, done = start, start + len(tokens), 0
        while at < end:
            row, offset = self.rows[at // page_size], at % page_size
            take = min(page_size - offset, end - at)
            del row[offset:]
            row.extend(tokens[done : done + take])
            at, done = at + take, done + take
        self.length = end
        self.plain = end if self.limit is None else min(end, self.limit)

    def append(self, token: int, page_size: int) -> None:
        """Note that a plain forward wrote one token behind all others."""
        at = self.length
        row = self.rows[at // page_size]
        if len(row) != at % page_size:
            del row[at % page_size :]
        row.append(token)
        self.length = self.plain = at + 1

    def spoil(self, start: int, tokens: int, why: str, adapter: int = 0) -> None:
        """Note that a call wrote slots from `start` on which aren't plain."""
        self.under = adapter
        if start < self.length:
            self._shorten(start)
        self.plain = min(self.plain, start)
        self.length = start + tokens
        self.why = why

    def hide(self, first: int, why: str) -> None:
        """Note that slots from `first` on were hidden, shown or dropped."""
        self.limit = first if self.limit is None else min(self.limit, first)
        self.plain = min(self.plain, first)
        self.why = why

    def _shorten(self, start: int) -> None:
        """Forget the slots from `start` on."""
        self.length, self.plain = min(self.length, start), min(self.plain, start)
        self.writes += 1
        while self._starts and self._starts[-1] >= start:
            self._starts.pop()
            self._cuts.pop()
        self._starts.append(start)
        self._cuts.append(self.writes)

    def kept(self, slot: int, writes: int) -> bool:
        """Return whether a slot holds what it held when `writes` forwards had written over earlier slots."""
        if slot >= self.plain:
            return False
        later = bisect_right(self._cuts, writes)
        return later == len(self._cuts) or self._starts[later] > slot

    def chain(self, root: bytes, rows: int) -> list[bytes]:
        """Return the digests of the first `rows` rows, which are full and plain. `root` is its adapter's."""
        have = self._digests
        if len(have) < rows:
            have += chain(have[-1] if have else root, self.rows[len(have) : rows])
        return have[:rows]

    def tokens(self, start: int, end: int, page_size: int) -> list[int]:
        """Return the tokens of slots `start` to `end`, which are plain."""
        found: list[int] = []
        while start < end:
            offset = start % page_size
            take = min(page_size - offset, end - start)
            found += self.rows[start // page_size][offset : offset + take]
            start += take
        return found


class Book:
    """What one program holds on one engine, by the program's own ids.

    `embeds` and `slots` name all that the program holds; None stands for one that was never written. `pages` names the
    call that wrote a page which the program addresses itself, and `adapters` the number of the adapter under which that
    was, if it was under any. `failed` holds the queues behind a failed command, and
    `matchers` the matchers of slots whose samples follow grammars; None stands for one that control couldn't keep.
    """

    __slots__ = ("adapters", "embeds", "failed", "matchers", "pages", "slots", "tables")

    def __init__(self) -> None:
        self.tables: dict[int, Line] = {}
        self.embeds: dict[int, EmbedContent | None] = {}
        self.slots: dict[int, SlotContent | None] = {}
        self.pages: dict[int, str] = {}
        self.adapters: dict[int, int] = {}  # by page
        self.failed: set[int] = set()
        self.matchers: dict[int, Matcher | None] = {}

    def obstacle(self) -> str:
        """Return the call that keeps the state from being made again; "" if nothing does."""
        for call in self.pages.values():
            if call:
                return call
        if None in self.matchers.values():
            return "sample with a grammar"
        return next((line.why for line in self.tables.values() if not line.is_plain), "")

    def begin_matcher(self, slot: int, matcher: Matcher) -> Matcher | None:
        """Let a slot follow a grammar. Returns None if matchers go on with too many texts of grammars to keep them."""
        self.matchers[slot] = matcher
        texts = {m.grammar: len(m.grammar.text) for m in self.matchers.values() if m is not None}
        return matcher if sum(texts.values()) <= MAX_TEXT_BYTES else None

    def num_rows(self) -> int:
        """Count the rows of all tables, shared ones once."""
        return len({id(row) for line in self.tables.values() for row in line.rows})
