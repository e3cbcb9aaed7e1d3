"""A stored response: its request and what its run said, from which its events are told again. Pure.

The run's events are kept, not those of the API: they are fewer, and the same code tells them first and again. So the
events that a client gets behind a break have the numbers that the first ones had.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from itertools import groupby
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from tartlet_gateway.answers.endpoint import take
from tartlet_gateway.openai.errors import ApiError
from tartlet_gateway.responses.replies import Reply, response_id
from tartlet_gateway.responses.requests import ResponseRequest, items_of
from tartlet_gateway.runs.events import Called, Counted, Delta, Event, Finished, Reasoned

MOST_BYTES: Final = (2 << 20) - (64 << 10)
"""The longest record, in bytes of JSON."""
_KINDS: Final[dict[str, Any]] = {"d": Delta, "r": Reasoned, "c": Called, "f": Finished, "u": Counted}
_MARKS: Final = {kind: mark for mark, kind in _KINDS.items()}
_ID: Final = "resp_"


class Failure(Struct, omit_defaults=True):
    """Why a response failed."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None


class Record(Struct, kw_only=True, omit_defaults=True):
    """A response.

    Attributes:
        program_id: Its run.
        model: The model that the reply names.
        created_s: When the response began, in Unix seconds.
        request: The request.
        root: The first response of the conversation; "" if this is the first.
        state: `ended`, in whatever status, once the run has.
        failure: Why the response failed.
        completed_s: When the run ended, in Unix seconds.
        tape: What the run said, each event as a list.
    """

    program_id: str
    model: str
    created_s: int
    request: ResponseRequest
    root: str = ""
    state: Literal["running", "ended", "cancelled"] = "running"
    failure: Failure | None = None
    completed_s: int = 0
    tape: list[list[Any]] = []

    @property
    def id(self) -> str:
        """The response's id."""
        return response_id(self.program_id)

    def reply(self, *, stored: bool = True) -> Reply:
        """Begin to tell the response."""
        reply = Reply(self.request, self.program_id, self.model, stored=stored, created_s=self.created_s)
        reply.completed_s = self.completed_s or None
        return reply


DECODER: Final = msgspec.json.Decoder(Record)


def program_of(given: str) -> str:
    """Return the program that a response's id names.

    Raises:
        ApiError: 404, no response has such an id.

    Example:
        >>> program_of("resp_0a0b0c0d0e0f40008000000000000001")
        '0a0b0c0d-0e0f-4000-8000-000000000001'
    """
    try:
        program_id = str(uuid.UUID(hex=given.removeprefix(_ID)))
    except ValueError:
        program_id = ""
    if response_id(program_id) != given:
        raise unknown(given)
    return program_id


def unknown(given: str) -> ApiError:
    """Return the error of an id that no stored response has."""
    told = f"No response has the id {given[:64]!r}: it was not stored, has expired, or was deleted."
    return ApiError(404, told, param="response_id", code="response_not_found")


def line_of(event: Event) -> list[Any]:
    """Return an event as a list, without what no response tells: log-probabilities and stop strings.

    Example:
        >>> line_of(Delta(0, "hi")), line_of(Finished(0, "stop", "END"))
        (['d', 0, 'hi'], ['f', 0, 'stop'])
        >>> event_of(['f', 0, 'length'])
        Finished(choice=0, reason='length', stop_text=None)
    """
    fields = event[:2] if isinstance(event, Delta | Finished) else event
    return [_MARKS[type(event)], *fields]


def event_of(line: list[Any]) -> Event:
    """Return the event of a list that `line_of` made."""
    event: Event = _KINDS[line[0]](*line[1:])
    return event


def ending(record: Record, reply: Reply) -> list[dict[str, Any]]:
    """Return the last events of a response whose run has ended."""
    reply.completed_s = record.completed_s
    if record.state == "cancelled":
        return reply.cancel()
    if (failure := record.failure) is not None:
        return reply.fail(ApiError(failure.status, failure.message, param=failure.param, code=failure.code))
    return reply.end()


def response_of(record: Record) -> dict[str, Any]:
    """Return the response object; one that still runs has no output."""
    if record.state == "running":
        return record.reply().now()
    reply = record.reply()
    reply.begin()
    for line in joined(record.tape):
        take(reply, event_of(line))
    response: dict[str, Any] = ending(record, reply)[-1]["response"]
    return response


def joined(tape: list[list[Any]]) -> list[list[Any]]:
    """Return a shorter tape of the same response: texts of one kind in a row are one, and tokens are counted once.

    Example:
        >>> joined([["d", 0, "a"], ["d", 0, "b"], ["r", 0, "c"], ["d", 0, "d"]])
        [['d', 0, 'ab'], ['r', 0, 'c'], ['d', 0, 'd']]
    """
    said = [line for line in tape if line[0] != "u"]
    lines: list[list[Any]] = []
    for (mark, *_), group in groupby(said, key=lambda line: line[:2]):
        some = list(group)
        lines += [[*some[0][:2], "".join(line[2] for line in some)]] if mark in "dr" else some
    return lines + [line for line in tape if line[0] == "u"][-1:]


def input_items(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return the items of a conversation: each response's input and, but for the last, its output."""
    items: list[dict[str, Any]] = []
    last: Record | None = None
    for record in records:
        if last is not None:
            items += response_of(last)["output"]
        items += [_listed(item, record, at) for at, item in enumerate(items_of(record.request))]
        last = record
    return items


def _listed(item: dict[str, Any], record: Record, at: int) -> dict[str, Any]:
    """Return an item of an input in the form in which it is listed."""
    kind = str(item.get("type", "message"))
    prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}.get(kind, kind)
    listed = {"id": f"{prefix}_{record.id.removeprefix(_ID)}in{at:02}", "status": "completed", "type": kind} | item
    if kind == "message" and isinstance(content := item.get("content"), str):
        is_said = item.get("role") == "assistant"
        part = {"type": "output_text", "annotations": [], "logprobs": []} if is_said else {"type": "input_text"}
        listed["content"] = [part | {"text": content}]
    return listed
