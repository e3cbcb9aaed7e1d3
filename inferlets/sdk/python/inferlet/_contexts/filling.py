"""What fills a context: text, tokens and chat messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inferlet._contexts.chat_text import Chat, Text, plain
from inferlet._contexts.sequence import TokenSequence
from inferlet._values.arguments import messages as listed_messages
from inferlet._values.arguments import text as text_argument
from inferlet._values.arguments import token_list
from inferlet._values.arguments import tools as listed_tools
from inferlet._values.types import Message, Tool
from inferlet.errors import InvalidArgument


class Filling(TokenSequence):
    """The input of a context."""

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
