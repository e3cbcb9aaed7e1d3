"""Allocating and freeing through a queue: KV pages, embeds and token slots.

The program chooses the ids itself (`inferlet._values.ids`), so these commands need no answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from inferlet._generated import packers
from inferlet._queues.failures import Failures
from inferlet._values import refusals
from inferlet._values.arguments import shown
from inferlet._values.ids import Pool
from inferlet._values.types import CompiledGrammar, Embed, KvPage, PageTable, TokenSlot
from inferlet._wire.channel import Names, channel

if TYPE_CHECKING:
    from inferlet.grammar import Grammar

_Id = TypeVar("_Id", bound=int)
_Pack = Callable[[int, Sequence[int]], packers.Fields]


class Holdings(Failures):
    """The part of a queue that allocates and frees pages, embeds and slots."""

    __slots__ = ("_embeds", "_grammars", "_pages", "_slots", "_tables", "id", "last_ticket")

    def __init__(self, queue_id: int) -> None:
        super().__init__()
        self.id = queue_id
        self._pages = Pool(KvPage, "page")
        self._embeds = Pool(Embed, "embed")
        self._slots = Pool(TokenSlot, "slot")
        self._tables = Pool(PageTable, "table")
        self._grammars = Pool(CompiledGrammar, "grammar")
        self.last_ticket = 0  # of the last command given

    def _record(self, fields: packers.Fields, names: Names = ()) -> None:
        self.last_ticket = channel.record(*fields, 0, names)

    def _alloc(self, pack: _Pack, pool: Pool[_Id], n: int) -> list[_Id]:
        ids = pool.take(n)
        self._record(pack(self.id, ids))
        return ids

    def _free(self, pack: _Pack, call: str, pool: Pool[_Id], handles: _Id | Sequence[_Id]) -> None:
        if isinstance(handles, int):
            handles = [handles]
        elif not handles:
            return
        try:
            mixed = type(handles[0]) in refusals.OTHERS[pool.cls]
            fields = pack(self.id, handles)
        except (TypeError, OverflowError):
            mixed = True
        if mixed:
            handles = refusals.handles(call, f"{pool.kind}s", pool.cls, handles)
            fields = pack(self.id, handles)
        if len(set(handles)) < len(handles):  # control frees none of them then
            raise refusals.refusal(call, f"{pool.kind}s", f"one stands in it twice: {shown(list(handles))}")
        self._record(fields)
        pool.give(handles)

    def alloc_kvpage(self, n: int) -> list[KvPage]:
        """Allocate `n` KV pages without content.

        Example:
            >>> async def main():
            ...     print(alloc_kvpage(2))  # returns at once, because the program chooses the ids
            [KvPage(0), KvPage(1)]
        """
        return self._alloc(packers.alloc_kvpage, self._pages, n)

    def dealloc_kvpage(self, pages: KvPage | Sequence[KvPage]) -> None:
        """Free one page or several. No later command may use them, in any queue.

        Example:
            >>> async def main():
            ...     first, second = alloc_kvpage(2)
            ...     dealloc_kvpage(first)
            ...     await synchronize()
            ...     print((await usage()).pages)
            1
        """
        self._free(packers.dealloc_kvpage, "dealloc_kvpage", self._pages, pages)

    def alloc_emb(self, n: int) -> list[Embed]:
        """Allocate `n` embeds.

        Example:
            >>> async def main():
            ...     print(alloc_emb(2))
            [Embed(0), Embed(1)]
        """
        return self._alloc(packers.alloc_emb, self._embeds, n)

    def dealloc_emb(self, embeds: Embed | Sequence[Embed]) -> None:
        """Free one embed or several.

        Example:
            >>> async def main():
            ...     embeds = alloc_emb(2)
            ...     dealloc_emb(embeds)
            ...     await synchronize()
            ...     print((await usage()).embeds)
            0
        """
        self._free(packers.dealloc_emb, "dealloc_emb", self._embeds, embeds)

    def alloc_slot(self, n: int) -> list[TokenSlot]:
        """Allocate `n` token slots.

        Example:
            >>> async def main():
            ...     print(alloc_slot(1))
            [TokenSlot(0)]
        """
        return self._alloc(packers.alloc_slot, self._slots, n)

    def dealloc_slot(self, slots: TokenSlot | Sequence[TokenSlot]) -> None:
        """Free token slots, or one.

        Example:
            >>> async def main():
            ...     (slot,) = alloc_slot(1)
            ...     dealloc_slot(slot)
            ...     await synchronize()
            ...     print((await usage()).slots)
            0
        """
        self._free(packers.dealloc_slot, "dealloc_slot", self._slots, slots)

    def alloc_grammar(self, grammar: Grammar) -> asyncio.Future[CompiledGrammar]:
        """Have the engine compile a grammar, for any `sample` of this model. No queue waits for it.

        Raises:
            InvalidArgument: `grammar` is none.
            GrammarRefused: awaited, the engine can't compile the grammar.

        Example:
            >>> async def main():
            ...     digits = await alloc_grammar(regex("[0-9]+"))
            ...     (embed,), (slot,) = alloc_emb(1), alloc_slot(1)
            ...     embed_txt(72, 0, embed)
            ...     forward([], [embed], oemb=[embed])
            ...     token = (await sample(embed, slot, grammar=digits)).token
            ...     print((await detokenize([token])).isdigit())
            True
        """
        return self.begin_grammar(grammar)[1]

    def begin_grammar(self, grammar: Grammar) -> tuple[CompiledGrammar, asyncio.Future[CompiledGrammar]]:
        """Do as `alloc_grammar`; return the handle before the engine has compiled the grammar, too."""
        try:
            kind, payload = grammar.kind, grammar.text.encode()
        except (AttributeError, UnicodeEncodeError):
            told = f"it takes a grammar, as `json_schema` and `regex` give it, not {shown(grammar)}"
            raise refusals.refusal("alloc_grammar", "grammar", told) from None
        [handle] = self._grammars.take(1)
        names = ("alloc_grammar", "id", "kind")
        return handle, channel.call(lambda *_: handle, *packers.grammar(self.id, handle, kind, payload), names=names)

    def dealloc_grammar(self, grammar: CompiledGrammar) -> None:
        """Free a compiled grammar. Texts that have begun go on.

        Example:
            >>> async def main():
            ...     digits = await alloc_grammar(regex("[0-9]+"))
            ...     dealloc_grammar(digits)
        """
        [grammar] = refusals.handles("dealloc_grammar", "grammar", CompiledGrammar, grammar)
        channel.record(*packers.dealloc_grammar(self.id, grammar))
        self._grammars.give((grammar,))

    def table(
        self,
        into: PageTable | None = None,
        source: PageTable | None = None,
        *,
        keep_tokens: int = 0,
        new_rows: int = 0,
    ) -> PageTable:
        """Set a page table to the first tokens of `source`, followed by new rows. One call extends, forks, cuts, frees.

        Whole rows are kept: `keep_tokens` rounds down to a multiple of `get_kv_page_size()`. Rows that two tables share
        are never written again. A table belongs to the queue that made it; only its own queue may change it and compute
        over it. The source may belong to another queue. It is seen as the commands leave it that were given to its
        queue before this call.

        Args:
            into: the table to set; None for a new one.
            source: the table whose rows are kept; None for `into` itself.
            keep_tokens: how many of its slots are kept.
            new_rows: how many empty rows follow.

        Returns:
            The table. Without rows it is freed, and may not be used again.

        Example:
            >>> async def main():
            ...     prompt = table(new_rows=2)  # a new table
            ...     size = get_kv_page_size()
            ...     table(prompt, keep_tokens=2 * size, new_rows=1)  # longer by a row
            ...     fork = table(source=prompt, keep_tokens=size, new_rows=1)  # shares the first row
            ...     table(prompt)  # frees it
            ...     await synchronize()
            ...     print((await usage()).pages)
            2
        """
        for name, given in (("into", into), ("source", source)):
            if given is not None and (type(given) in refusals.OTHERS[PageTable] or not isinstance(given, int)):
                refusals.handles("table", name, PageTable, given)
        if into is None:
            into = self._tables.take(1)[0]
        other = () if source is None or source == into else (source,)
        names = ("table", "into", "keep_tokens", "new_rows")
        self._record(packers.table(self.id, into, keep_tokens, new_rows, other), names)
        if not new_rows and not keep_tokens:
            self._tables.give((into,))
        return into
