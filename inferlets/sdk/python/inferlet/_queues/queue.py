"""Command queues and the commands of a queue (Table 1 of the paper).

Commands of one queue take effect in order. Commands of several queues can run in one batch.
"""

from __future__ import annotations

import asyncio
import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from inferlet._generated import abi
from inferlet._models.models import default_model
from inferlet._queues.holdings import Holdings
from inferlet._values import refusals
from inferlet._values.arguments import shown
from inferlet._values.types import Dist, Embed, KvPage, Model, PageTable, Priority, Sampled, TokenSlot
from inferlet._wire import answers
from inferlet._wire.channel import Names, channel, u32
from inferlet._wire.options import Options
from inferlet._wire.packing import pack_mask, pack_sampling, single
from inferlet.errors import InvalidArgument

_FORWARD_HEAD = struct.Struct(abi.FORWARD_HEAD_FORMAT).pack
_TABLE_HEAD = struct.Struct(abi.FORWARD_TABLE_HEAD_FORMAT).pack
_ONE_TO_ONE = struct.Struct(abi.FORWARD_TABLE_HEAD_FORMAT + "II").pack
_THREE = struct.Struct("<III").pack
_U32 = struct.Struct("<I").pack
_NO_PAGES, _NO_EMBEDS, _NO_TABLES = (refusals.OTHERS[cls] for cls in (KvPage, Embed, PageTable))

MOST_PAGE_SIZE = 32
Tokens = int | TokenSlot | Sequence[int] | Sequence[TokenSlot]


class Queue(Holdings):
    """A command queue, made by `create_queue()`. The functions of the same names take a queue as their first argument.

    Example:
        >>> async def main():
        ...     q1, q2 = create_queue(), create_queue()
        ...     a, b = q1.alloc_emb(1), q2.alloc_emb(1)
        ...     q1.embed_txt(72, 0, a)  # these two
        ...     q2.embed_txt(73, 0, b)  # may run as one batch
        ...     await asyncio.gather(synchronize(q1), synchronize(q2))
    """

    __slots__ = ("_model", "done_ticket", "priority")

    def __init__(self, queue_id: int, model: Model | None) -> None:
        super().__init__(queue_id)
        self._model = model
        self.priority = Priority.NORMAL
        self.done_ticket = 0  # commands up to this one have ended
        channel.queues[queue_id] = self

    def __repr__(self) -> str:
        return f"Queue({self.id})"

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

    # ---- the model --------------------------------------------------------------------------------------------

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
                payload = _THREE(embed, tokens, position)
            except struct.error:
                raise refusals.embedding(tokens, positions, embeds) from None
            self._record(abi.OP_EMBED_TXT, 1, int(from_slots), payload=payload)
            return
        sources = (tokens,) if isinstance(tokens, int) else tokens
        where = (positions,) if isinstance(positions, int) else positions
        into = (embeds,) if isinstance(embeds, int) else embeds
        try:
            packed = array("I", into)
            packed.extend(sources)
            packed.extend(where)
        except (TypeError, OverflowError):
            raise refusals.embedding(tokens, positions, embeds) from None
        n = len(sources)
        if len(where) != n or len(into) != n:
            told = f"{n} tokens, {len(where)} positions and {len(into)} embeds: it takes one of each for a token"
            raise InvalidArgument(argument="embed_txt", detail=told)
        kinds = {isinstance(source, TokenSlot) for source in sources}
        if len(kinds) > 1:
            raise InvalidArgument(argument="tokens", detail="token ids and token slots can't be mixed in one call")
        self._record(abi.OP_EMBED_TXT, n, int(True in kinds), payload=packed.tobytes())

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
            adapter: number of a LoRA adapter.

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
            ids_ = array("I", ikv)  # type: ignore[arg-type]  # a single handle is found out by this
            ids_.extend(iemb)  # type: ignore[arg-type]
            ids_.extend(okv)  # type: ignore[arg-type]
            ids_.extend(oemb)  # type: ignore[arg-type]
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
        payload = _FORWARD_HEAD(len(ikv), len(iemb), len(okv), len(oemb)) + ids_.tobytes()  # type: ignore[arg-type]
        if mask is not None:
            payload += pack_mask(mask, self.model.page_size * len(ikv), len(iemb))  # type: ignore[arg-type]
        names = ("forward", "okv_offset", "adapter")
        self._record(abi.OP_FORWARD, okv_offset, adapter or 0, int(mask is not None), payload, names)

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
            adapter: number of a LoRA adapter.

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
            ids_ = array("I", iemb)  # type: ignore[arg-type]  # a single handle is found out by this
            ids_.extend(oemb)  # type: ignore[arg-type]
            mixed = (
                (iemb and type(iemb[0]) in _NO_EMBEDS)  # type: ignore[index]
                or (oemb and type(oemb[0]) in _NO_EMBEDS)  # type: ignore[index]
                or type(table) in _NO_TABLES
            )
        except (TypeError, ValueError, OverflowError):
            mixed = True
        if mixed:  # lists of what belongs there come back, or none
            [table] = refusals.handles("forward_table", "table", PageTable, table)
            iemb = refusals.handles("forward_table", "iemb", Embed, iemb)
            oemb = refusals.handles("forward_table", "oemb", Embed, oemb)
            self.forward_table(table, start, iemb, oemb, mask=mask, adapter=adapter)
            return
        payload = _TABLE_HEAD(len(iemb), len(oemb), adapter or 0) + ids_.tobytes()  # type: ignore[arg-type]
        if mask is not None:
            payload += pack_mask(mask, start, len(iemb))  # type: ignore[arg-type]
        names = ("forward_table", "table", "start")
        self._record(abi.OP_FORWARD_TABLE, table, start, int(mask is not None), payload, names)

    def decode(self, table: PageTable, position: int, source: int, places: tuple[Embed, Embed]) -> None:
        """Record one decode step: the `embed_txt` and the `forward_table` of one token.

        The bytes are those of the two calls, packed here at once because a decode step is frequent.

        Args:
            table: the table of the context; slot i of it holds the token at position i.
            position: the token's position.
            source: the token's id, or the slot that holds it.
            places: the input embed and the output embed.
        """
        embed, output = places
        record, number = channel.record, self.id
        kind = 1 if isinstance(source, TokenSlot) else 0
        record(abi.OP_EMBED_TXT, number, 1, kind, 0, _THREE(embed, source, position))
        self.last_ticket = record(abi.OP_FORWARD_TABLE, number, table, position, 0, _ONE_TO_ONE(1, 1, 0, embed, output))

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
        self._record(abi.OP_COPY_KVPAGE, src_offset, dst_offset, size, u32((src, dst)), names)

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
        self._record(abi.OP_MASK_KVPAGE, page, bits, names=("mask_kvpage", "page", "mask"))

    # ---- outputs ----------------------------------------------------------------------------------------------

    def get_next_dist(self, emb: Embed | Sequence[Embed], *, top_k: int = 0) -> asyncio.Future[Dist]:
        """Ask for the distribution of the token that follows `emb`.

        Args:
            emb: an output embed, or a list of one.
            top_k: the number of tokens in the distribution; 0 for 256.

        Example:
            >>> async def main():
            ...     (embed,) = alloc_emb(1)
            ...     embed_txt(72, 0, embed)
            ...     forward([], [embed], oemb=[embed])
            ...     dist = await get_next_dist(embed, top_k=3)
            ...     print(len(dist), dist.max_index() == dist.tokens[0])
            3 True
        """
        embed = emb if isinstance(emb, int) else single(emb, "emb of get_next_dist", ": `get_next_dists` takes several")
        try:
            payload = _U32(embed)
        except struct.error:
            payload = u32(refusals.handles("get_next_dist", "emb", Embed, emb))
        return self._call(answers.dist, abi.OP_GET_NEXT_DIST, top_k, payload=payload, names=("get_next_dist", "top_k"))

    def get_next_dists(self, embeds: Embed | Sequence[Embed], *, top_k: int = 0) -> asyncio.Future[list[Dist]]:
        """Ask for the distributions of several output embeds with one command.

        Example:
            >>> async def main():
            ...     embeds = alloc_emb(2)
            ...     embed_txt([72, 105], [0, 1], embeds)
            ...     forward([], embeds, oemb=embeds)
            ...     after_first, after_second = await get_next_dists(embeds, top_k=1)
            ...     print(len(after_first), len(after_second))
            1 1
        """
        try:
            payload = u32(embeds)  # type: ignore[arg-type]  # a single embed is found out by this
        except (TypeError, OverflowError):
            payload = u32(refusals.handles("get_next_dists", "embeds", Embed, embeds))
        names = ("get_next_dists", "top_k")
        return self._call(answers.dists, abi.OP_GET_NEXT_DIST, top_k, payload=payload, names=names)

    def sample(  # noqa: PLR0913 - the sampler's parameters
        self,
        emb: Embed | Sequence[Embed],
        slot: TokenSlot | Sequence[TokenSlot],
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
        draw: int = 0,
        stop: Sequence[int] = (),
        logit_bias: Mapping[int, float] | None = None,
        allowed: Sequence[int] | bytes | None = None,
        logprobs: int = 0,
        logprobs_of: Sequence[int] = (),
        repetition_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        history: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> asyncio.Future[Sampled]:
        """Sample the token that follows `emb` on the device, into `slot`. The program gets the token too.

        The random number depends on `seed`, `draw` and the position of `emb` alone, so the same call samples the same
        token in every batch.

        Args:
            emb: an output embed, or a list of one.
            slot: the token slot that takes the token, or a list of one.
            temperature: divides the logits; 0 takes the most probable token.
            top_k: keeps the k most probable tokens; 0 keeps all.
            top_p: keeps the most probable tokens that together reach this probability; 1 keeps all.
            min_p: keeps tokens with at least this fraction of the best token's probability; 0 keeps all.
            seed: the key of the random numbers, 64 bits.
            draw: the number of the stream of random numbers, 32 bits.
            stop: a token of this list ends the slot: commands that read the slot are skipped.
            logit_bias: is added to the logits of these tokens; -100 or less makes a token impossible.
            allowed: only these tokens may be sampled: a list of token ids, or one bit for each token of the vocabulary,
                least significant bit first.
            logprobs: the answer tells the log-probabilities of so many tokens, the most probable ones first.
            logprobs_of: and of these tokens.
            repetition_penalty: divides positive logits of tokens of the slot's history, and multiplies negative ones.
            frequency_penalty: is subtracted once for each time that a token stands in the history's output.
            presence_penalty: is subtracted once if a token stands in the history's output.
            history: sets the history of `slot` first: distinct tokens of the prompt, and the tokens of the output. Each
                sample with penalties then adds its token to the output. A new slot has an empty history.

        Log-probabilities are the model's own: before temperature, filters, bias, `allowed` and penalties.

        Raises:
            InvalidArgument: a value is of the wrong kind or does not fit its bits.

        Example:
            >>> async def main():
            ...     (embed,), (slot,) = alloc_emb(1), alloc_slot(1)
            ...     embed_txt(72, 0, embed)
            ...     forward([], [embed], oemb=[embed])
            ...     sampled = sample(embed, slot, temperature=0.7, top_p=0.9, seed=1)
            ...     embed_txt(slot, 1, embed)  # the device reads the slot; the program has not seen the token yet
            ...     print((await sampled).ended)
            False
        """
        try:
            params = pack_sampling(temperature, top_k, top_p, min_p, seed=seed, draw=draw, stop=stop)
        except (TypeError, OverflowError, struct.error):
            floats = {"temperature": temperature, "top_p": top_p, "min_p": min_p}
            raise refusals.sampling(floats, {"top_k": top_k, "seed": seed, "draw": draw}, stop) from None
        given = Options(
            logit_bias=logit_bias,
            allowed=allowed,
            logprobs=logprobs,
            logprobs_of=logprobs_of,
            repetition_penalty=repetition_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
        )
        params += given.pack(0 if self._model is None else self._model.vocab_size, history)
        embed = emb if isinstance(emb, int) else single(emb, "emb of sample")
        into = slot if isinstance(slot, int) else single(slot, "slot of sample")
        return self.sample_packed(embed, into, params)

    def sample_packed(self, embed: int, slot: int, params: bytes) -> asyncio.Future[Sampled]:
        """Sample as `sample` does, with parameters that `pack_sampling` has packed."""
        return self._call(answers.sampled, abi.OP_SAMPLE, embed, slot, params, ("sample", "emb", "slot"))

    def _call(
        self, decode: Any, op: int, a: int, b: int = 0, payload: bytes = b"", names: Names = ()
    ) -> asyncio.Future[Any]:
        self.last_ticket = channel.next_ticket
        return channel.call(decode, op, self.id, a, b, 0, payload, self, names)

    # ---- the queue itself -------------------------------------------------------------------------------------

    def synchronize(self) -> asyncio.Future[None]:
        """Wait until all earlier commands of the queue have ended.

        Example:
            >>> async def main():
            ...     embed_txt(72, 0, alloc_emb(1))
            ...     await synchronize()  # a command that failed raises here
        """
        return self._call(answers.nothing, abi.OP_SYNCHRONIZE, 0)

    def set_priority(self, priority: Priority) -> None:
        """Set how urgent the queue's commands are, compared with the commands of other queues.

        Raises:
            InvalidArgument: `priority` is no `Priority`.

        Example:
            >>> async def main():
            ...     set_queue_priority(Priority.HIGH)  # of the program's own queue
            ...     create_queue().set_priority(Priority.LOW)
        """
        try:
            self.priority = priority = Priority(priority)
        except ValueError:
            told = f"it is Priority.LOW, Priority.NORMAL or Priority.HIGH, not {shown(priority)}"
            raise refusals.refusal("set_queue_priority", "priority", told) from None
        channel.record(abi.OP_SET_QUEUE_PRIORITY, self.id, int(priority))

    def reset(self) -> None:
        """Make a queue usable again after a command failed. Later commands run; failed commands stay failed.

        Example:
            >>> async def main():
            ...     try:
            ...         dealloc_kvpage(KvPage(7))  # nobody allocated it
            ...         await synchronize()
            ...     except errors.TartletError as error:
            ...         print(type(error).__name__)
            ...     reset()
            ...     await synchronize()
            UnknownResource
        """
        self.forgive(channel.record(abi.OP_RESET, self.id))

    def cancel(self, since: int) -> asyncio.Future[int]:
        """Drop the commands from ticket `since` on that have not been sent to the engine. Allocations stay.

        Returns:
            A future of the first dropped ticket, 0 if no command was dropped.

        Example:
            >>> async def main():
            ...     since = mark()
            ...     mask_kvpage(alloc_kvpage(1)[0], 1)
            ...     print(await cancel(since) in (0, since + 1))  # allocations stay
            True
        """
        return channel.call(answers.number, abi.OP_CANCEL, self.id, since, names=("cancel", "since"))

    def mark(self) -> int:
        """Return the ticket of the next command, for `cancel`.

        Example:
            >>> async def main():
            ...     before = mark()
            ...     alloc_kvpage(1)
            ...     print(mark() - before)
            1
        """
        return channel.next_ticket
