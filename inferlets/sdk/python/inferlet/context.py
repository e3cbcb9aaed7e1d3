"""`Context`: a growing sequence of tokens with its KV pages (the support library of the paper's section 6.3).

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

from inferlet._calls.program import create_queue, state
from inferlet._contexts.chat_text import Chat, Text, plain
from inferlet._contexts.generation import Generation
from inferlet._contexts.kv_cache import KvCache
from inferlet._models.models import default_model
from inferlet._queues.queue import Queue
from inferlet._values.arguments import messages as listed_messages
from inferlet._values.arguments import text as text_argument
from inferlet._values.arguments import token_list, whole
from inferlet._values.arguments import tools as listed_tools
from inferlet._values.types import Message, Model, Priority, Tool
from inferlet._wire.channel import channel
from inferlet.errors import InvalidArgument
from inferlet.sampling import AnySampler, Greedy
from inferlet.stopping import Stop, conditions

RUN_AHEAD = 4
"""Decode steps queued ahead of the token that the program sees."""


class Context:
    """Tokens with their keys and values: fill it, generate from it, fork it.

    Each context has a command queue of its own, so that several of them batch side by side. `fill` and `chat` only note
    what is to come; `generate`, `generate_until` and `flush` compute it. A context frees what it holds when it is
    closed, leaves an `async with`, or is forgotten.

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
        """An empty context.

        Args:
            model: the program's default model if None.
            seed: keys the noise of its samplers; drawn from `random` if None.
            run_ahead: decode steps to queue ahead, 0 to wait for each token. The text is the same for every depth.

        Raises:
            TypeError, ValueError: an argument is something else, such as a model's name.
        """
        self._closed = True  # until everything is there
        if model is not None and not isinstance(model, Model):
            raise TypeError(f"Context takes a model, not {model!r}: `await get_model(name)` gives one")
        if seed is not None:
            whole("seed", seed)
        whole("run_ahead", run_ahead, 0)
        self.model = model or default_model()
        self.queue = _take_queue(self.model)
        self.seed = random.getrandbits(64) if seed is None else seed
        self.draw = 0
        self.run_ahead = run_ahead
        self.tokens: list[int] = []
        """All tokens of the context, those generated included; of `fill`ed text once it has been computed."""
        self._cache = KvCache(self.queue, self.model)
        self._parts: list[Text | list[int]] = []
        self._form: dict[str, Any] = {}  # of its chat: tools, variables
        self._answering = False  # behind chat messages with a generation prompt: an answer follows, or stands there
        self._after: asyncio.Future[None] | None = None  # the parent's commands that ours build on
        self._active: Generation | None = None
        self._forks = 0
        self._closed = False

    # ---- input ------------------------------------------------------------------------------------------------

    def fill(self, text: str, *, special: bool | None = None) -> None:
        """Append text. `special` adds the tokenizer's own tokens around it (such as BOS): by default to the first.

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
        """Append tokens.

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
        """Append chat messages in the form that the model was trained on; a string is one message of the user.

        Behind other tokens they continue the dialogue: an answer that stands there is closed, and nothing is written
        that a text begins with, such as BOS. What has been computed stays: a `chat` of which no answer is wanted, and
        behind which something else is done before the next, takes `add_generation_prompt=False`.

        Args:
            messages: as `format_chat` takes them.
            tools: those that the model may call, with the first messages: templates write them at the beginning.
            variables: what else the template knows, such as `{"enable_thinking": False}`; for this `chat` and those
                that follow.
            add_generation_prompt: end with what begins an answer.

        Raises:
            InvalidArgument: tools came behind other tokens. What `format_chat` raises comes when they are used.

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
        """Compute everything filled in so far but the last token, and wait for it.

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

    def generate(
        self,
        stop: Stop | str | None = None,
        *,
        max_tokens: int | None = None,
        sampler: AnySampler | None = None,
        eos: bool = True,
    ) -> Generation:
        """Generate, as an asynchronous iterator of pieces of text.

        A piece is a `str` with `token` and `logprob`; together they are the text, without a stop string. A piece may be
        empty: a character's bytes can be spread over tokens, and what may become a stop string is held back.
        What was generated stays in the context, stop strings and stop tokens included. Leaving the loop early is fine.

        Args:
            stop: a condition, or a string that ends the text.
            max_tokens: the most tokens to generate.
            sampler: greedy by default; see `inferlet.sampling`.
            eos: whether the model's end-of-sequence tokens end it.

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
        self._active = Generation(
            self, self._cache, condition, chosen, eos=eos, prepare=self._ready, ended=self._generation_ended
        )
        return self._active

    async def generate_until(
        self,
        stop: Stop | str | None = None,
        *,
        max_tokens: int | None = None,
        sampler: AnySampler | None = None,
        eos: bool = True,
    ) -> str:
        """Generate until a condition holds; the text. Arguments as for `generate`.

        Example:
            >>> async def main():
            ...     async with Context() as ctx:
            ...         ctx.fill("Hello,")
            ...         text = await ctx.generate_until(Until("."), max_tokens=20)
            ...         print(len(text) > 0)
            True
        """
        generation = self.generate(stop, max_tokens=max_tokens, sampler=sampler, eos=eos)
        async for _ in generation:
            pass
        return generation.text

    # ---- life -------------------------------------------------------------------------------------------------

    def fork(self, n: int = 1) -> list[Context]:
        """`n` contexts that begin with this one's tokens and share its full pages.

        Only the last, partly filled page is copied. Each fork draws noise of its own from the same seed.

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
        shared = max(len(self.tokens) - 1, 0)  # whoever goes on computes the last token, to have its output
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
        """Free what the context holds. Closing twice is fine.

        Example:
            >>> async def main():
            ...     ctx = Context()
            ...     ctx.fill("Hello,")
            ...     await ctx.flush()
            ...     ctx.close()  # its pages are another's; `async with` does it by itself
        """
        if self._closed:
            return
        if self._active is not None:
            self._active.stop()
        self._closed = True
        self._cache.release()
        _give_queue(self.queue)

    def __del__(self) -> None:
        # Not if the program has ended meanwhile (and another may have begun, in a test's process).
        if not self._closed and channel.loop is not None and channel.queues.get(self.queue.id) is self.queue:
            self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """Number of tokens known so far."""
        return len(self.tokens)

    @property
    def num_pages(self) -> int:
        """KV pages that the context uses, shared ones included."""
        return len(self._cache.pages)

    def set_priority(self, priority: Priority) -> None:
        """How urgent this context is beside the program's others, and beside other programs.

        Example:
            >>> async def main():
            ...     ctx = Context()
            ...     ctx.set_priority(Priority.HIGH)
        """
        self.queue.set_priority(priority)

    # ---- for Generation ---------------------------------------------------------------------------------------

    async def _ready(self) -> None:
        """All text is tokens, and everything that ours builds on is there."""
        self._check_open()
        while self._parts:
            part = self._parts[0]
            tokens = part if isinstance(part, list) else await part.tokens()
            if self._parts and self._parts[0] is part:  # nobody else got here meanwhile
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
        """What is not being awaited, such as a loop that was left early, ends for what comes now."""
        if self._active is not None:
            self._active.give_way()


def _take_queue(model: Model) -> Queue:
    spare = state.spare_queues.get(model.index)
    return spare.pop() if spare else create_queue(model)


def _give_queue(queue: Queue) -> None:
    """Keep a queue for the next context.

    A poisoned one whose failure nobody has seen stays as it is: the program fails with it.
    """
    if queue.failure is not None:
        if not queue.failure_seen:
            return
        queue.reset()
    if queue.priority != Priority.NORMAL:
        queue.set_priority(Priority.NORMAL)
    state.spare_queues.setdefault(queue.model.index, []).append(queue)
