"""Links that resume: whatever breaks, each frame is applied once, in order, and what is kept is bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc.aio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tartlet_common.clock import ManualClock
from tartlet_common.errors.registry import (
    MalformedSubmission,
    ProtocolMismatch,
    ResumeRefused,
    StaleIncarnation,
    TartletError,
)
from tartlet_common.rpc import resume
from tartlet_common.rpc.endpoints import OLDEST_PROTOCOL, PROTOCOL_VERSION
from tartlet_common.rpc.error_proto import error_to_proto
from tartlet_common.rpc.link_stream import LinkStream
from tartlet_common.rpc.pairing import Dialling, check_resumption, version_of
from tartlet_common.rpc.resume import EPOCH_KEPT_S, Connection, Epochs, ResumableLink, agree
from tartlet_protos import engine_pb2

Frame = engine_pb2.WorkerFrame
LIMIT = 4000


def new_link(
    clock: ManualClock | None = None,
    *,
    limit: int = LIMIT,
    resumes: bool = True,
    replace: Callable[[Any, TartletError], Any] | None = None,
) -> ResumableLink[Any]:
    return ResumableLink((clock or ManualClock()).now, Frame, limit_bytes=limit, resumes=resumes, replace=replace)


def emptied(frame: Any, error: TartletError) -> Any:
    return Frame(state="instead")


class Pair:
    """Two ends, and the frames of the current connection that are on their way."""

    def __init__(self) -> None:
        self.ends = (new_link(replace=emptied), new_link(replace=emptied))
        self.applied: tuple[list[str], list[str]] = ([], [])
        self.sent: tuple[list[str], list[str]] = ([], [])
        self.wire: tuple[deque[Any], deque[Any]] = (deque(), deque())
        self.connections: tuple[Connection[Any], Connection[Any]]
        self.connect()

    def connect(self) -> None:
        """Both ends name what they have applied; what was on its way is lost."""
        left, right = self.ends
        heard = left.applied, right.applied
        assert left.can_resume(heard[1])
        assert right.can_resume(heard[0])
        self.connections = left.connect(heard[1]), right.connect(heard[0])
        self.wire = (deque(), deque())

    def say(self, end: int) -> None:
        """Send a frame, as long as the link takes more."""
        if not self.ends[end].full:
            text = f"{end}: {len(self.sent[end])}"
            self.sent[end].append(text)
            self.ends[end].send(Frame(state=text))

    def write(self, end: int) -> None:
        frame = self.connections[end].take()
        if frame is not None:
            self.wire[end].append(Frame.FromString(frame.SerializeToString()))

    def acknowledge(self, end: int) -> None:
        self.wire[end].append(self.connections[end].acknowledgement())

    def read(self, end: int) -> None:
        """Let the other end apply one frame of `end`."""
        if self.wire[end]:
            frame, other = self.wire[end].popleft(), 1 - end
            if self.ends[other].received(frame):
                self.applied[other].append(frame.state)
                self.ends[other].done()

    def finish(self) -> None:
        """Let everything arrive."""
        for _ in range(2):
            for end in (0, 1):
                while self.connections[end].waiting:
                    self.write(end)
                self.acknowledge(end)
                while self.wire[end]:
                    self.read(end)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["say", "say", "write", "write", "read", "read", "acknowledge", "connect"]), st.booleans()
    ),
    max_size=300,
)


@settings(max_examples=200, deadline=None)
@given(ACTIONS)
def test_each_frame_is_applied_once_and_in_order_whatever_breaks(actions: list[tuple[str, bool]]) -> None:
    pair = Pair()
    for action, end in actions:
        if action == "connect":
            pair.connect()
        else:
            getattr(pair, action)(int(end))
        for link in pair.ends:
            assert link.size < LIMIT + 200
    pair.finish()
    breaks = sum(action == "connect" for action, _ in actions)
    for applied, sent in zip(pair.applied, reversed(pair.sent), strict=True):
        assert len(applied) == len(sent)
        other = [one for one, wanted in zip(applied, sent, strict=True) if one != wanted]
        assert other == ["instead"] * len(other)
        assert len(other) <= breaks // resume.ATTEMPTS
    for link in pair.ends:
        assert link.size == 0
        assert link.acknowledged == link.last


def test_what_a_peer_never_acknowledges_is_bounded_and_nothing_of_it_is_dropped() -> None:
    pair = Pair()
    for _ in range(10_000):
        pair.say(0)
        pair.write(0)
    assert LIMIT <= pair.ends[0].size < LIMIT + 200
    assert len(pair.sent[0]) < 100
    pair.finish()
    assert pair.ends[0].size == 0
    assert pair.applied[1] == pair.sent[0]


def test_a_link_without_numbers_keeps_nothing() -> None:
    link = new_link(resumes=False)
    connection = link.connect()
    for i in range(100):
        link.send(Frame(state=str(i)))
    taken = [frame for _ in range(100) if (frame := connection.take()) is not None]
    assert [(f.state, f.number, f.applied) for f in taken] == [(str(i), 0, 0) for i in range(100)]
    assert connection.take() is None
    assert link.received(Frame())
    assert not link.full
    assert not link.can_resume(100)


@pytest.mark.parametrize(
    "frame", [Frame(number=2), Frame(number=1, applied=1), Frame(applied=9)], ids=["gap", "unwritten", "unsent"]
)
def test_numbers_that_make_no_sense_are_refused(frame: Any) -> None:
    link = new_link()
    link.send(Frame())
    link.connect()
    with pytest.raises(MalformedSubmission):
        link.received(frame)


def test_a_link_resumes_only_where_it_can() -> None:
    link = new_link()
    for _ in range(5):
        link.send(Frame())
    connection = link.connect()
    while connection.take():
        pass
    link.received(Frame(applied=3))
    assert [n for n in range(8) if link.can_resume(n)] == [3, 4, 5]
    with pytest.raises(MalformedSubmission):
        link.connect(2)
    second = link.connect(4)
    assert connection.take() is None
    assert [f.number for f in iter(second.take, None)] == [5]
    link.give_up()
    assert not link.can_resume(4)
    assert link.size == 0


# ---- Hello --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("oldest", "newest", "spoken"), [(1, 0, 1), (2, 0, 2), (1, 2, 2), (1, 7, 2), (2, 7, 2), (3, 7, None), (0, 0, None)]
)
def test_the_lower_of_two_newest_versions_is_spoken(oldest: int, newest: int, spoken: int | None) -> None:
    if spoken is None:
        with pytest.raises(ProtocolMismatch):
            agree(oldest, newest, (1, 2), peer="worker")
    else:
        assert agree(oldest, newest, (1, 2), peer="worker") == spoken


def test_a_peer_that_was_replaced_is_refused_until_its_successor_has_been_gone_for_a_while() -> None:
    epochs = Epochs()
    epochs.check("a", 9, 0.0, role="worker")  # its Hello is refused for another reason, so nothing is noted
    epochs.check("a", 5, 0.0, role="worker")
    epochs.joined("a", 5, 0.0)
    with pytest.raises(StaleIncarnation):
        epochs.check("a", 4, 1e6, role="worker")
    epochs.check("b", 1, 0.0, role="worker")
    epochs.joined("a", 0, 0.0)  # of a release without epochs
    epochs.left("a", 10.0)
    with pytest.raises(StaleIncarnation):
        epochs.check("a", 4, 10.0 + EPOCH_KEPT_S / 2, role="worker")
    epochs.check("a", 4, 10.0 + EPOCH_KEPT_S, role="worker")  # a clock was set back


def hello(clock: ManualClock, dialling: Dialling) -> Any:
    made = engine_pb2.WorkerHello()
    dialling.fill(made)
    return made


def test_both_ends_agree_whether_a_link_continues() -> None:
    clock = ManualClock(start=7.0)
    dialling = Dialling(clock, Frame)
    first = hello(clock, dialling)
    assert version_of(first, "worker") == PROTOCOL_VERSION
    assert not first.HasField("resume")
    reply = engine_pb2.EngineHello(protocol=PROTOCOL_VERSION, incarnation="c", epoch=3, grace_s=1.5)
    assert not dialling.answered(reply)
    assert dialling.link is not None
    assert dialling.grace_s == 1.5
    for _ in range(3):
        dialling.link.send(Frame())
    dialling.disconnected()
    again, theirs = hello(clock, dialling), new_link()
    assert (again.resume.control_incarnation, again.resume.applied, again.epoch) == ("c", 0, 7000)
    check_resumption(again, theirs, "c", "worker")
    for incarnation, link in (("d", theirs), ("c", None)):
        with pytest.raises(ResumeRefused):
            check_resumption(again, link, incarnation, "worker")
    with pytest.raises(StaleIncarnation):
        dialling.answered(engine_pb2.EngineHello(protocol=PROTOCOL_VERSION, incarnation="b", epoch=2))
    link = dialling.link
    assert dialling.answered(engine_pb2.EngineHello(protocol=2, incarnation="c", epoch=3, resumed=True, applied=2))
    assert dialling.link is link
    with pytest.raises(ResumeRefused):
        dialling.answered(engine_pb2.EngineHello(protocol=2, error=error_to_proto(ResumeRefused(detail="gone"))))
    assert not hello(clock, dialling).HasField("resume")


def test_a_control_of_the_release_before_ends_the_link_with_the_connection() -> None:
    dialling = Dialling(ManualClock(), Frame)
    assert not dialling.answered(engine_pb2.EngineHello(protocol=OLDEST_PROTOCOL, incarnation="c"))
    assert dialling.link is not None
    assert not dialling.link.resumes
    dialling.disconnected()
    again = engine_pb2.WorkerHello()
    dialling.fill(again)
    assert not again.HasField("resume")


# ---- streams ------------------------------------------------------------------------------------------------------


class Wire:
    """One direction of a connection, which may break."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[Any] = asyncio.Queue()
        self.broken = False


class Stream:
    def __init__(self, up: Wire, down: Wire) -> None:
        self._up, self._down = up, down

    async def read(self) -> Any:
        return await self._down.frames.get()

    async def write(self, frame: Any) -> None:
        if self._up.broken:
            raise ConnectionResetError
        self._up.frames.put_nowait(Frame.FromString(frame.SerializeToString()))


class End:
    """An end with a reader and a writer, as the roles have them."""

    def __init__(self, link: ResumableLink[Any], stream: Any, applied: int, taken: list[str]) -> None:
        self.wake = asyncio.Event()
        self.frames = LinkStream(link, stream, self.wake.set, applied)
        self.wake.set()
        self.tasks = [asyncio.ensure_future(self.read(taken)), asyncio.ensure_future(self.write())]

    async def read(self, taken: list[str]) -> None:
        while (frame := await self.frames.read()) is not grpc.aio.EOF:
            taken.append(frame.state)
            self.frames.applied()

    async def write(self) -> None:
        while True:
            await self.wake.wait()
            self.wake.clear()
            await self.frames.write_waiting()

    async def end(self) -> None:
        self.frames.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def joined(links: Any, taken: Any) -> tuple[End, End]:
    up, down = Wire(), Wire()
    heard = links[0].applied, links[1].applied
    return (
        End(links[0], Stream(up, down), heard[1], taken[0]),
        End(links[1], Stream(down, up), heard[0], taken[1]),
    )


def lists() -> tuple[list[str], list[str]]:
    return [], []


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.005)


async def test_acknowledgements_travel_although_nothing_else_does() -> None:
    links, taken = (new_link(), new_link()), lists()
    ends = joined(links, taken)
    for i in range(40):
        links[0].send(Frame(state=str(i)))
        ends[0].wake.set()
        await asyncio.sleep(0)
    await until(lambda: links[0].size == 0)
    assert taken[1] == [str(i) for i in range(40)]
    assert links[1].last == 0
    for end in ends:
        await end.end()


async def test_frames_of_an_earlier_connection_that_come_late_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    links, taken = (new_link(), new_link()), lists()
    first, second = joined(links, taken)
    links[0].send(Frame(state="one"))
    first.wake.set()
    await until(lambda: taken[1] == ["one"])
    await first.end()
    late: Any = second.frames._stream
    ends = joined(links, taken)
    late._down.frames.put_nowait(Frame(number=2, state="late"))
    links[0].send(Frame(state="two"))
    ends[0].wake.set()
    await until(lambda: taken[1] == ["one", "two"])
    await asyncio.sleep(0.02)
    assert second.tasks[0].done()
    assert taken[1] == ["one", "two"]
    for end in (second, *ends):
        await end.end()


async def test_a_peer_that_says_nothing_is_noticed_and_one_that_beats_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    links, taken = (new_link(clock), new_link(clock)), lists()
    ends = joined(links, taken)
    for _ in range(int(resume.SILENCE_S) * 4):
        clock.advance(0.5)
        ends[1].frames.beat()
        await asyncio.sleep(0.001)
        assert not ends[0].frames.silent
    assert ends[1].frames.silent
    assert taken == ([], [])
    for end in ends:
        await end.end()
    assert resume.BEAT_S < resume.SILENCE_S / 2
