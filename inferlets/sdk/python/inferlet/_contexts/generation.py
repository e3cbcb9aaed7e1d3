"""One generation over a context: run-ahead, stopping, text.

With run-ahead, decode steps are queued before the program has seen the tokens that they build on: `sample` leaves its
token in a slot on the device, and the next `embed_txt` reads the slot there. When generation ends early, the steps that
have not reached the engine are cancelled. The other steps have written keys and values after the end of the context.
Attention never sees these, because their positions are past the position of every query, and later tokens overwrite
them.
"""

from __future__ import annotations

import asyncio
import codecs
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from math import inf, log
from operator import index
from typing import NamedTuple, Protocol, Self

from inferlet._contexts.choosing import pack_sampler
from inferlet._contexts.compiled import Compiled, Following, acquire, release
from inferlet._contexts.kv_cache import KvCache
from inferlet._contexts.pieces import Piece
from inferlet._generated import packers
from inferlet._models.vocab import vocab_of
from inferlet._queues.queue import Queue
from inferlet._values.arguments import shown
from inferlet._values.types import Dist, Model, Sampled
from inferlet._wire.channel import channel
from inferlet._wire.options import Options
from inferlet.errors import InvalidArgument
from inferlet.sampling import AnySampler, End, Sampler
from inferlet.stopping import Scanner, Stop


class GeneratingContext(Protocol):
    """A context, as far as its generation uses and changes it."""

    model: Model
    queue: Queue
    seed: int
    draw: int
    run_ahead: int
    tokens: list[int]


class _Ahead(NamedTuple):
    """A token whose computation is queued."""

    first: int  # the ticket of the first command
    answer: asyncio.Future[Sampled] | asyncio.Future[Dist]  # the token, or what the program samples it from
    forced: Sampled | None = None  # the token that the grammar forces; the answer tells one behind it


class Generation:
    """An asynchronous iterator over `Piece`s, made by `Context.generate`.

    `text` and `tokens` are the text and the tokens so far. At the end, `stopped_by` says why: "length" (or the
    model's last position), "token", "until", "sampler", or "grammar" if nothing can follow in the grammar's text.
    After "until", `stop_text` is the stop string that was found. `num_forced` counts the tokens that the grammar forced
    and that took no step of their own (`skip_forced`).

    Example:
        >>> async def main():
        ...     ctx = Context(seed=1)
        ...     ctx.fill("Hello,")
        ...     generation = ctx.generate(max_tokens=2)
        ...     async for piece in generation:
        ...         print(len(generation.tokens), generation.text.endswith(piece))
        ...     print(generation.stopped_by)
        1 True
        2 True
        length
    """

    def __init__(  # noqa: PLR0913 - what a context knows of it
        self,
        context: GeneratingContext,
        cache: KvCache,
        stop: Stop,
        sampler: AnySampler,
        *,
        options: Options,
        following: Following | None = None,
        eos: bool,
        prepare: Callable[[], Awaitable[None]],
        ended: Callable[[], None],
    ) -> None:
        """Check the sampler; nothing is computed yet.

        Args:
            context: the tokens to continue.
            cache: its keys and values.
            stop: what ends the generation.
            sampler: chooses each token.
            options: what `sample` shall do beyond the sampler.
            following: the grammar that the text follows.
            eos: whether the model's end-of-sequence tokens end the generation.
            prepare: turns what was filled into the context into tokens that can be computed.
            ended: called once, when the generation is over.

        Raises:
            InvalidArgument: the sampler is none, an option is wrong, or a function shall sample with options.
        """
        if not isinstance(sampler, Sampler) and (isinstance(sampler, type) or not callable(sampler)):
            told = getattr(sampler, "__name__", repr(sampler))
            detail = f"{told} is neither a Sampler, as Temperature(0.7) is, nor a function of a Dist"
            raise InvalidArgument(argument="sampler", detail=detail)
        self._context = context
        self._cache = cache
        self._prepare, self._tell_ended = prepare, ended
        self._vocab = vocab_of(context.model)
        self._limit = stop.max_tokens
        self._stop_tokens = frozenset(stop.tokens) | (frozenset(context.model.stop_tokens) if eos else frozenset())
        self._scanner = Scanner(stop.until)
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._sampler = sampler
        self._options = options
        self._following = following
        self._compiled: Compiled | None = None  # until the `sample` that names it was answered
        packed = options.pack(context.model.vocab_size)
        if packed and not isinstance(sampler, Sampler):
            detail = "a function of a Dist chooses each token itself: bias, penalties and log-probabilities are its own"
            raise InvalidArgument(argument="sampler", detail=detail)
        self._with_bytes = isinstance(sampler, Sampler) and self._vocab.is_large
        self._plain = b""
        if isinstance(sampler, Sampler):
            self._plain = pack_sampler(sampler, context.seed, context.draw, self._stop_tokens)
        self._params = self._plain + packed
        self._ahead: deque[_Ahead] = deque()  # one for each token, in order
        self._depth = context.run_ahead if isinstance(sampler, Sampler) else 0
        self._newest = -1  # position of the token sampled last; -1: not started
        self._left = 0  # tokens that may still be asked for
        self._texts: list[str] = []
        self.tokens: list[int] = []
        self.num_forced = 0
        self.stopped_by: str | None = None
        self._ended = False
        self._busy = False  # a task computes the prompt or fetches the bytes of a token
        self._sampler_ended = False
        self._latest: Sampled | None = None
        self._displaced = False  # the program began something else on the context

    @property
    def ended(self) -> bool:
        """Whether the generation is over."""
        return self._ended

    @property
    def text(self) -> str:
        """The text so far, without the stop string."""
        return "".join(self._texts)

    @property
    def stop_text(self) -> str | None:
        """The stop string that ended the generation; None if none did."""
        return self._scanner.found

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        while not self.ended:
            if self._newest < 0:
                self._busy = True
                try:
                    await self._start()
                finally:
                    self._busy = False
                continue
            while len(self._ahead) <= self._depth and self._left:
                self._step()
            if not self._ahead:  # nothing may be generated at all
                self._end("length")
                break
            try:
                sampled = await self._arrival()
            except BaseException:
                self.stop()  # failed, or the task was cancelled: the context ends at the last token given out
                raise
            if not self._ahead:  # stopped by another task meanwhile
                if self._displaced:
                    raise generates_already()
                break
            self.num_forced += self._ahead.popleft().forced is not None
            piece = self._close() if sampled is None else self._accept(sampled)
            if piece is not None and (piece or not self.ended):
                return piece
        raise StopAsyncIteration

    async def _start(self) -> None:
        """Compute the prompt and sample the first token."""
        context = self._context
        await self._prepare()
        length = len(context.tokens)
        if not length:
            raise InvalidArgument(argument="context", detail="it is empty: fill in a prompt first")
        self._newest = length - 1
        self._left = context.model.max_position - length
        if self._limit is not None:
            self._left = min(self._left, self._limit)
        if self._left > 0:
            if not self._with_bytes:
                self._vocab.prefetch()
            _, output, _ = self._cache.places()
            params = self._params
            self._cache.compute(context.tokens, length, output)
            grammar = await self._begin_grammar(length)
            if self._ended:
                return
            if grammar is not None or self._options.penalises:
                history = (set(context.tokens), ()) if self._options.penalises else None
                self._params = self._plain + self._options.pack(context.model.vocab_size, history, grammar)
            self._sample(channel.next_ticket)
            self._params = params

    async def _begin_grammar(self, length: int) -> tuple[int, list[int]] | None:
        """Return the compiled grammar, and the tokens of the context that its text begins with."""
        following = self._following
        if following is None:
            return None
        first = length if following.first is None else following.first
        if not 0 <= first <= length:
            raise InvalidArgument(argument="grammar_from", detail=f"{first} is not within 0 to {length}")
        try:
            self._compiled = await acquire(self._context.queue, following.grammar)
        except BaseException:
            self.stop()
            raise
        return self._compiled.handle, self._context.tokens[first:]

    def _named(self) -> None:
        """Let the grammar go, because the `sample` that names it has been answered or won't come."""
        compiled, self._compiled = self._compiled, None
        if compiled is not None:
            release(compiled)

    def _step(self) -> None:
        """Queue one decode step after the token that was sampled last."""
        first = channel.next_ticket
        source = self._cache.places()[2] if self._params else self._context.tokens[-1]
        self._cache.decode(self._newest, source)
        self._sample(first)

    def _sample(self, first: int) -> None:
        _, output, slot = self._cache.places()
        queue = self._context.queue
        if self._params:
            self._ahead.append(_Ahead(first, queue.sample_packed(output, slot, self._params, self._with_bytes)))
        else:
            self._ahead.append(_Ahead(first, queue.get_next_dist(output)))
        self._newest += 1
        self._left -= 1

    def _skip(self, forced: Sequence[int]) -> None:
        """Queue one forward of the tokens that the grammar forces behind the newest accepted one.

        Tokens of which a step is queued already take that step. A stop token takes its step too, because it ends the
        text.
        """
        stop = next((at for at, token in enumerate(forced) if token in self._stop_tokens), len(forced))
        queued, most = len(self._ahead), len(self._ahead) + self._left - 1  # a token is sampled behind them
        new = forced[queued : min(stop, most)]
        if not new:
            return
        before = forced[queued - 1] if queued else self._context.tokens[-1]
        first, (_, output, slot) = channel.next_ticket, self._cache.places()
        self._cache.write([before, *new], self._newest, output)
        params = self._plain + self._options.pack(self._context.model.vocab_size, grammar=(0, new))
        answer = self._context.queue.sample_packed(output, slot, params, self._with_bytes)
        for token in new:
            self._ahead.append(_Ahead(first, answer, Sampled(token, ended=False, logprob=0.0)))
        self._ahead.append(_Ahead(first, answer))
        self._newest += len(new) + 1
        self._left -= len(new) + 1

    async def _arrival(self) -> Sampled | None:
        """Wait for the next token, and for its bytes if they are not known yet; None if the sampler takes no more."""
        forced = self._ahead[0].forced
        value: Sampled | Dist = await self._ahead[0].answer  # no name for the future: its error would hold the frame
        sampled = forced or (value if isinstance(value, Sampled) else self._choose(value))
        if sampled is None:
            return None
        if sampled.token_bytes is not None:
            self._vocab.known[sampled.token] = sampled.token_bytes
        for token in (sampled.token, *sampled.logprobs):
            if token not in self._vocab.known and not self._ended:
                self._busy = True
                try:
                    await self._vocab.fetch(token)
                finally:
                    self._busy = False
        return sampled

    def _choose(self, dist: Dist) -> Sampled | None:
        """Let the program's own sampler decide; None if it ends the generation without a token."""
        assert not isinstance(self._sampler, Sampler)
        chosen = self._sampler(dist)
        if isinstance(chosen, End):
            self._sampler_ended = True
            if chosen.token is None:
                return None
            chosen = chosen.token
        size = self._context.model.vocab_size
        try:
            token = index(chosen)
        except TypeError:
            token = -1
            if hasattr(chosen, "__await__"):
                if hasattr(chosen, "close"):
                    chosen.close()  # nobody will await it
                detail = "it is an async function, but is called between two tokens: make it a plain one (`def`)"
                raise InvalidArgument(argument="sampler", detail=detail) from None
        if not 0 <= token < size:
            raise InvalidArgument(
                argument="sampler", detail=f"it chose {shown(chosen)}, which is no token id below {size}"
            )
        prob = dist.prob(token)
        return Sampled(token, token in self._stop_tokens, log(prob) if prob > 0 else -inf)

    def _accept(self, sampled: Sampled) -> Piece:
        """Append a token to the context; return the text that it completes."""
        token, self._latest = sampled.token, sampled
        self._context.tokens.append(token)
        self._cache.length = len(self._context.tokens) - 1
        self.tokens.append(token)
        reason = None
        if token in self._stop_tokens:
            reason = "token"
        elif self._sampler_ended:
            reason = "sampler"
        elif sampled.ended:
            reason = "grammar"
        elif not self._left and not self._ahead:
            reason = "length"
        self._named()
        no_text = reason == "token" or (sampled.ended and token in self._context.model.stop_tokens)
        raw = b"" if no_text else self._vocab.known.get(token, b"")
        text = self._scanner.feed(self._utf8.decode(raw, final=reason is not None))
        if self.stop_text is not None:
            reason = "until"
        elif reason:
            text += self._scanner.rest()
        if reason:
            self._end(reason)
        elif sampled.forced:
            self._skip(sampled.forced)
        if text:
            self._texts.append(text)
        return Piece.of(text, sampled, self._vocab.known)

    def _close(self) -> Piece | None:
        """End without a further token; return the text that was held back, if there is some."""
        text = self._scanner.feed(self._utf8.decode(b"", final=True))
        if self.stop_text is None:
            text += self._scanner.rest()
        self._end("sampler" if self.stop_text is None else "until")
        if not text or self._latest is None:
            return None
        self._texts.append(text)
        return Piece.of(text, self._latest, self._vocab.known)

    def _end(self, reason: str) -> None:
        self.stopped_by = reason
        self.stop()

    def give_way(self) -> None:
        """End, because the program begins something else on the context.

        Raises:
            InvalidArgument: a task awaits the next piece.
        """
        if self._busy or (self._ahead and self._ahead[0].answer._callbacks):  # noqa: SLF001 - somebody awaits it
            raise generates_already()
        self._displaced = True
        self.stop()

    def stop(self) -> None:
        """End now: the context ends at the last token that the program got, and queued steps are dropped."""
        if self._ended:
            return
        self._ended = True
        context = self._context
        if self._ahead:
            first = self._ahead[0].first
            self._ahead.clear()
            channel.record(*packers.cancel(context.queue.id, first))
            self._cache.give_back_ahead(len(context.tokens), first)
        self._named()
        self._tell_ended()
        self._cache.end_at(len(context.tokens))


def generates_already() -> InvalidArgument:
    """Make the error of a call on a context with which another task computes."""
    return InvalidArgument(argument="context", detail="it generates already: fork it to generate twice at once")
