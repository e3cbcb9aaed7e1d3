"""Command queues and the commands of a queue (Table 1 of the paper).

Commands of one queue take effect in order. Commands of several queues can run in one batch.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from inferlet._generated import packers
from inferlet._queues.naming import Naming
from inferlet._values import refusals
from inferlet._values.arguments import shown
from inferlet._values.types import CompiledGrammar, Dist, Embed, Model, Priority, Sampled, TokenSlot
from inferlet._wire import answers
from inferlet._wire.channel import Names, channel
from inferlet._wire.options import Options
from inferlet._wire.packing import pack_sampling, single


class Queue(Naming):
    """A command queue, made by `create_queue()`. The functions of the same names take a queue as their first argument.

    Example:
        >>> async def main():
        ...     q1, q2 = create_queue(), create_queue()
        ...     a, b = q1.alloc_emb(1), q2.alloc_emb(1)
        ...     q1.embed_txt(72, 0, a)  # these two
        ...     q2.embed_txt(73, 0, b)  # may run as one batch
        ...     await asyncio.gather(synchronize(q1), synchronize(q2))
    """

    __slots__ = ("done_ticket", "priority")

    def __init__(self, queue_id: int, model: Model | None) -> None:
        super().__init__(queue_id, model)
        self.priority = Priority.NORMAL
        self.done_ticket = 0  # commands up to this one have ended
        channel.queues[queue_id] = self

    def __repr__(self) -> str:
        return f"Queue({self.id})"

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
            fields = packers.get_next_dist(self.id, top_k, (embed,))
        except (TypeError, OverflowError):
            fields = packers.get_next_dist(self.id, top_k, refusals.handles("get_next_dist", "emb", Embed, emb))
        return self._call(answers.dist, fields, ("get_next_dist", "top_k"))

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
            # a single embed is found out by this
            fields = packers.get_next_dist(self.id, top_k, embeds)  # type: ignore[arg-type]
        except (TypeError, OverflowError):
            fields = packers.get_next_dist(self.id, top_k, refusals.handles("get_next_dists", "embeds", Embed, embeds))
        return self._call(answers.dists, fields, ("get_next_dists", "top_k"))

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
        grammar: CompiledGrammar | int | None = None,
        matched: Sequence[int] = (),
        forced: bool = False,
        with_bytes: bool = False,
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

            grammar: the token must continue a text of a grammar: with the first token of a text the grammar, and with
                each later token of the same slot 0. The answer tells `ended` when nothing can follow.
            matched: tokens that the text of the grammar has before this one, and that no sample of `slot` gave it.
            forced: with a grammar, the answer tells the tokens that alone may follow, one after the other. A program
                can compute them with one `forward`, and name them as `matched` of the next sample.
            with_bytes: the answer tells the token's bytes, which saves the call `detokenize_bytes`.

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
            forced=bool(forced),
        )
        following = None if grammar is None else (grammar, matched)
        params += given.pack(0 if self._model is None else self._model.vocab_size, history, following)
        embed = emb if isinstance(emb, int) else single(emb, "emb of sample")
        into = slot if isinstance(slot, int) else single(slot, "slot of sample")
        return self.sample_packed(embed, into, params, bool(with_bytes))

    def sample_packed(
        self,
        embed: int,
        slot: int,
        params: bytes,
        with_bytes: bool = False,  # noqa: FBT001, FBT002 - for each token
    ) -> asyncio.Future[Sampled]:
        """Sample as `sample` does, with parameters that `pack_sampling` has packed."""
        fields = packers.sample(self.id, embed, slot, params, with_bytes)
        return self._call(answers.sampled, fields, ("sample", "emb", "slot"))

    def _call(self, decode: Any, fields: packers.Fields, names: Names = ()) -> asyncio.Future[Any]:
        self.last_ticket = channel.next_ticket
        return channel.call(decode, *fields, self, names)

    # ---- the queue itself -------------------------------------------------------------------------------------

    def synchronize(self) -> asyncio.Future[None]:
        """Wait until all earlier commands of the queue have ended.

        Example:
            >>> async def main():
            ...     embed_txt(72, 0, alloc_emb(1))
            ...     await synchronize()  # a command that failed raises here
        """
        return self._call(answers.nothing, packers.synchronize(self.id))

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
        channel.record(*packers.set_queue_priority(self.id, int(priority)))

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
        self.forgive(channel.record(*packers.reset(self.id)))

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
        return channel.call(answers.number, *packers.cancel(self.id, since), names=("cancel", "since"))

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
