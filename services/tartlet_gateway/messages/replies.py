"""Messages in the making: events of an inferlet in, events and the message of the API out. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tartlet_gateway.openai.errors import ApiError, message_error
from tartlet_gateway.runs.events import Called, Counted, Delta, Finished, Reasoned, Said

Value = dict[str, Any]
_STOPS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


class Reply:
    """One message: its blocks so far, and the events that tell of them.

    Attributes:
        usage: Token counts so far.
    """

    def __init__(self, run_id: str, model: str) -> None:
        self.usage = Counted()
        self._id = run_id.replace("-", "")
        self._model = model
        self._blocks: list[Value] = []
        self._open = ""  # the type of the block that is being told
        self._text = ""
        self._reason = ""
        self._stop_text: str | None = None

    def begin(self) -> list[Value]:
        """Return the event that opens the message."""
        return [{"type": "message_start", "message": self._message({"stop_reason": None, "stop_sequence": None})}]

    def add(self, event: Said) -> list[Value]:
        """Return the events of a part of the answer."""
        match event:
            case Delta():
                return [*self._opened("text"), self._delta({"type": "text_delta", "text": event.text}, event.text)]
            case Reasoned():
                told = {"type": "thinking_delta", "thinking": event.text}
                return [*self._opened("thinking"), self._delta(told, event.text)]
            case Called():
                return [*self._closed(), *self._called(event)]

    def finish(self, event: Finished) -> None:
        """Note why the answer ends where it does."""
        self._reason, self._stop_text = event.reason, event.stop_text

    def end(self) -> list[Value]:
        """Return the last events."""
        closed = self._closed()
        told = {"type": "message_delta", "delta": self._stopping(), "usage": self._usage()}
        return [*closed, told, {"type": "message_stop"}]

    def fail(self, error: ApiError) -> list[Value]:
        """Return the last event of a message that failed."""
        return [message_error(error)]

    def whole(self) -> Value:
        """Return the message that has ended."""
        return self._message(self._stopping())

    def _stopping(self) -> Value:
        """Return why the answer ends; a message that calls tools says so, whatever ended its text."""
        if any(block["type"] == "tool_use" for block in self._blocks):
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if self._reason == "stop" and self._stop_text is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": self._stop_text}
        return {"stop_reason": _STOPS.get(self._reason, "end_turn"), "stop_sequence": None}

    def _opened(self, kind: str) -> list[Value]:
        if self._open == kind:
            return []
        closed = self._closed()
        self._open = kind
        return [*closed, self._start({"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {}))]

    def _delta(self, delta: Value, text: str) -> Value:
        self._text += text
        return {"type": "content_block_delta", "index": len(self._blocks), "delta": delta}

    def _start(self, block: Value) -> Value:
        return {"type": "content_block_start", "index": len(self._blocks), "content_block": block}

    def _closed(self) -> list[Value]:
        if not self._open:
            return []
        more = {"signature": ""} if self._open == "thinking" else {}
        kind, self._open = self._open, ""
        text, self._text = self._text, ""
        return [self._stopped({"type": kind, kind: text} | more)]

    def _stopped(self, block: Value) -> Value:
        self._blocks.append(block)
        return {"type": "content_block_stop", "index": len(self._blocks) - 1}

    def _called(self, event: Called) -> list[Value]:
        block = {"type": "tool_use", "id": f"toolu_{self._id}{len(self._blocks):02}", "name": event.name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": event.arguments}
        started = self._start(block)
        told = {"type": "content_block_delta", "index": len(self._blocks), "delta": delta}
        return [started, told, self._stopped(block | {"input": _object(event.arguments)})]

    def _message(self, stopping: Value) -> Value:
        return {
            "id": f"msg_{self._id}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": list(self._blocks),
            **stopping,
            "usage": self._usage(),
        }

    def _usage(self) -> Value:
        counted = self.usage
        return {
            "input_tokens": counted.prompt_tokens - counted.cached_tokens,
            "cache_read_input_tokens": counted.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": counted.completion_tokens,
        }


def _object(arguments: str) -> Any:
    try:
        return msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return {"arguments": arguments}  # the model wrote no JSON: the client sees what it wrote
