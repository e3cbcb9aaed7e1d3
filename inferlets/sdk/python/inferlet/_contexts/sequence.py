"""What a context is beneath its calls: tokens with their keys and values, input that waits, and one generation."""

from __future__ import annotations

import asyncio
import random
from types import TracebackType
from typing import Any, Self

from inferlet._calls.program import give_queue_back, take_queue
from inferlet._contexts.chat_text import Text
from inferlet._contexts.generation import Generation, generates_already
from inferlet._contexts.kv_cache import KvCache
from inferlet._contexts.proposal import Proposal
from inferlet._models.models import adapter_of, default_model
from inferlet._values.arguments import whole
from inferlet._values.types import Adapter, Model, Priority
from inferlet._wire.channel import channel
from inferlet.errors import InvalidArgument

RUN_AHEAD = 4
"""How many decode steps are queued before the program has seen their tokens."""


class TokenSequence:
    """The tokens of a context, with their keys and values, and the life of both."""

    def __init__(
        self,
        model: Model | None = None,
        *,
        seed: int | None = None,
        run_ahead: int = RUN_AHEAD,
        prefix_cache: bool = True,
        adapter: Adapter | str | None = None,
    ) -> None:
        """Make an empty context.

        Args:
            model: the model that computes it; None for the program's default model.
            seed: the key of the samplers' random numbers; None to draw a seed from `random`.
            run_ahead: how many decode steps are queued before the program has seen their tokens; 0 waits for each
                token. The text is the same for every number.
            prefix_cache: whether the context takes over pages of equal prompts, and leaves its own to others. The text
                is the same with and without. Pages of names that the program has imported are taken over in any case.
            adapter: the LoRA adapter under which the model computes the context, one of `get_all_adapters` or its name;
                None for the model alone. Forks have the same.

        Raises:
            UnknownAdapter: the model has no adapter of the name.
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
        self.adapter = adapter_of(self.model, adapter)
        self.queue = take_queue(self.model)
        if not prefix_cache:
            self.queue.set_prefix_cache(False)
        self.seed = random.getrandbits(64) if seed is None else seed
        self.draw = 0
        self.run_ahead = run_ahead
        self.tokens: list[int] = []
        """The tokens of the context, generated ones included. Text appears here once it has been computed."""
        self._cache = KvCache(self.queue, self.model, self.adapter)
        self._parts: list[Text | list[int]] = []
        self._form: dict[str, Any] = {}  # the tools and variables of its chat
        self._answering = False  # chat messages with a generation prompt come last, or the answer to them
        self._after: asyncio.Future[None] | None = None  # ends when the parent has computed the shared tokens
        self._active: Generation | None = None
        self._forks = 0
        self._proposal: Proposal | None = None  # drafts that were verified and may be accepted
        self._stepping = False  # a task computes a step
        self._closed = False

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
        return self._cache.num_pages

    def set_priority(self, priority: Priority) -> None:
        """Set how urgent the context's commands are, compared with other contexts and with other programs.

        Example:
            >>> async def main():
            ...     ctx = Context()
            ...     ctx.set_priority(Priority.HIGH)
        """
        self.queue.set_priority(priority)

    def rollback(self, n: int) -> None:
        """Remove the last `n` tokens, and free the pages that only they use.

        Text that was filled in and not computed counts, so its tokens are asked for first. What the context generates
        next is what it would have generated without these tokens.

        Raises:
            ValueError: `n` is negative, or the context has fewer tokens.
            InvalidArgument: the context is closed, another task generates from it, or the last token that stays was
                dropped.

        Example:
            >>> async def main():
            ...     async with Context() as ctx:
            ...         ctx.fill("One, two,")
            ...         first = await ctx.generate_until(max_tokens=6)
            ...         ctx.rollback(6)
            ...         print(await ctx.generate_until(max_tokens=6) == first)
            True
        """
        whole("rollback", n, 0)
        self._check_open()
        self._interrupt()
        self._settle_input()
        if n > len(self.tokens):
            raise ValueError(f"rollback is {n}, and the context has {len(self.tokens)} tokens")
        dropped = self._cache.dropped
        if n and len(self.tokens) - n <= dropped > 0:
            detail = f"tokens before {dropped} were dropped: it can be at most {len(self.tokens) - dropped - 1}"
            raise InvalidArgument(argument="n", detail=detail)
        if n:
            del self.tokens[len(self.tokens) - n :]
            self._cache.cut(len(self.tokens))

    # ---- for the calls above ----------------------------------------------------------------------------------

    def _settle_input(self) -> None:
        """Turn all input into tokens without running other tasks."""
        for part in self._parts:
            self.tokens.extend(part if isinstance(part, list) else part.tokens_now())
        self._parts.clear()
        if self._after is not None and not self._after.done():
            channel.result(self._after)

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
        if self._stepping:
            raise generates_already()
        self._proposal = None
        if self._active is not None:
            self._active.give_way()
