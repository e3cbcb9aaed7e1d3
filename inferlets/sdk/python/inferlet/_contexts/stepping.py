"""What techniques need of a context: distributions, single steps, drafts to verify, and scores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from inferlet._contexts.choosing import pack_sampler
from inferlet._contexts.masking import Masking
from inferlet._contexts.proposal import Proposal
from inferlet._models.text import tokenize_with
from inferlet._values.arguments import token_list, whole
from inferlet._values.types import Dist, Embed, Sampled
from inferlet._wire.options import Options
from inferlet.errors import ContextTooLong, InvalidArgument
from inferlet.sampling import Greedy, Sampler

SCORED_AT_ONCE = 256
"""Tokens that `score` computes in one forward pass."""


_P = ParamSpec("_P")
_R = TypeVar("_R")


def alone(
    method: Callable[Concatenate[Stepping, _P], Coroutine[Any, Any, _R]],
) -> Callable[Concatenate[Stepping, _P], Coroutine[Any, Any, _R]]:
    """Let a method run while no other task computes with the same context."""

    @wraps(method)
    async def call(self: Stepping, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        self._check_open()
        self._interrupt()
        self._stepping = True
        try:
            return await method(self, *args, **kwargs)
        finally:
            self._stepping = False

    return call


class Stepping(Masking):
    """The calls on a context that compute one step at a time."""

    @property
    def room(self) -> int:
        """How many more tokens the model has positions for.

        `generate` ends at the last position, with `stopped_by` "length". `step` and `propose` raise ContextTooLong if
        they need more positions than there are.

        Example:
            >>> async def main():
            ...     ctx = Context()
            ...     ctx.fill_tokens([72, 105])
            ...     await ctx.flush()
            ...     print(ctx.room == ctx.model.max_position - 2)
            True
        """
        return self.model.max_position - len(self.tokens)

    @alone
    async def next_dist(self, *, top_k: int = 0) -> Dist:
        """Compute the context and return the distribution of its next token. The context stays as it is.

        Args:
            top_k: the number of tokens in the distribution; 0 for 256.

        Raises:
            InvalidArgument: the context is closed or empty, or another task generates from it.
            ContextTooLong: the context has more tokens than the model has positions.

        Example:
            >>> async def main():
            ...     async with Context() as ctx:
            ...         ctx.fill("Hello,")
            ...         dist = await ctx.next_dist(top_k=3)
            ...         ctx.fill_tokens([dist.max_index()])  # takes the best token
            ...         print(len(dist), len(await ctx.next_dist()))
            3 256
        """
        output = await self._last_output()
        return await self.queue.get_next_dist(output, top_k=top_k)

    @alone
    async def next_logprobs(self, tokens: Sequence[int]) -> dict[int, float]:
        """Return the log-probabilities of named next tokens under the model's own distribution.

        Args:
            tokens: up to 1024 token ids. They need not be among the most probable ones.

        Raises:
            InvalidArgument: an id isn't in the vocabulary, or the context is closed or empty.
            ContextTooLong: the context has more tokens than the model has positions.

        Example:
            >>> async def main():
            ...     async with Context() as ctx:
            ...         ctx.fill("Is it true? ")
            ...         yes, no = (await tokenize("YN"))
            ...         told = await ctx.next_logprobs([yes, no])
            ...         print(sorted(told) == sorted([yes, no]), max(told.values()) < 0)
            True True
        """
        named = self._ids("next_logprobs", tokens)
        output = await self._last_output()
        _, _, slot = self._cache.places()
        params = pack_sampler(Greedy(), 0, 0, ()) + Options(logprobs_of=named).pack(self.model.vocab_size)
        told = (await self.queue.sample_packed(output, slot, params)).logprobs
        return {token: told[token] for token in named}

    @alone
    async def step(
        self,
        sampler: Sampler | None = None,
        *,
        eos: bool = True,
        logit_bias: Mapping[int, float] | None = None,
        allowed: Sequence[int] | bytes | None = None,
        logprobs: int = 0,
        logprobs_of: Sequence[int] = (),
    ) -> Sampled:
        """Sample one token on the device and append it. The tokens are those that `generate` gives.

        Args:
            sampler: how the token is chosen; greedy by default. For a choice of the program's own use `next_dist`,
                then `fill_tokens`.
            eos: whether the model's end-of-sequence tokens count as stop tokens (`Sampled.ended`).
            logit_bias: as for `generate`.
            allowed: as for `generate`.
            logprobs: as for `generate`; `Sampled.logprobs` has them.
            logprobs_of: as for `generate`.

        Raises:
            InvalidArgument: the context is closed or empty, another task generates from it, or an argument is wrong.
            ContextTooLong: the context ends at the model's last position.

        Example:
            >>> async def main():
            ...     async with Context(seed=1) as ctx, Context(seed=1) as other:
            ...         ctx.fill("Hello,")
            ...         other.fill("Hello,")
            ...         while len(ctx) < 10 and not (await ctx.step(Temperature(0.7))).ended:
            ...             pass
            ...         await other.generate_until(max_tokens=3, sampler=Temperature(0.7))
            ...         print(ctx.tokens == other.tokens)
            True
        """
        options = Options(logit_bias=logit_bias, allowed=allowed, logprobs=logprobs, logprobs_of=logprobs_of)
        params = self._params(sampler, eos=eos) + options.pack(self.model.vocab_size)
        output = await self._last_output()
        self._check_room(1)
        _, _, slot = self._cache.places()
        sampled = await self.queue.sample_packed(output, slot, params)
        self.tokens.append(sampled.token)
        return sampled

    @alone
    async def propose(
        self, tokens: Sequence[int], sampler: Sampler | None = None, *, eos: bool = True, top_k: int | None = None
    ) -> Proposal:
        """Verify drafts: compute them behind the context in one forward pass, and sample after each of them.

        The drafts don't become part of the context; `accept` appends them. Random numbers depend on positions alone, so
        `Proposal.tokens` are exactly the tokens that `generate` gives with the same sampler, greedy or not. Each pass
        gives one token more than the drafts that agree.

        Args:
            tokens: the drafts; none to verify nothing and sample one token.
            sampler: what the drafts are compared with; greedy by default.
            eos: whether the model's end-of-sequence tokens count as stop tokens (`Sampled.ended`).
            top_k: how many tokens the distributions of `Proposal.dists` have, 0 for 256; None for no distributions.

        Raises:
            InvalidArgument: the context is closed or empty, another task generates from it, or a draft isn't in the
                vocabulary.
            ContextTooLong: the drafts need positions that the model doesn't have: give at most `room` drafts.

        Example:
            >>> async def main():
            ...     async with Context() as ctx, Context() as other:
            ...         ctx.fill("One, two,")
            ...         other.fill("One, two,")
            ...         await other.generate_until(max_tokens=4)
            ...         verified = await ctx.propose([*other.tokens[-4:-1], 7])  # three good drafts, and a bad one
            ...         print(verified.agreed, ctx.accept(verified) == other.tokens[-4:])
            3 True
        """
        drafts = self._ids("propose", tokens)
        params = self._params(sampler, eos=eos)
        await self._begin()
        self._check_room(max(len(drafts), 1))
        outputs = self._cache.verify(self.tokens, drafts)
        known = outputs[: self.room]
        slots = self._cache.slots(len(known))
        chosen = [self.queue.sample_packed(output, slot, params) for output, slot in zip(known, slots, strict=True)]
        asked = None if top_k is None else self.queue.get_next_dists(known, top_k=top_k)
        choices = tuple(await asyncio.gather(*chosen))
        proposal = Proposal(tuple(drafts), choices, () if asked is None else await asked)
        self._proposal = proposal
        return proposal

    def accept(self, proposal: Proposal, n: int | None = None) -> list[int]:
        """Append what `propose` has verified; return the appended tokens.

        Args:
            proposal: what the last `propose` of this context returned; nothing else was done with the context since.
            n: append the first n drafts, whatever the sampler chose; None for `Proposal.tokens`: the drafts that agree,
                and the token that the sampler chose behind them.

        Raises:
            InvalidArgument: the proposal is of another context, or the context was changed since.
            ValueError: there are fewer than `n` drafts.

        Example:
            >>> async def main():
            ...     async with Context() as ctx:
            ...         ctx.fill("One, two,")
            ...         verified = await ctx.propose([72, 105])
            ...         print(ctx.accept(verified, 1), ctx.tokens[-1])
            [72] 72
        """
        self._check_open()
        if proposal is not self._proposal:
            detail = "it isn't the last one of this context, or the context was changed since"
            raise InvalidArgument(argument="proposal", detail=detail)
        if n is None:
            taken = proposal.tokens
        else:
            whole("n", n, 0)
            if n > len(proposal.drafts):
                raise ValueError(f"n is {n}, and the proposal has {len(proposal.drafts)} drafts")
            taken = list(proposal.drafts[:n])
        self._proposal = None
        self.tokens.extend(taken)
        # The drafts have their keys and values; the last token is computed again, because its output is gone.
        self._cache.length += len(taken)
        return taken

    @alone
    async def score(self, text: str | Sequence[int]) -> list[float]:
        """Return the log-probability of each token of a text as the continuation of the context.

        The context stays as it is. The sum of the list is the log-probability of the text.

        Args:
            text: a text, tokenized without special tokens, or tokens.

        Raises:
            InvalidArgument: the context is closed or empty, another task generates from it, or a token isn't in the
                vocabulary.
            ContextTooLong: the text needs positions that the model doesn't have.

        Example:
            >>> async def main():
            ...     async with Context() as ctx:
            ...         ctx.fill("The sky is ")
            ...         blue, green = await ctx.score("blue"), await ctx.score("green")
            ...         print(len(blue), sum(blue) < 0, sum(green) < 0)
            4 True True
        """
        await self._begin()
        if isinstance(text, str):
            scored = await tokenize_with(self.model, text, special=False)
        else:
            scored = self._ids("score", text)
        self._check_room(len(scored))
        told: list[float] = []
        size = self.model.vocab_size
        plain = pack_sampler(Greedy(), 0, 0, ())
        everything = self.tokens + scored
        before = len(self.tokens)
        try:
            for start in range(before, len(everything), SCORED_AT_ONCE):
                part = everything[start : start + SCORED_AT_ONCE]
                outputs = self._cache.verify(everything[:start], part[:-1])
                slots = self._cache.slots(len(outputs))
                asked = [
                    self.queue.sample_packed(output, slot, plain + Options(logprobs_of=[token]).pack(size))
                    for token, output, slot in zip(part, outputs, slots, strict=True)
                ]
                told += [each.logprobs[token] for token, each in zip(part, await asyncio.gather(*asked), strict=True)]
        finally:
            self._cache.cut(before)
        return told

    # ---- parts ------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Turn input into tokens; the context has some, and they fit the model's positions."""
        await self._ready()
        if not self.tokens:
            raise InvalidArgument(argument="context", detail="it is empty: fill in a prompt first")
        self._check_room(0)

    async def _last_output(self) -> Embed:
        """Compute the context and return the embed with the output of its last token."""
        await self._begin()
        _, output, _ = self._cache.places()
        self._cache.compute(self.tokens, len(self.tokens), output)
        return output

    def _check_room(self, tokens: int) -> None:
        if tokens > self.room:
            limit = self.model.max_position
            raise ContextTooLong(position=len(self.tokens) + tokens - 1, limit=limit)

    def _params(self, sampler: Sampler | None, *, eos: bool) -> bytes:
        chosen: object = Greedy() if sampler is None else sampler
        if not isinstance(chosen, Sampler):
            detail = "the device samples: for a choice of the program's own use next_dist, then fill_tokens"
            raise InvalidArgument(argument="sampler", detail=detail)
        return pack_sampler(chosen, self.seed, self.draw, self.model.stop_tokens if eos else ())

    def _ids(self, call: str, tokens: Sequence[int]) -> list[int]:
        listed = token_list(call, tokens)
        if listed and max(listed) >= self.model.vocab_size:
            detail = f"{max(listed)} is not in the vocabulary of {self.model.vocab_size}"
            raise InvalidArgument(argument="tokens", detail=detail)
        return listed
