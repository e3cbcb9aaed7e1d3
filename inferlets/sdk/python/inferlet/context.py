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

import asyncio
import random
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from zlib import crc32

from inferlet._calls.program import give_queue_back, take_queue
from inferlet._contexts.chat_text import Chat, Text, plain
from inferlet._contexts.generation import Generation
from inferlet._contexts.kv_cache import KvCache
from inferlet._models.models import default_model
from inferlet._values.arguments import messages as listed_messages
from inferlet._values.arguments import text as text_argument
from inferlet._values.arguments import token_list, whole
from inferlet._values.arguments import tools as listed_tools
from inferlet._values.types import Message, Model, Priority, Tool
from inferlet._wire.channel import channel
from inferlet._wire.options import Options
from inferlet.errors import InvalidArgument
from inferlet.sampling import AnySampler, Greedy
from inferlet.stopping import Stop, conditions

RUN_AHEAD = 4
"""How many decode steps are queued before the program has seen their tokens."""


class Context:
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

    def __init__(self, model: Model | None = None, *, seed: int | None = None, run_ahead: int = RUN_AHEAD) -> None:
        """Make an empty context.

        Args:
            model: the model that computes it; None for the program's default model.
            seed: the key of the samplers' random numbers; None to draw a seed from `random`.
            run_ahead: how many decode steps are queued before the program has seen their tokens; 0 waits for each
                token. The text is the same for every number.

        Raises:
            TypeError: `model` is no `Model` (a model's name, for example), or a number is no whole number.
            ValueError: `run_ahead` is negative.
        """
        self._closed = True  # so that `__del__` does nothing if the constructor fails
        if model is not None and not isinstance(model, Model):
            raise TypeError(f"Context takes a model, not {model!r}: `await get_model(name)` gives one")
        if seed is not None:
            whole("seed", seed)
        whole("run_ahead", run_ahead, 0)
        self.model = model or default_model()
        self.queue = take_queue(self.model)
        self.seed = random.getrandbits(64) if seed is None else seed
        self.draw = 0
        self.run_ahead = run_ahead
        self.tokens: list[int] = []
        """The tokens of the context, generated ones included. Text appears here once it has been computed."""
        self._cache = KvCache(self.queue, self.model)
        self._parts: list[Text | list[int]] = []
        self._form: dict[str, Any] = {}  # the tools and variables of its chat
        self._answering = False  # chat messages with a generation prompt come last, or the answer to them
        self._after: asyncio.Future[None] | None = None  # ends when the parent has computed the shared tokens
        self._active: Generation | None = None
        self._forks = 0
        self._closed = False

    # ---- input ------------------------------------------------------------------------------------------------

    def fill(self, text: str, *, special: bool | None = None) -> None:
        """Append text.

        Args:
            text: the text.
            special: whether to add the special tokens that the tokenizer puts around a text, such as BOS. By default
                only the first text of a context gets them.

        Raises:
            TypeError: `text` is no `str`.
            InvalidArgument: the context is closed, or another task generates from it.

        Example:
            >>> async def main():
            ...     ctx = Context()
            ...     ctx.fill("2+2=")
            ...     ctx.fill("4")  # continues it
            ...     await ctx.flush()
            ...     print((await detokenize(ctx.tokens)).endswith("2+2=4"))
            True
        """
        text_argument("fill", text, ": `fill_tokens` takes tokens, and `chat` messages")
        self._check_open()
        self._interrupt()
        if special is None:
            special = not self.tokens and not self._parts
        if text or special:
            self._parts.append(Text(plain(self.model, text, special)))

    def fill_tokens(self, tokens: Sequence[int]) -> None:
        """Append tokens, given by their ids.

        Raises:
            InvalidArgument: an id is not in the model's vocabulary, the context is closed, or another task generates
                from it.

        Example:
            >>> async def main():
            ...     ctx = Context()
            ...     ctx.fill_tokens([72, 105])
            ...     await ctx.flush()
            ...     print(ctx.tokens)
            [72, 105]
        """
        listed = token_list("fill_tokens", tokens)
        if listed and max(listed) >= self.model.vocab_size:
            detail = f"{max(listed)} is not in the vocabulary of {self.model.vocab_size}"
            raise InvalidArgument(argument="tokens", detail=detail)
        self._check_open()
        self._interrupt()
        if listed:
            self._parts.append(listed)

    def chat(
        self,
        messages: Sequence[Message] | str,
        *,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, object] | None = None,
        add_generation_prompt: bool = True,
    ) -> None:
        """Append chat messages in the form that the model was trained on.

        Messages after other tokens continue the dialogue: the context closes a previous answer, and writes nothing that
        belongs at the start of a text, such as BOS. Tokens that were computed stay as they are. So give
        `add_generation_prompt=False` if the program wants no answer and appends something else before the next `chat`.

        Args:
            messages: a list of messages in the form of `format_chat`, or a string, which is one message of the user.
            tools: the tools that the model may call. Templates write them at the beginning, so they come with the first
                messages.
            variables: further variables of the template, such as `{"enable_thinking": False}`. They hold for this call
                and for later calls of `chat`.
            add_generation_prompt: whether to end with the tokens that begin an answer.

        Raises:
            InvalidArgument: tools came after other tokens. Errors of `format_chat` are raised when the messages are
                computed.

        Example:
            >>> async def main():
            ...     async with Context() as ctx:
            ...         ctx.chat("How far is the moon?")  # as [{"role": "user", "content": ...}]
            ...         first = await ctx.generate_until(max_tokens=8)
            ...         ctx.chat("And the sun?")  # the dialogue goes on
            ...         print(len(await ctx.generate_until(max_tokens=8)) > 0)
            True
        """
        messages = (
            [{"role": "user", "content": messages}] if isinstance(messages, str) else listed_messages("chat", messages)
        )
        tools = None if tools is None else listed_tools("chat", tools)
        self._check_open()
        last = self._parts[-1] if self._parts else None
        begins, answering = not self.tokens and not self._parts, self._answering
        if isinstance(last, Chat):  # nothing stands between: they are one chat
            messages, begins, answering = [*last.messages, *messages], last.begins, last.answering
        if tools is not None and not begins:
            told = "templates write them at the beginning: give them to the `chat` that a context begins with"
            raise InvalidArgument(argument="tools", detail=told)
        given = {"tools": tools, "variables": variables}
        kept = self._form | {name: value for name, value in given.items() if value is not None}
        self._interrupt()
        form = kept | {"add_generation_prompt": add_generation_prompt}
        chat = Chat(self.model, messages, self.tokens, form=form, begins=begins, answering=answering)
        if isinstance(last, Chat):
            self._parts.pop()
        self._parts.append(chat)
        self._form, self._answering = kept, add_generation_prompt

    async def flush(self) -> None:
        """Compute all tokens but the last, and wait for the result.

        The last token is computed together with the next one, because generation needs its output.

        Example:
            >>> async def main():
            ...     ctx = Context()
            ...     ctx.fill("A prompt that many questions share: ")
            ...     await ctx.flush()  # before the first question is there
            ...     print(ctx.num_pages > 0)
            True
        """
        await self._ready()
        self._cache.compute(self.tokens, len(self.tokens) - 1)
        await self.queue.synchronize()

    # ---- output -----------------------------------------------------------------------------------------------

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
        )
        self._active = Generation(
            self,
            self._cache,
            condition,
            chosen,
            options=options,
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

    # ---- life -------------------------------------------------------------------------------------------------

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
        for part in self._parts:
            self.tokens.extend(part if isinstance(part, list) else part.tokens_now())
        self._parts.clear()
        if self._after is not None and not self._after.done():
            channel.result(self._after)
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
        child = Context(self.model, seed=self.seed, run_ahead=self.run_ahead)
        child.draw = crc32(f"{self.draw}/{fork}/{i}".encode())
        child.tokens = self.tokens.copy()
        child._answering = self._answering
        child._form = self._form
        child._cache = self._cache.fork(child.queue, shared)
        return child

    def close(self) -> None:
        """Free the pages that the context alone holds. Closing a context twice does nothing.

        Example:
            >>> async def main():
            ...     ctx = Context()
            ...     ctx.fill("Hello,")
            ...     await ctx.flush()
            ...     ctx.close()  # its pages are free; an `async with` block closes its context by itself
        """
        if self._closed:
            return
        if self._active is not None:
            self._active.stop()
        self._closed = True
        self._cache.release()
        give_queue_back(self.queue)

    def __del__(self) -> None:
        # If the program has ended, its channel belongs to another program (in the process of a test).
        if not self._closed and channel.loop is not None and channel.queues.get(self.queue.id) is self.queue:
            self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """Return the number of tokens known so far."""
        return len(self.tokens)

    @property
    def num_pages(self) -> int:
        """The number of KV pages that the context uses, shared ones included."""
        return self._cache.num_rows

    def set_priority(self, priority: Priority) -> None:
        """Set how urgent the context's commands are, compared with other contexts and with other programs.

        Example:
            >>> async def main():
            ...     ctx = Context()
            ...     ctx.set_priority(Priority.HIGH)
        """
        self.queue.set_priority(priority)

    # ---- for Generation ---------------------------------------------------------------------------------------

    async def _ready(self) -> None:
        """Turn all input into tokens, and wait until the parent has computed the shared tokens."""
        self._check_open()
        while self._parts:
            part = self._parts[0]
            tokens = part if isinstance(part, list) else await part.tokens()
            if self._parts and self._parts[0] is part:  # no other task has taken this part meanwhile
                self._parts.pop(0)
                self.tokens.extend(tokens)
        if self._after is not None:
            await asyncio.shield(self._after)
            self._after = None

    def _generation_ended(self) -> None:
        self._active = None

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgument(argument="context", detail="it has been closed")

    def _interrupt(self) -> None:
        """End a generation that no task awaits, such as the generation of a loop that was left early."""
        if self._active is not None:
            self._active.give_way()
