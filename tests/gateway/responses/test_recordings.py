"""Recordings of runs: what is stored in which order, and what happens when a run can't be followed."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any, cast

import pytest

import tartlet
from tartlet_common.errors.registry import TartletError, Unavailable, UnknownProgram
from tartlet_gateway.http.exchange import Exchange
from tartlet_gateway.openai.errors import ApiError
from tartlet_gateway.responses import recordings
from tartlet_gateway.responses.endpoint import stream
from tartlet_gateway.responses.recordings import Recording
from tartlet_gateway.responses.records import DECODER, Record, line_of, response_of
from tartlet_gateway.responses.requests import ResponseRequest
from tartlet_gateway.responses.shelf import Shelf
from tartlet_gateway.responses.tapes import Tape
from tartlet_gateway.runs.events import MARK, Counted, Delta

PROGRAM = str(uuid.uuid4())


class Run:
    """A run whose messages the test sends; an error ends its link."""

    def __init__(self) -> None:
        self.ended: tartlet.Ended | None = None
        self.program_id = PROGRAM
        self.coming: asyncio.Queue[Any] = asyncio.Queue()

    def __aiter__(self) -> Run:
        return self

    async def __anext__(self) -> Any:
        event = await self.coming.get()
        if isinstance(event, Exception):
            raise event
        if event is None:
            raise StopAsyncIteration
        return event

    def cancel(self) -> None: ...


class Client:
    """A tenant's store, whose first write takes a while, and a runtime that kills or doesn't."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.killed: list[str] = []
        self.kill_error: TartletError | None = None

    async def keep(self, key: str, value: bytes, expires_s: float, *, existing: bool = False) -> bool:
        del key, expires_s, existing
        if not self.states:
            await asyncio.sleep(0.05)
        self.states.append(DECODER.decode(value).state)
        return len(self.states) > 1

    async def kill(self, program_id: str, reason: str = "") -> None:
        assert program_id == PROGRAM
        if self.kill_error is not None:
            raise self.kill_error
        self.killed.append(reason)


def begun(*, background: bool = False) -> tuple[Recording, Run, Client]:
    run, client = Run(), Client()
    request = ResponseRequest(model="fake", input="Hi", stream=True, background=background)
    record = Record(program_id=PROGRAM, model="fake", created_s=int(time.time()), request=request)
    recording = Recording(
        record, cast("tartlet.Run", run), Shelf(cast("tartlet.AsyncClient", client), 60.0), kept=False
    )
    return recording, run, client


def said(text: str, offset: int) -> tartlet.Message:
    return tartlet.Message(PROGRAM, offset, data=text.encode())


async def done(recording: Recording) -> None:
    await asyncio.wait([recording.task], timeout=5)
    assert recording.ended


@pytest.mark.parametrize("first", ["keep", "end"])
async def test_the_end_of_a_short_response_is_what_the_store_has(first: str) -> None:
    recording, run, client = begun()
    run.coming.put_nowait(said("Hi", 0))
    await recording.wait(0, 5)
    keeping = asyncio.ensure_future(recording.keep()) if first == "keep" else None
    await asyncio.sleep(0)
    run.coming.put_nowait(None)
    if keeping is None:
        await asyncio.sleep(0.01)  # the end is being stored
        keeping = asyncio.ensure_future(recording.keep())
    await asyncio.gather(keeping, recording.task)
    assert client.states[-1] == "ended"


async def test_a_lost_link_ends_no_response_and_no_run() -> None:
    recording, run, client = begun()
    await recording.keep()
    run.coming.put_nowait(said("Hi", 0))
    run.coming.put_nowait(Unavailable(what="the server", detail="gone"))
    await done(recording)
    assert (recording.lost, recording.record.state, client.states, client.killed) == (True, "running", ["running"], [])
    assert response_of(recording.record)["status"] == "in_progress"


async def test_a_run_that_says_what_no_response_is_made_of_is_killed() -> None:
    recording, run, client = begun()
    await recording.keep()
    run.coming.put_nowait(tartlet.Message(PROGRAM, 0, data=MARK + b'{"type": "nonsense"}'))
    await done(recording)
    assert len(client.killed) == 1
    assert client.states == ["running", "ended"]


async def test_a_run_that_cannot_be_killed_is_no_cancelled_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "KILL_S", 0.05)
    recording, _, client = begun(background=True)
    client.kill_error = Unavailable(what="the runtime", detail="gone")
    with pytest.raises(Unavailable):
        await asyncio.wait_for(recording.cancel(), 5)
    client.kill_error = UnknownProgram(program=PROGRAM)
    with pytest.raises(ApiError) as caught:  # the run doesn't end
        await asyncio.wait_for(recording.cancel(), 5)
    assert (caught.value.status, caught.value.code) == (503, "response_not_ended")
    await recording.abort()


async def test_an_error_that_nobody_expects_ends_the_wait() -> None:
    recording, run, client = begun()
    run.coming.put_nowait(ValueError("unforeseen"))
    await done(recording)
    assert recording.error is not None
    assert len(client.killed) == 1
    stopped, *_ = begun()
    await asyncio.sleep(0)
    stopped.task.cancel()
    await done(stopped)
    assert (stopped.lost, stopped.record.state) == (True, "running")


async def test_a_response_of_many_parts_keeps_nobody_waiting() -> None:
    parts = 40_000
    tape = [line_of(event) for _ in range(parts) for event in (Delta(0, "x"), Counted(9, 1))]
    request = ResponseRequest(model="fake", input="Hi", stream=True)
    record = Record(program_id=PROGRAM, model="fake", created_s=1, request=request, state="ended", tape=tape)
    began_s = time.thread_time()
    told = response_of(record)
    whole_s = time.thread_time() - began_s
    assert told["output"][0]["content"][0]["text"] == "x" * parts
    assert told["usage"]["total_tokens"] == 10
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def sent(message: Any) -> None:
        del message

    counting = asyncio.ensure_future(count())
    exchange = Exchange({"type": "http", "headers": []}, cast("Any", None), sent)
    began_s = time.thread_time()
    await stream(exchange, Tape(record))
    assert turns >= parts // 1000
    assert whole_s < (time.thread_time() - began_s) / 2
    counting.cancel()
