"""Responses in the making: events of an inferlet in, events and the response object of the API out. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, Final

from tartlet_gateway.openai.errors import ApiError
from tartlet_gateway.responses.requests import ResponseRequest
from tartlet_gateway.runs.events import Called, Counted, Delta, Finished, Reasoned, Said

Value = dict[str, Any]
_CODES: Final = frozenset({"context_length_exceeded", "insufficient_quota", "rate_limit_exceeded"})
"""Codes of failures that clients tell apart."""


def response_id(program_id: str) -> str:
    """Return the id of the response that a run answers."""
    return f"resp_{program_id.replace('-', '')}"


class Reply:
    """One response: its items so far, and the events that tell of them.

    Attributes:
        usage: Token counts, as far as the inferlet has told.
        output: The items that are complete.
        stored: Whether the response can be fetched later.
        completed_s: When the response was completed, in Unix seconds; None: the time at which that is told.
    """

    def __init__(
        self,
        request: ResponseRequest,
        run_id: str,
        model: str,
        clock: Callable[[], float] = time.time,
        *,
        stored: bool = False,
        created_s: int | None = None,
    ) -> None:
        self.usage = Counted()
        self.output: list[Value] = []
        self.stored = stored
        self.completed_s: int | None = None
        self._request = request
        self._run_id = run_id
        self._model = model
        self._clock = clock
        self._created_s = int(clock()) if created_s is None else created_s
        self._number = 0
        self._open: Value | None = None  # the item that is being told
        self._text = ""
        self._reason = "stop"

    def begin(self) -> list[Value]:
        """Return the events that open the response."""
        return [self._state(f"response.{state}", "in_progress") for state in ("created", "in_progress")]

    def add(self, event: Said) -> list[Value]:
        """Return the events of a part of the answer."""
        match event:
            case Delta():
                return [*self._opened("message"), *self._delta("response.output_text.delta", event.text, logprobs=[])]
            case Reasoned():
                return [*self._opened("reasoning"), *self._delta("response.reasoning_text.delta", event.text)]
            case Called():
                return [*self.close(), *self._call(event)]

    def finish(self, event: Finished) -> None:
        """Note why the answer ends where it does."""
        self._reason = event.reason

    def close(self, status: str = "completed") -> list[Value]:
        """Return the events that complete the item that is being told."""
        item, self._open = self._open, None
        if item is None:
            return []
        text, self._text = self._text, ""
        at = {"item_id": item["id"], "output_index": len(self.output), "content_index": 0}
        kind = "output_text" if item["type"] == "message" else "reasoning_text"
        part: Value = {"type": kind, "text": text} | (
            {"annotations": [], "logprobs": []} if kind == "output_text" else {}
        )
        done = item | {"status": status, "content": [part]}
        more: Value = {"logprobs": []} if kind == "output_text" else {}
        events = [
            self._event(f"response.{kind}.done", **at, text=text, **more),
            self._event("response.content_part.done", **at, part=part),
            self._event("response.output_item.done", output_index=len(self.output), item=done),
        ]
        self.output.append(done)
        return events

    def end(self) -> list[Value]:
        """Return the last events: what is open is completed, and the response with it."""
        status = "incomplete" if self._reason in ("length", "content_filter") else "completed"
        return [*self.close(status), self._state(f"response.{status}", status)]

    def fail(self, error: ApiError) -> list[Value]:
        """Return the last events of a response that failed; `code` is one that clients of this API know."""
        code = "server_error" if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_prompt"
        if error.code in _CODES:
            code = error.code
        told = {"code": code, "message": error.message}
        return [*self.close("incomplete"), self._state("response.failed", "failed", told)]

    def cancel(self) -> list[Value]:
        """Return the last events of a response that was cancelled. The API has no event of its own for that."""
        return [*self.close("incomplete"), self._event("response.incomplete", response=self.now("cancelled"))]

    def now(self, status: str = "in_progress") -> Value:
        """Return the response as it is now, with this status."""
        return self._response(status, None)

    def whole(self) -> Value:
        """Return the response that has ended."""
        return self._response("incomplete" if self._reason in ("length", "content_filter") else "completed", None)

    # ---- items ---------------------------------------------------------------------------------------------------

    def _opened(self, kind: str) -> Iterator[Value]:
        if self._open is not None and self._open["type"] == kind:
            return
        yield from self.close()
        part: Value
        item: Value = {"type": kind, "status": "in_progress", "content": []}
        if kind == "message":
            item |= {"id": self._item_id("msg"), "role": "assistant"}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        else:
            item |= {"id": self._item_id("rs"), "summary": []}
            part = {"type": "reasoning_text", "text": ""}
        self._open = item
        index = len(self.output)
        yield self._event("response.output_item.added", output_index=index, item=item)
        yield self._event(
            "response.content_part.added", item_id=item["id"], output_index=index, content_index=0, part=part
        )

    def _delta(self, kind: str, text: str, **more: Any) -> Iterator[Value]:
        assert self._open is not None
        self._text += text
        at = {"item_id": self._open["id"], "output_index": len(self.output), "content_index": 0}
        yield self._event(kind, **at, delta=text, **more)

    def _call(self, event: Called) -> Iterator[Value]:
        index = len(self.output)
        item = {
            "type": "function_call",
            "id": self._item_id("fc"),
            "call_id": self._item_id("call"),
            "name": event.name,
            "arguments": "",
            "status": "in_progress",
        }
        done = item | {"arguments": event.arguments, "status": "completed"}
        at = {"item_id": item["id"], "output_index": index}
        yield self._event("response.output_item.added", output_index=index, item=item)
        yield self._event("response.function_call_arguments.delta", **at, delta=event.arguments)
        yield self._event("response.function_call_arguments.done", **at, arguments=event.arguments, name=event.name)
        yield self._event("response.output_item.done", output_index=index, item=done)
        self.output.append(done)

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self._run_id.replace('-', '')}{len(self.output):02}"

    # ---- the response --------------------------------------------------------------------------------------------

    def _event(self, kind: str, **fields: Any) -> Value:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event

    def _state(self, kind: str, status: str, error: Value | None = None) -> Value:
        return self._event(kind, response=self._response(status, error))

    def _response(self, status: str, error: Value | None) -> Value:
        asked = self._request
        ended = status not in ("in_progress", "queued")
        why = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(self._reason)
        return {
            "id": response_id(self._run_id),
            "object": "response",
            "created_at": self._created_s,
            "completed_at": (self.completed_s or int(self._clock())) if status == "completed" else None,
            "status": status,
            "error": error,
            "incomplete_details": {"reason": why} if status == "incomplete" else None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "max_tool_calls": None,
            "model": self._model,
            "output": list(self.output),
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": asked.previous_response_id,
            "prompt_cache_key": asked.prompt_cache_key,
            "reasoning": None,
            "safety_identifier": asked.safety_identifier,
            "service_tier": "default",
            "store": self.stored,
            "background": bool(asked.background),
            "temperature": 1.0 if asked.temperature is None else asked.temperature,
            "text": {"format": {"type": "text"}} | (asked.text or {}),
            "tool_choice": asked.tool_choice or "auto",
            "tools": [{"strict": None, "parameters": None, "description": None} | tool for tool in asked.tools or ()],
            "top_logprobs": 0,
            "top_p": 1.0 if asked.top_p is None else asked.top_p,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "truncation": "disabled",
            "usage": self._usage() if ended else None,
            "user": asked.user,
            "metadata": asked.metadata or {},
        }

    def _usage(self) -> Value:
        counted = self.usage
        return {
            "input_tokens": counted.prompt_tokens,
            "input_tokens_details": {"cached_tokens": counted.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": counted.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": counted.reasoning_tokens},
            "total_tokens": counted.prompt_tokens + counted.completion_tokens,
        }
