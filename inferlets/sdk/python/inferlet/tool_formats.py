"""Forms in which models write tool calls and reasoning, and readers that take generated text apart.

A model family writes a tool call as JSON between marks of its own. `FORMATS` has one entry for each form. An entry is
found by what the model's chat template writes, since the template shows the model the form.

Example:
    >>> reader = AnswerReader(FORMATS["hermes"], names=["add"])
    >>> text = 'Adding.<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    >>> for part in [*reader.feed(text), *reader.end()]:
    ...     print(part)
    Text(text='Adding.')
    Call(name='add', arguments='{"a": 1}')
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any, Literal, NamedTuple

__all__ = ["FORMATS", "AnswerReader", "Call", "Reasoning", "Text", "ToolFormat", "format_of", "in_prompt"]


class Text(NamedTuple):
    """A piece of the answer that the user reads."""

    text: str


class Reasoning(NamedTuple):
    """A piece of the model's reasoning before its answer."""

    text: str


class Call(NamedTuple):
    """A complete tool call; `arguments` is a JSON object as text."""

    name: str
    arguments: str


Part = Text | Reasoning | Call
_State = Literal["start", "reasoning", "text", "call", "bare", "between"]


class ToolFormat(NamedTuple):
    """How one family of models writes tool calls.

    Attributes:
        family: the entry's name.
        told_by: texts that the chat template writes when it is given tools; any of them tells the family. The family
            "bare" has none.
        opening: marks before a call, or before a list of calls.
        closing: the mark behind a call; "" for none.
        bare: whether an answer that begins with JSON of a call is a call too, without a mark.
        arguments: the JSON key of the arguments in messages that are written for the model.
    """

    family: str
    told_by: tuple[str, ...]
    opening: tuple[str, ...]
    closing: str = ""
    bare: bool = False
    arguments: str = "arguments"


FORMATS = {
    entry.family: entry
    for entry in (
        ToolFormat("hermes", ("<tool_call>",), ("<tool_call>",), "</tool_call>"),
        ToolFormat("mistral", ("[AVAILABLE_TOOLS]",), ("[TOOL_CALLS]",), bare=True),
        ToolFormat(
            "llama", ("<|python_tag|>", "<|start_header_id|>"), ("<|python_tag|>",), bare=True, arguments="parameters"
        ),
        ToolFormat("demo", ("<|system|>Tools: ",), (), bare=True),
        ToolFormat("bare", (), (), bare=True),
    )
}
"""The forms by family: Hermes and Qwen, Mistral, Llama, the demo model, and bare JSON for templates without tools."""

_PROBE = {"type": "function", "function": {"name": "probe", "description": "", "parameters": {"type": "object"}}}
_SPACE = " \t\r\n"
_ARGS_MARK = re.compile(r"\s*([\w.-]{1,64})(?:\[CALL_ID\][\w-]*)?\[ARGS\]")
_DECODER = json.JSONDecoder()
_MOST_CHARS = 1 << 20
"""The longest call that is waited for."""


def format_of(prompt: str) -> ToolFormat:
    """Return the form that a prompt shows, which a chat template has made with tools in it.

    Example:
        >>> format_of("<|im_start|>system ... <tool_call>").family, format_of("Hello").family
        ('hermes', 'bare')
    """
    for entry in FORMATS.values():
        if any(mark in prompt for mark in entry.told_by):
            return entry
    return FORMATS["bare"]


def in_prompt(message: dict[str, Any], form: ToolFormat | None) -> dict[str, Any]:
    """Return a message of the OpenAI API as a chat template wants it: arguments of calls as objects.

    For a form whose template writes no calls, the calls become the message's text. `form` None keeps them.

    Example:
        >>> call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        >>> in_prompt({"role": "assistant", "tool_calls": [call]}, FORMATS["bare"])
        {'role': 'assistant', 'content': '{"name": "f", "arguments": {"a": 1}}'}
    """
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return message
    functions = [call.get("function") for call in calls if isinstance(call, dict)]
    read = [function | {"arguments": _object(function.get("arguments"))} for function in functions if function]
    if form is not None and form.family == "bare":
        text = "\n".join(json.dumps({"name": f.get("name"), "arguments": f["arguments"]}) for f in read)
        rest = {key: value for key, value in message.items() if key != "tool_calls"}
        return rest | {"content": f"{message.get('content') or ''}{text}"}
    return message | {"tool_calls": [call | {"function": f} for call, f in zip(calls, read, strict=False)]}


def probe() -> list[dict[str, Any]]:
    """Return tools for a prompt that shows a template's form: one function that nobody calls."""
    return [_PROBE]


def _object(given: Any) -> Any:
    if not isinstance(given, str):
        return given if isinstance(given, dict) else {}
    try:
        return json.loads(given or "{}")
    except ValueError:
        return given


class AnswerReader:
    """Takes generated text apart, piece by piece, into reasoning, text and tool calls.

    Text goes on at once, except for what may yet become a mark. A call is given out when its JSON is complete.
    JSON that is no call, or that never ends, is text.

    Args:
        form: how the model writes calls; None: calls aren't looked for.
        names: the tools' names. JSON without a mark is a call only if it names one of them.
        reasoning: whether the answer begins inside of reasoning, because the prompt ends with its opening tag.
        most_calls: calls beyond this many are dropped; 0: no bound.

    Example:
        >>> reader = AnswerReader(None, reasoning=True)
        >>> [*reader.feed("Hm.</thi"), *reader.feed("nk>Yes."), *reader.end()]
        [Reasoning(text='Hm.'), Text(text='Yes.')]
    """

    def __init__(
        self,
        form: ToolFormat | None = None,
        *,
        names: Collection[str] = (),
        reasoning: bool = False,
        most_calls: int = 0,
    ) -> None:
        self._form = form
        self._names = frozenset(names)
        self._most_calls = most_calls
        self._held = ""
        self._mark = ""  # the opening mark of the call that is being read
        self._skips = False  # line breaks behind a tag of reasoning
        self._state: _State = "reasoning" if reasoning else "start"
        self.calls = 0

    @property
    def reasoning(self) -> bool:
        """Whether the text is inside of reasoning now."""
        return self._state == "reasoning"

    def feed(self, piece: str) -> list[Part]:
        """Take in the next piece of text, and return the parts that are certain now."""
        if self._state == "text" and self._form is None and not self._held:  # no mark can begin here
            return [Text(piece)] if piece else []
        self._held += piece
        return list(self._parts(final=False))

    def end(self) -> list[Part]:
        """Return the parts that are left when the text has ended."""
        return list(self._parts(final=True))

    def _parts(self, *, final: bool) -> Iterator[Part]:
        while self._held:
            if self._skips:
                self._held = self._held.lstrip("\n")
                self._skips = not self._held
                continue
            before = self._state, len(self._held)
            yield from getattr(self, f"_in_{self._state}")(final)
            if (self._state, len(self._held)) == before:
                break
        if final and self._held:
            kind = Reasoning if self._state == "reasoning" else Text
            yield kind(self._held)
            self._held = ""

    def _in_start(self, final: bool) -> Iterator[Part]:  # noqa: FBT001 - of one signature with its neighbours
        stripped = self._held.lstrip(_SPACE)
        if stripped.startswith("<think>"):
            self._held = stripped.removeprefix("<think>")
            self._state, self._skips = "reasoning", True
        elif final or not "<think>".startswith(stripped):
            self._state = "bare" if self._form and self._form.bare and stripped[:1] in ("{", "[") else "text"
        yield from ()

    def _in_reasoning(self, final: bool) -> Iterator[Part]:  # noqa: FBT001
        text, mark, rest = self._held.partition("</think>")
        if mark:
            self._held, self._state, self._skips = rest, "start", True
        else:
            kept = 0 if final else _overlap(text, ("</think>",))
            text, self._held = text[: len(text) - kept], text[len(text) - kept :]
        if text:
            yield Reasoning(text)

    def _in_text(self, final: bool) -> Iterator[Part]:  # noqa: FBT001
        opening = self._form.opening if self._form else ()
        found = [(at, mark) for mark in opening if (at := self._held.find(mark)) >= 0]
        if found:
            at, mark = min(found)
            text, self._held, self._state = self._held[:at], self._held[at + len(mark) :], "call"
            self._mark = mark
            text = text.rstrip("\n") if not text.strip() or self.calls else text
        else:
            kept = 0 if final else _overlap(self._held, opening)
            text, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        if text and not (self.calls and not text.strip()):
            yield Text(text)

    def _in_bare(self, final: bool) -> Iterator[Part]:  # noqa: FBT001
        ending = self._held[-1] in "}]"
        value, used = _json(self._held) if ending or final or self.calls or len(self._held) > _MOST_CHARS else (None, 0)
        calls = _calls(value)
        if calls and {call.name for call in calls} <= self._names:
            self._held, self._state = self._held[used:], "between"
            yield from self._counted(calls)
        elif used or final or len(self._held) > _MOST_CHARS:
            self._state = "text"

    def _in_between(self, final: bool) -> Iterator[Part]:  # noqa: FBT001
        """Skip what stands between two calls without marks."""
        self._held = self._held.lstrip(_SPACE + ";,")
        if self._held:
            self._state = "bare" if self._held.startswith("{") else "text"
        yield from ()

    def _in_call(self, final: bool) -> Iterator[Part]:  # noqa: FBT001
        named = _ARGS_MARK.match(self._held)
        if not (self._held[-1] in "}]>" or final):
            return
        value, used = _json(self._held[named.end() :] if named else self._held)
        calls = [Call(named[1], json.dumps(value))] if named and isinstance(value, dict) else _calls(value)
        if not calls:
            if used or final or len(self._held) > _MOST_CHARS:  # JSON that is no call, or that never ends
                self._state = "text"
                yield Text(self._mark)
            return
        closing = self._form.closing if self._form else ""
        rest = self._held[used + (named.end() if named else 0) :].lstrip(_SPACE)
        if not final and len(rest) < len(closing) and closing.startswith(rest):
            return  # the closing mark comes yet
        self._held, self._state = rest.removeprefix(closing), "between" if self._form and self._form.bare else "text"
        yield from self._counted(calls)

    def _counted(self, calls: list[Call]) -> Iterator[Part]:
        for call in calls:
            if not self._most_calls or self.calls < self._most_calls:
                self.calls += 1
                yield call


def _overlap(text: str, marks: tuple[str, ...]) -> int:
    """Return how many characters at the end of `text` may begin one of `marks`."""
    longest = max(map(len, marks), default=0)
    for size in range(min(len(text), longest - 1), 0, -1):
        if any(mark.startswith(text[-size:]) for mark in marks):
            return size
    return 0


def _json(text: str) -> tuple[Any, int]:
    """Return the JSON value at the beginning of `text` and its length there; 0: there is none, or no whole one."""
    blank = len(text) - len(text.lstrip(_SPACE))
    try:
        value, end = _DECODER.raw_decode(text, blank)
    except (ValueError, RecursionError):
        return None, 0
    return value, end


def _calls(value: Any) -> list[Call]:
    """Return the calls that a JSON value stands for; none if it is something else."""
    if isinstance(value, list):
        found = [_calls(item) for item in value]
        return [call for calls in found for call in calls] if all(found) else []
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return []
    given = value.get("arguments", value.get("parameters", {}))
    if isinstance(given, str):
        given = _object(given)
    return [Call(value["name"], json.dumps(given))] if isinstance(given, dict) else []
