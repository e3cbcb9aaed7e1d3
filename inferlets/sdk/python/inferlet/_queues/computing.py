"""The part of a queue that computes: embeds, forward passes, copies and masks of keys and values."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Literal

from inferlet._generated import abi, packers
from inferlet._models.models import default_model
from inferlet._queues.holdings import Holdings
from inferlet._values import refusals
from inferlet._values.arguments import shown
from inferlet._values.types import Adapter, Embed, KvPage, Model, PageTable, TokenSlot
from inferlet._wire.channel import channel
from inferlet._wire.packing import pack_mask, single
from inferlet.errors import InvalidArgument

_ONE_TO_ONE = struct.Struct(abi.FORWARD_TABLE_HEAD_FORMAT + "II").pack
_THREE = struct.Struct("<III").pack
_MASKS = {"hide": abi.MASK_HIDE, "show": abi.MASK_SHOW, "drop": abi.MASK_DROP}
_NO_PAGES, _NO_EMBEDS, _NO_TABLES = (refusals.OTHERS[cls] for cls in (KvPage, Embed, PageTable))

MOST_PAGE_SIZE = 32
Tokens = int | TokenSlot | Sequence[int] | Sequence[TokenSlot]


class Computing(Holdings):
    """The part of a queue that computes embeds and KV pages, with the model of the queue."""

    __slots__ = ("_model",)

    def __init__(self, queue_id: int, model: Model | None) -> None:
        super().__init__(queue_id)
        self._model = model

    @property
    def model(self) -> Model:
        """The model that runs the queue's commands."""
        if self._model is None:
            self._model = default_model()
        return self._model

    @property
    def _page_size(self) -> int:
        """Tokens of a page; the largest possible number until the model is known, which only a call can tell."""
        return MOST_PAGE_SIZE if self._model is None else self._model.page_size

    def embed_txt(self, tokens: Tokens, positions: int | Sequence[int], embeds: Embed | Sequence[Embed]) -> None:
        """Embed tokens at `positions` into `embeds`.

        Args:
            tokens: one token or several, as ids or as slots whose tokens are sampled earlier in the queue.
            positions: one position for each token.
            embeds: one embed for each token.

        Raises:
            InvalidArgument: the lengths differ, or a value is of the wrong kind.

        Example:
            >>> async def main():
            ...     prompt = await tokenize("Hi")
            ...     embeds = alloc_emb(len(prompt))
            ...     embed_txt(prompt, range(len(prompt)), embeds)
            ...     embed_txt(72, 2, embeds[0])  # one token
            ...     await synchronize()
        """
        if isinstance(tokens, int) and isinstance(embeds, (int, list)):
            from_slots = isinstance(tokens, TokenSlot)
            embed = embeds if isinstance(embeds, int) else single(embeds, "embeds of embed_txt")
            position = positions if isinstance(positions, int) else single(positions, "positions of embed_txt")
            try:
                payload = _THREE(embed, tokens, position)  # as the packer does, in half the time
            except struct.error:
                raise refusals.embedding(tokens, positions, embeds) from None
            self._record((abi.OP_EMBED_TXT, self.id, 1, int(from_slots), 0, payload))
            return
        sources = (tokens,) if isinstance(tokens, int) else tokens
        where = (positions,) if isinstance(positions, int) else positions
        into = (embeds,) if isinstance(embeds, int) else embeds
        kinds = {isinstance(source, TokenSlot) for source in sources}
        try:
            fields = packers.embed_txt(self.id, True in kinds, into, sources, where)
        except (TypeError, OverflowError):
            raise refusals.embedding(tokens, positions, embeds) from None
        n = len(sources)
        if len(where) != n or len(into) != n:
            told = f"{n} tokens, {len(where)} positions and {len(into)} embeds: it takes one of each for a token"
            raise InvalidArgument(argument="embed_txt", detail=told)
        if len(kinds) > 1:
            raise InvalidArgument(argument="tokens", detail="token ids and token slots can't be mixed in one call")
        self._record(fields)

    def forward(
        self,
        ikv: KvPage | Sequence[KvPage],
        iemb: Embed | Sequence[Embed],
        okv: KvPage | Sequence[KvPage] = (),
        oemb: Embed | Sequence[Embed] = (),
        *,
        okv_offset: int = 0,
        mask: Sequence[Sequence[bool]] | bytes | None = None,
        adapter: int | None = None,
    ) -> None:
        """One pass through the model.

        Token i of `iemb` goes to KV slot `okv_offset + i` of the pages `okv`; `oemb` takes the outputs of the last
        `len(oemb)` tokens. Attention sees the tokens of `ikv`, in list order, then `iemb`: those whose position is at
        most the query's, or those that `mask` says instead.

        Args:
            ikv: pages to read.
            iemb: embeddings to compute.
            okv: pages to write, may overlap `ikv`.
            oemb: where output vectors go.
            okv_offset: first slot written in `okv`, in tokens.
            mask: [len(iemb)][len(ikv) * page_size + len(iemb)] booleans, True to see; or the same packed to bits,
                row-major, least significant first.
            adapter: the LoRA adapter that computes, one of `get_all_adapters`; None for the model alone.

        Example:
            >>> async def main():
            ...     prompt, (page,), embeds, output = [72, 105], alloc_kvpage(1), alloc_emb(2), alloc_emb(1)
            ...     embed_txt(prompt, [0, 1], embeds)
            ...     forward([], embeds, [page], output)  # reads no page, fills one
            ...     dist = await get_next_dist(output, top_k=5)
            ...     embed_txt(dist.max_index(), 2, output)
            ...     forward([page], output, [page], output, okv_offset=2)  # one token more
            ...     print(len(dist), len(await get_next_dist(output)))
            5 256
        """
        try:
            lists = (ikv, iemb, okv, oemb)  # a single handle is found out by this
            fields = packers.forward(self.id, okv_offset, adapter or 0, *lists, None)  # type: ignore[arg-type]
            mixed = (
                (ikv and type(ikv[0]) in _NO_PAGES)  # type: ignore[index]
                or (iemb and type(iemb[0]) in _NO_EMBEDS)  # type: ignore[index]
                or (okv and type(okv[0]) in _NO_PAGES)  # type: ignore[index]
                or (oemb and type(oemb[0]) in _NO_EMBEDS)  # type: ignore[index]
            )
        except (TypeError, ValueError, OverflowError):
            mixed = True
        if mixed:  # lists of what belongs there come back, or none
            ikv, iemb, okv, oemb = refusals.forward(ikv, iemb, okv, oemb)
            self.forward(ikv, iemb, okv, oemb, okv_offset=okv_offset, mask=mask, adapter=adapter)
            return
        if mask is not None:
            bits = pack_mask(mask, self.model.page_size * len(ikv), len(iemb))  # type: ignore[arg-type]
            fields = packers.forward(self.id, okv_offset, adapter or 0, *lists, bits)  # type: ignore[arg-type]
        self._record(fields, ("forward", "okv_offset", "adapter"))

    def forward_with_adapter(
        self,
        adapter: Adapter,
        ikv: KvPage | Sequence[KvPage],
        iemb: Embed | Sequence[Embed],
        okv: KvPage | Sequence[KvPage] = (),
        oemb: Embed | Sequence[Embed] = (),
        *,
        okv_offset: int = 0,
        mask: Sequence[Sequence[bool]] | bytes | None = None,
    ) -> None:
        """One pass through the model with a LoRA adapter (paper, Table 1). The other arguments are those of `forward`.

        Keys and values that it writes are those of the adapter. Whoever reads them under another one gets what such a
        mixture computes.

        Raises:
            InvalidArgument: `adapter` is none.

        Example:
            >>> async def main():
            ...     (adapter,), (embed,) = await get_all_adapters(), alloc_emb(1)
            ...     embed_txt(72, 0, embed)
            ...     forward_with_adapter(adapter, [], [embed], oemb=[embed])
            ...     print(len(await get_next_dist(embed)))
            256
        """
        self.forward(ikv, iemb, okv, oemb, okv_offset=okv_offset, mask=mask, adapter=adapter)

    def forward_table(
        self,
        table: PageTable,
        start: int,
        iemb: Embed | Sequence[Embed],
        oemb: Embed | Sequence[Embed] = (),
        *,
        mask: Sequence[Sequence[bool]] | bytes | None = None,
        adapter: int | None = None,
    ) -> None:
        """One pass through the model over a page table. Its cost outside of the model doesn't grow with the context.

        Token i of `iemb` goes to slot `start + i` of the table; `oemb` takes the outputs of the last `len(oemb)`
        tokens. Attention sees the slots before `start`, then `iemb`: those whose position is at most the query's, or
        those that `mask` says instead.

        Args:
            table: the table to read and to write.
            start: the first slot written, and the number of slots seen before it.
            iemb: embeddings to compute.
            oemb: where output vectors go.
            mask: [len(iemb)][start + len(iemb)] booleans, True to see; or the same packed to bits, row-major, least
                significant first.
            adapter: the LoRA adapter that computes, one of `get_all_adapters`; None for the model alone.

        Example:
            >>> async def main():
            ...     prompt, sequence, embeds, output = [72, 105], table(new_rows=1), alloc_emb(2), alloc_emb(1)
            ...     embed_txt(prompt, [0, 1], embeds)
            ...     forward_table(sequence, 0, embeds, output)
            ...     dist = await get_next_dist(output, top_k=5)
            ...     embed_txt(dist.max_index(), 2, output)
            ...     forward_table(sequence, 2, output, output)  # one token more
            ...     print(len(dist), len(await get_next_dist(output)))
            5 256
        """
        try:
            lists = (iemb, oemb)  # a single handle is found out by this
            fields = packers.forward_table(self.id, table, start, adapter or 0, *lists, None)  # type: ignore[arg-type]
            mixed = (
                (iemb and type(iemb[0]) in _NO_EMBEDS)  # type: ignore[index]
                or (oemb and type(oemb[0]) in _NO_EMBEDS)  # type: ignore[index]
                or type(table) in _NO_TABLES
            )
        except struct.error:
            told = f"it is one of get_all_adapters(), not {shown(adapter)}"
            raise refusals.refusal("forward_table", "adapter", told) from None
        except (TypeError, ValueError, OverflowError):
            mixed = True
        if mixed:  # lists of what belongs there come back, or none
            [table] = refusals.handles("forward_table", "table", PageTable, table)
            iemb = refusals.handles("forward_table", "iemb", Embed, iemb)
            oemb = refusals.handles("forward_table", "oemb", Embed, oemb)
            self.forward_table(table, start, iemb, oemb, mask=mask, adapter=adapter)
            return
        if mask is not None:
            bits = pack_mask(mask, start, len(iemb))  # type: ignore[arg-type]
            fields = packers.forward_table(self.id, table, start, adapter or 0, *lists, bits)  # type: ignore[arg-type]
        self._record(fields, ("forward_table", "table", "start"))

    def mask_table(
        self, table: PageTable, first: int, count: int, what: Literal["hide", "show", "drop"] = "hide"
    ) -> None:
        """Hide slots of a page table from later calls of `forward_table`, show them again, or drop their rows.

        Other tables that share the rows are not changed. Slots keep their numbers, also behind dropped rows.

        Args:
            table: the table.
            first: the first slot.
            count: the number of slots, at least 1.
            what: "hide", "show", or "drop", which frees the pages for ever. Then `first` and `count` are multiples of
                `get_kv_page_size()`.

        Raises:
            InvalidArgument: a value is of the wrong kind.

        Example:
            >>> async def main():
            ...     sequence = table(new_rows=3)
            ...     mask_table(sequence, 3, 5)  # hides five slots
            ...     mask_table(sequence, get_kv_page_size(), get_kv_page_size(), "drop")  # frees the second row
            ...     await synchronize()
            ...     print((await usage()).pages)
            2
        """
        if type(table) in _NO_TABLES or not isinstance(table, int):
            refusals.handles("mask_table", "table", PageTable, table)
        if what not in _MASKS:
            told = f"it is one of {', '.join(map(repr, _MASKS))}, not {shown(what)}"
            raise refusals.refusal("mask_table", "what", told)
        names = ("mask_table", "table", "first", "count")
        self._record(packers.mask_table(self.id, table, first, count, _MASKS[what]), names)

    def decode(
        self, table: PageTable, position: int, source: int, places: tuple[Embed, Embed], adapter: int = 0
    ) -> None:
        """Record one decode step: the `embed_txt` and the `forward_table` of one token.

        The bytes are those of the two calls, packed here at once because a decode step is frequent.

        Args:
            table: the table of the context; slot i of it holds the token at position i.
            position: the token's position.
            source: the token's id, or the slot that holds it.
            places: the input embed and the output embed.
            adapter: number of the LoRA adapter that computes; 0 for none.
        """
        embed, output = places
        record, number = channel.record, self.id
        kind = 1 if isinstance(source, TokenSlot) else 0
        record(abi.OP_EMBED_TXT, number, 1, kind, 0, _THREE(embed, source, position))
        head = _ONE_TO_ONE(1, 1, adapter, embed, output)
        self.last_ticket = record(abi.OP_FORWARD_TABLE, number, table, position, 0, head)

    def copy_kvpage(
        self, src: KvPage, dst: KvPage, *, src_offset: int = 0, dst_offset: int = 0, size: int | None = None
    ) -> None:
        """Copy the keys and values of tokens from page `src` to page `dst`.

        Args:
            src: the page to read.
            dst: the page to write.
            src_offset: the first slot to read.
            dst_offset: the first slot to write.
            size: the number of tokens; None for as many as fit.

        Raises:
            InvalidArgument: a page is none, or an offset is past the end of its page.

        Example:
            >>> async def main():
            ...     full, mine = alloc_kvpage(2)
            ...     copy_kvpage(full, mine, size=3)  # only the first three tokens
            ...     await synchronize()
        """
        page_size = self._page_size if size is not None else self.model.page_size
        most = refusals.copying(src, dst, src_offset, dst_offset, page_size)
        size = most if size is None else size
        names = ("copy_kvpage", "src_offset", "dst_offset", "size")
        self._record(packers.copy_kvpage(self.id, src_offset, dst_offset, size, src, dst), names)

    def copy_table(
        self,
        table: PageTable,
        first: int,
        page: KvPage,
        *,
        offset: int = 0,
        size: int | None = None,
        into: Literal["page", "table"] = "page",
    ) -> None:
        """Copy the keys and values of tokens between one row of a page table and a page.

        Args:
            table: the table, which belongs to this queue.
            first: the first slot of the table.
            page: the page, which any queue of the model has allocated before.
            offset: the first slot of the page.
            size: the number of tokens; None for as many as fit into the row and into the page.
            into: what is written, the "page" or the "table". A table can be written behind the slots that
                `forward_table` has computed, and isn't plain from `first` on.

        Raises:
            InvalidArgument: a value is of the wrong kind.

        Example:
            >>> async def main():
            ...     (page,), sequence, embeds = alloc_kvpage(1), table(new_rows=1), alloc_emb(3)
            ...     embed_txt([72, 105, 33], range(3), embeds)
            ...     forward_table(sequence, 0, embeds[:2])
            ...     copy_table(sequence, 0, page, size=2)
            ...     forward([page], embeds[2:], oemb=embeds[:1])
            ...     forward_table(sequence, 2, embeds[2:], embeds[1:2])  # sees the same
            ...     one, other = await get_next_dists(embeds[:2])
            ...     print(one.max_index() == other.max_index())
            True
        """
        most = refusals.copying_table(table, first, page, offset, into, self.model.page_size)
        target = abi.COPY_INTO_TABLE if into == "table" else abi.COPY_INTO_PAGE
        names = ("copy_table", "table", "first", "size")
        size = most if size is None else size
        self._record(packers.copy_table(self.id, table, first, size, page, offset, target), names)

    def mask_kvpage(self, page: KvPage, mask: Sequence[bool] | int) -> None:
        """Hide tokens of a page from all later calls of `forward`, or show them again.

        Args:
            page: the page.
            mask: one boolean for each slot, or an integer with one bit for each slot. True, or a set bit, hides.

        Raises:
            InvalidArgument: `page` is no page, or `mask` has more slots than the page.

        Example:
            >>> async def main():
            ...     (page,) = alloc_kvpage(1)
            ...     mask_kvpage(page, [True, False, True])  # as mask_kvpage(page, 0b101)
            ...     await synchronize()
        """
        bits = refusals.masking(page, mask, self._page_size)
        self._record(packers.mask_kvpage(self.id, page, bits), ("mask_kvpage", "page", "mask"))
