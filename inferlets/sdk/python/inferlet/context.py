"""`Context`: a sequence of tokens that grows, with its KV pages (the support library of the paper's section 6.3).

Example:
    >>> async def main():
    ...     model = await get_model()
    ...     ctx = Context(model)
    ...     ctx.fill("Hello,")
    ...     print(len(await ctx.generate_until(max_tokens=10)) > 0)
    True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self
from zlib import crc32

from inferlet._calls.program import default_queue
from inferlet._contexts.compiled import Following
from inferlet._contexts.generation import Generation
from inferlet._contexts.paging import Paging
from inferlet._contexts.sequence import RUN_AHEAD
from inferlet._queues.queue import Queue
from inferlet._values.arguments import shown, whole
from inferlet._values.refusals import handles
from inferlet._values.types import Adapter, KvPage, Model
from inferlet._wire.options import Options
from inferlet.errors import InvalidArgument
from inferlet.grammar import Grammar
from inferlet.sampling import AnySampler, Greedy, Sampler
from inferlet.stopping import Stop, conditions


class Context(Paging):
    """A sequence of tokens with its keys and values. Fill a context, generate from it, fork it.

    Each context has its own command queue, so the commands of several contexts can run in one batch. `fill` and `chat`
    only store their input. `generate`, `generate_until` and `flush` compute it. A context frees its pages when it is
    closed, at the end of its `async with` block, or when Python collects it.

    Example:
        >>> async def main():
        ...     async with Context(seed=1) as ctx:
        ...         ctx.fill("One, two,")
        ...         await ctx.generate_until(max_tokens=3, sampler=Temperature(0.7))
        ...         ctx.fill(" and then")  # goes on behind the answer
        ...         await ctx.generate_until(max_tokens=3)
        ...         print(len(ctx), ctx.num_pages)
        25 2
    """

    def generate(  # noqa: PLR0913 - what `sample` can do
        self,
        stop: Stop | str | None = None,
        *,
        max_tokens: int | None = None,
        sampler: AnySampler | None = None,
        eos: bool = True,
        logit_bias: Mapping[int, float] | None = None,
        allowed: Sequence[int] | bytes | None = None,
        logprobs: int = 0,
        logprobs_of: Sequence[int] = (),
        repetition_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        grammar: Grammar | None = None,
        grammar_from: int | None = None,
        skip_forced: bool = False,
    ) -> Generation:
        """Generate text, as an asynchronous iterator over its pieces.

        A piece is a `str` with the attributes `token` and `logprob`. The pieces together are the text, without a stop
        string. A piece may be empty, because the bytes of one character can be spread over several tokens, and because
        text that may become a stop string is held back. The context keeps all generated tokens, those of stop strings
        and stop tokens included. A program may leave the loop early.

        Args:
            stop: a condition (see `inferlet.stopping`), or a string that ends the text.
            max_tokens: the largest number of tokens to generate; None for no limit.
            sampler: how each token is chosen (see `inferlet.sampling`); greedy by default.
            eos: whether the model's end-of-sequence tokens end the text.
            logit_bias: is added to the logits of these tokens; -100 or less makes a token impossible.
            allowed: only these tokens may be sampled: a list of token ids, or one bit for each token of the vocabulary.
            logprobs: each piece's `logprobs` tells the log-probabilities of so many tokens, the most probable first.
            logprobs_of: and of these tokens.
            repetition_penalty: makes tokens of the context and of the generated text less probable, above 1.
            frequency_penalty: makes tokens less probable the more often they stand in the generated text.
            presence_penalty: makes tokens less probable that stand in the generated text.
            grammar: the text is one of this grammar, unless it is cut off (see `inferlet.grammar`). It ends where
                nothing can follow.
            grammar_from: the place in `tokens` where the grammar's text begins, if the context has a part of it, as
                after a fork; None: the text begins with the first new token.
            skip_forced: tokens that alone may follow in the grammar's text are computed together, without a step for
                each. Their `logprob` is 0. The text is the same as without. Steps that run ahead take forced tokens one
                by one, so `Context(run_ahead=0)` skips the most. With a sampler of the program's own, penalties, or
                tokens that are told, biased or allowed, each token takes its step.

        Raises:
            TypeError: `stop` is no condition.
            InvalidArgument: the context is closed or empty, another task generates from it, `sampler` is none, or an
                argument is out of its range.

        Example:
            >>> async def main():
            ...     async with Context(seed=1) as ctx:
            ...         ctx.fill("Hello,")
            ...         async for piece in ctx.generate(Until("."), max_tokens=5, sampler=Temperature(0.7) | TopK(40)):
            ...             print(len(piece), piece.token < 300)
            1 True
            1 True
            1 True
            1 True
            1 True
        """
        condition = conditions(stop, max_tokens)
        self._check_open()
        self._interrupt()
        chosen = Greedy() if sampler is None else sampler
        options = Options(
            logit_bias=logit_bias,
            allowed=allowed,
            logprobs=logprobs,
            logprobs_of=logprobs_of,
            repetition_penalty=repetition_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            follows=grammar is not None,
        )
        if skip_forced and isinstance(chosen, Sampler) and options.pack(0) == Options(follows=True).pack(0):
            options = Options(follows=True, forced=True)
        if grammar is not None and not isinstance(grammar, Grammar):
            raise InvalidArgument(
                argument="grammar", detail=f"json_schema, regex, lark and ebnf give one, not {shown(grammar)}"
            )
        self._active = Generation(
            self,
            self._cache,
            condition,
            chosen,
            options=options,
            following=None if grammar is None else Following(grammar, grammar_from),
            eos=eos,
            prepare=self._ready,
            ended=self._generation_ended,
        )
        return self._active

    async def generate_until(
        self,
        stop: Stop | str | None = None,
        *,
        max_tokens: int | None = None,
        sampler: AnySampler | None = None,
        eos: bool = True,
        **options: Any,
    ) -> str:
        """Generate until a condition holds, and return the text. The arguments are those of `generate`.

        Example:
            >>> async def main():
            ...     async with Context() as ctx:
            ...         ctx.fill("Hello,")
            ...         text = await ctx.generate_until(Until("."), max_tokens=20)
            ...         print(len(text) > 0)
            True
        """
        generation = self.generate(stop, max_tokens=max_tokens, sampler=sampler, eos=eos, **options)
        async for _ in generation:
            pass
        return generation.text

    @classmethod
    async def load(
        cls,
        name: str,
        model: Model | None = None,
        *,
        seed: int | None = None,
        run_ahead: int = RUN_AHEAD,
        adapter: Adapter | str | None = None,
    ) -> Self:
        """Make a context that begins with the tokens that were saved under a name.

        It shares the rows that its engine has of them. What is missing, because the engine was lost or its memory was
        short, is computed when the context is.

        Args:
            name: the name that `save` was given, by this program or another of the tenant.
            model: the model that the name was saved with; None for the program's default model.
            seed: as for `Context`.
            run_ahead: as for `Context`.
            adapter: as for `Context`. Rows that were saved under another adapter aren't shared.

        Raises:
            InvalidArgument: `name` is none.
            UnknownName: nothing is saved under the name for this model.

        Example:
            >>> async def main():
            ...     try:
            ...         ctx = await Context.load("documents")
            ...     except errors.UnknownName:
            ...         ctx = Context()
            ...         ctx.fill("The documents that many questions are about. ")
            ...         print((await ctx.save("documents")).version)
            1
        """
        made = cls(model, seed=seed, run_ahead=run_ahead, adapter=adapter)
        try:
            found = await made.queue.import_tokens(name)
        except BaseException:
            made.close()
            raise
        made.tokens = list(found.tokens)
        return made

    @classmethod
    async def from_pages(
        cls,
        pages: KvPage | Sequence[KvPage],
        tokens: Sequence[int],
        model: Model | None = None,
        *,
        queue: Queue | None = None,
        seed: int | None = None,
        run_ahead: int = RUN_AHEAD,
        adapter: Adapter | str | None = None,
    ) -> Self:
        """Make a context of KV pages that the program has filled itself.

        The keys and values are copied, so the pages stay the program's, with what they hold. Marks of `mask_kvpage` go
        with them. The last token is computed again when the context needs its output.

        Such a context isn't plain: what it holds doesn't follow from its tokens. So nothing of it is shared by the
        prefix cache, `save` raises `NotPlain`, and if its engine is lost the program ends in `WorkerLost`. A context
        that is filled with the tokens instead (`fill_tokens`) is plain.

        Args:
            pages: slot i % page_size of page i // page_size holds token i, at position i; of all tokens but the last.
            tokens: the tokens.
            model: the model that computed the pages; None for the program's default model.
            queue: the queue whose commands fill the pages; None for the default queue. Its commands are awaited.
            seed: as for `Context`.
            run_ahead: as for `Context`.
            adapter: the adapter under which the pages were computed, and the context goes on.

        Raises:
            InvalidArgument: there are fewer pages than the tokens need, or a token isn't in the vocabulary.
            PageQuotaExceeded, ProgramTooLarge: the program would hold more pages than it may.

        Example:
            >>> async def main():
            ...     prompt, (page,), embeds = [72, 105], alloc_kvpage(1), alloc_emb(2)
            ...     embed_txt(prompt, [0, 1], embeds)
            ...     forward([], embeds, page)
            ...     async with await Context.from_pages(page, prompt) as ctx, Context() as other:
            ...         other.fill_tokens(prompt)
            ...         print(await ctx.generate_until(max_tokens=4) == await other.generate_until(max_tokens=4))
            True
        """
        held = handles("from_pages", "pages", KvPage, pages)
        made = cls(model, seed=seed, run_ahead=run_ahead, adapter=adapter)
        try:
            listed = made._ids("from_pages", tokens)
            count = max(len(listed) - 1, 0)
            if count > len(held) * made.model.page_size:
                detail = (
                    f"{len(held)} of {made.model.page_size} tokens can't hold {count}, all of `tokens` but the last"
                )
                raise InvalidArgument(argument="pages", detail=detail)
            await (queue or default_queue()).synchronize()
            made._cache.copy_in(count, held)
            await made.queue.synchronize()
        except BaseException:
            made.close()
            raise
        made.tokens = listed
        return made

    def fork(self, n: int = 1) -> list[Context]:
        """Make `n` contexts that begin with this context's tokens.

        The forks share the full pages of this context. If its last page is partly filled, each fork computes the tokens
        of that page again. Each fork draws its own random numbers from the same seed.

        Raises:
            ValueError: `n` is negative.
            InvalidArgument: the context is closed, or another task generates from it.

        Example:
            >>> async def main():
            ...     ctx = Context(seed=0)
            ...     ctx.fill("One prompt, ")
            ...     forks = ctx.fork(4)
            ...     texts = await asyncio.gather(*(fork.generate_until(max_tokens=4) for fork in forks))
            ...     print(len(texts))
            4
        """
        whole("the number of forks", n, 0)
        self._check_open()
        self._interrupt()
        self._settle_input()
        size = self.model.page_size
        shared = max(len(self.tokens) - 1, 0) // size * size  # each fork computes the rest, and the last token's output
        self._cache.compute(self.tokens, shared)
        self._forks += 1
        children = [self._child(shared, self._forks, i) for i in range(n)]
        after = self.queue.synchronize() if shared and children else None
        for child in children:
            child._after = after  # noqa: SLF001 - of the same class
        return children

    def _child(self, shared: int, fork: int, i: int) -> Context:
        caching = self.queue.prefix_cache
        child = Context(
            self.model, seed=self.seed, run_ahead=self.run_ahead, prefix_cache=caching, adapter=self.adapter
        )
        child.draw = crc32(f"{self.draw}/{fork}/{i}".encode())
        child.tokens = self.tokens.copy()
        child._answering = self._answering
        child._form = self._form
        child._cache = self._cache.fork(child.queue, shared)
        return child
