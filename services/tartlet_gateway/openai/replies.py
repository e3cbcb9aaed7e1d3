"""Replies of the OpenAI API, built from an inferlet's events. Pure: values in, JSON values out."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

from tartlet_gateway.runs.events import Called, Counted, Delta, Finished, Reasoned, Said, TokenLogprob

Form = Literal["chat", "text"]


@dataclass(slots=True)
class Reply:
    """One reply in the making: what its chunks have in common, and the text so far.

    Attributes:
        form: Whether choices are chat messages or plain text.
        id: The reply's id, equal in all chunks.
        created_s: When the request came, whole seconds since the epoch.
        model: The model's name as the client gave it.
        choices: How many choices there are.
        usage: Token counts so far.
        usage_in_chunks: Whether each chunk carries `usage`: None, null, or the counts so far.
    """

    form: Form
    id: str
    created_s: int
    model: str
    choices: int
    usage_in_chunks: Literal["left out", "null", "counts"] = "left out"
    usage: Counted = field(default_factory=Counted)
    texts: dict[int, list[str]] = field(default_factory=dict)
    reasoning: dict[int, list[str]] = field(default_factory=dict)
    calls: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    offsets: dict[int, int] = field(default_factory=dict)

    def takes(self, event: Said | Finished) -> bool:
        """Tell whether the event still belongs to the reply: nothing comes behind a choice's finish."""
        return event.choice not in self.reasons

    def unfinished(self) -> list[Finished]:
        """Return a finish for each choice that the inferlet left open."""
        return [Finished(i, "stop") for i in range(self.choices) if i not in self.reasons]

    # ---- streamed ------------------------------------------------------------------------------------------------

    def opening(self) -> list[dict[str, Any]]:
        """Return the chunks that open a chat's choices: they name the role once. A text's choices need none."""
        if self.form == "text":
            return []
        return [self._chunk(i, {"role": "assistant", "content": ""}, None) for i in range(self.choices)]

    def delta(self, event: Said) -> list[dict[str, Any]]:
        """Return the chunks for a part of a choice. A text completion has no reasoning and no calls."""
        match event:
            case Delta():
                told = None if event.logprobs is None else self._logprobs(event.logprobs, self._offset(event))
                return [self._chunk(event.choice, {"content": event.text}, None, told)]
            case Reasoned() if self.form == "chat":
                return [self._chunk(event.choice, {"reasoning_content": event.text, "reasoning": event.text}, None)]
            case Called() if self.form == "chat":
                call = self._call(event)
                at = len(self.calls[event.choice]) - 1
                opening = {"index": at} | call | {"function": call["function"] | {"arguments": ""}}
                rest = {"index": at, "function": {"arguments": event.arguments}}
                return [self._chunk(event.choice, {"tool_calls": [part]}, None) for part in (opening, rest)]
            case _:
                return []

    def pulse(self) -> dict[str, Any]:
        """Return a chunk that says nothing, for clients that take silence for a dead server."""
        return self._chunk(0, {}, None)

    def finish(self, event: Finished) -> dict[str, Any]:
        """Return the last chunk of one choice."""
        self.reasons[event.choice] = self._reason(event)
        return self._chunk(event.choice, {}, self.reasons[event.choice])

    def _reason(self, event: Finished) -> str:
        """Return the finish reason: a choice with calls that ends by itself ends for them."""
        return "tool_calls" if event.reason == "stop" and self.calls.get(event.choice) else event.reason

    def totals(self) -> dict[str, Any]:
        """Return the chunk behind all choices that carries the token counts."""
        return self._outer(".chunk", [], usage=self._usage())

    def _chunk(
        self, index: int, delta: dict[str, Any], reason: str | None, logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        if self.form == "chat":
            choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        else:
            choice = {"index": index, "text": delta.get("content", ""), "logprobs": logprobs, "finish_reason": reason}
        if self.usage_in_chunks == "left out":
            return self._outer(".chunk", [choice])
        return self._outer(".chunk", [choice], usage=self._usage() if self.usage_in_chunks == "counts" else None)

    # ---- whole ---------------------------------------------------------------------------------------------------

    def add(self, event: Said) -> None:
        """Add a part of a choice to a reply that is sent whole."""
        match event:
            case Delta():
                self.texts.setdefault(event.choice, []).append(event.text)
                if event.logprobs is not None:
                    self.logprobs.setdefault(event.choice, []).extend(event.logprobs)
            case Reasoned():
                self.reasoning.setdefault(event.choice, []).append(event.text)
            case Called():
                self._call(event)

    def _call(self, event: Called) -> dict[str, Any]:
        function = {"name": event.name, "arguments": event.arguments}
        call = {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}
        self.calls.setdefault(event.choice, []).append(call)
        return call

    def whole(self) -> dict[str, Any]:
        """Return the reply with all choices."""
        return self._outer("", [self._choice(i) for i in range(self.choices)], usage=self._usage())

    def _choice(self, index: int) -> dict[str, Any]:
        text = "".join(self.texts.get(index, ()))
        reason = self.reasons.get(index, "stop")
        told = self._logprobs(self.logprobs[index], 0) if index in self.logprobs else None
        if self.form == "text":
            return {"index": index, "text": text, "logprobs": told, "finish_reason": reason}
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if index in self.reasoning:
            thought = "".join(self.reasoning[index])
            message |= {"reasoning_content": thought, "reasoning": thought}
        if index in self.calls:
            message |= {"content": text or None, "tool_calls": self.calls[index]}
        return {"index": index, "message": message, "logprobs": told, "finish_reason": reason}

    # ---- log-probabilities ---------------------------------------------------------------------------------------

    def _offset(self, event: Delta) -> int:
        """Return how many characters of the choice's tokens were told before, and count those of this event."""
        before = self.offsets.get(event.choice, 0)
        self.offsets[event.choice] = before + sum(len(entry.token) for entry in event.logprobs or ())
        return before

    def _logprobs(self, entries: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
        """Return tokens with log-probabilities in the form of a chat or of a text completion."""
        if self.form == "chat":
            return {
                "content": [_entry(e) | {"top_logprobs": [*map(_entry, e.top_logprobs)]} for e in entries],
                "refusal": None,
            }
        starts = [*accumulate((len(e.token) for e in entries), initial=offset)]
        return {
            "tokens": [e.token for e in entries],
            "token_logprobs": [e.logprob for e in entries],
            "top_logprobs": [{t.token: t.logprob for t in (*e.top_logprobs, e)} for e in entries],
            "text_offset": starts[:-1],
        }

    def _outer(self, part: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        name = f"chat.completion{part}" if self.form == "chat" else "text_completion"
        outer = {"id": self.id, "object": name, "created": self.created_s, "model": self.model, "choices": choices}
        return outer | more

    def _usage(self) -> dict[str, Any]:
        counted = self.usage
        return {
            "prompt_tokens": counted.prompt_tokens,
            "completion_tokens": counted.completion_tokens,
            "total_tokens": counted.prompt_tokens + counted.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": counted.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": counted.reasoning_tokens},
        }


def _entry(told: TokenLogprob) -> dict[str, Any]:
    return {"token": told.token, "logprob": told.logprob, "bytes": told.bytes}
