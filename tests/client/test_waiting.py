"""How long a client waits for a server that is away, and for what: streams and calls that break at chosen moments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tartlet._calls import answered, repeated, sent
from tartlet._following import Following
from tartlet_common.errors.registry import RuntimeLost, TartletError, Unavailable, UnknownProgram
from tartlet_common.rpc.error_proto import error_to_proto
from tartlet_protos import programs_pb2

_Event = programs_pb2.ProgramEvent
SHORT_S = 0.5
"""How long the clients of these tests wait."""


def broken() -> grpc.aio.AioRpcError:
    metadata = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, metadata, metadata, "Socket closed")


def frame(kind: Any, error: TartletError | None = None, offset: int = 0) -> programs_pb2.ProgramEvents:
    return programs_pb2.ProgramEvents(events=[_Event(kind=kind, offset=offset, error=error_to_proto(error))])


class Stream:
    """Gives frames, then breaks."""

    def __init__(self, *frames: programs_pb2.ProgramEvents) -> None:
        self._frames = list(frames)

    async def read(self) -> Any:
        if not self._frames:
            raise broken()
        return self._frames.pop(0)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Never call it: these streams end where they are read."""

    def cancel(self) -> None:
        """Do nothing."""


async def followed(streams: Sequence[Stream], address: str = "server:1") -> Sequence[Any]:
    """Follows a program over one stream after another, and returns the first events."""
    waiting = iter(streams)
    following = Following(next(waiting), address, attach=lambda _: next(waiting), retry_s=SHORT_S)
    return await following.read()


NOT_YET = frame(_Event.REJECTED, Unavailable(what="the program's runtime", detail="another one is about to go on"))


async def test_an_attach_that_breaks_before_its_answer_is_made_again() -> None:
    (event,) = await followed([Stream(), Stream(frame(_Event.ACCEPTED))])
    assert event.kind == _Event.ACCEPTED


async def test_an_attach_waits_while_the_server_does_not_know_yet_who_has_the_program() -> None:
    (event,) = await followed([Stream(NOT_YET), Stream(), Stream(frame(_Event.ACCEPTED))])
    assert event.kind == _Event.ACCEPTED
    (event,) = await followed([Stream(NOT_YET), Stream(frame(_Event.REJECTED, UnknownProgram(program="p")))])
    assert event.error.number == UnknownProgram.number, "now it is known"


async def test_an_attach_ends_in_the_reason_why_it_waited(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="about to go on"):
        await followed([Stream(NOT_YET) for _ in range(9)])
    with pytest.raises(Unavailable, match="Socket closed"):
        await followed([Stream() for _ in range(9)])
    async with asyncio.timeout(SHORT_S / 2):
        with pytest.raises(Unavailable, match="no such socket"):
            await followed([Stream()], f"unix:{tmp_path}/never.sock")


async def test_a_program_that_was_followed_is_lost_if_nobody_comes_back() -> None:
    following = Following(Stream(frame(_Event.ACCEPTED)), "server:1", attach=lambda _: Stream(), retry_s=SHORT_S)
    await following.read()
    with pytest.raises(RuntimeLost):
        await following.read()


async def test_the_time_for_which_calls_are_repeated_begins_when_the_first_one_has_failed() -> None:
    calls = 0

    async def call(*_: Any, **__: Any) -> programs_pb2.SendReply:
        nonlocal calls
        calls += 1
        if calls % 2:
            await asyncio.sleep(1.5 * SHORT_S)  # the server is slow, and then dies
            raise broken()
        return programs_pb2.SendReply(errors=[error_to_proto(None)])

    async def launch() -> str:
        try:
            await call()
        except grpc.aio.AioRpcError as e:
            raise Unavailable(what="the server", detail="gone") from e
        return "launched"

    request = programs_pb2.SendRequest(items=[programs_pb2.SendItem(program_id="p", message=b"x", key=b"k")])
    assert await sent(lambda: call, request, "server:1", (), SHORT_S) == [None]
    assert await repeated(launch, SHORT_S) == "launched"


async def test_what_is_not_available_yet_is_asked_for_again_and_nothing_else() -> None:
    asked: list[list[int]] = []
    away = Unavailable(what="control", detail="away")

    async def ask(left: list[int]) -> list[str | TartletError]:
        asked.append(left)
        if len(asked) == 2:
            raise away
        done = UnknownProgram(program="p") if len(asked) == 1 else "launched"
        return [away if len(asked) == 1 and i % 2 else done for i in left]

    answers = await answered(ask, 4, SHORT_S)
    assert asked == [[0, 1, 2, 3], [1, 3], [1, 3]]
    assert [type(a) for a in answers] == [UnknownProgram, str, UnknownProgram, str]

    async def never(left: list[int]) -> list[TartletError]:
        return [away for _ in left]

    assert await answered(never, 2, SHORT_S) == [away, away], "whoever asked hears why"
    assert await answered(never, 1, 0.0) == [away]

    async def once(left: list[int]) -> list[str | TartletError]:
        if len(left) == 2:
            return ["launched", away]
        raise away

    assert await answered(once, 2, SHORT_S) == ["launched", away], "a server that dies later takes no answer back"
