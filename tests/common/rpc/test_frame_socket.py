"""Frames on a socket beside a gRPC stream: cut, bounded, ended and refused as the stream's own would be."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tartlet_common.errors.registry import FrameTooLarge, MalformedSubmission
from tartlet_common.rpc import frame_socket, frame_streams
from tartlet_common.rpc.frame_socket import FrameSocket
from tartlet_common.rpc.frame_streams import Beside, FrameListener, Joiner
from tartlet_protos import common_pb2

Chunk = common_pb2.BlobChunk


def packed(*messages: Chunk) -> bytes:
    data = [m.SerializeToString() for m in messages]
    return b"".join(struct.pack("<I", len(d)) + d for d in data)


async def join(call: Any, offer: common_pb2.FrameSocketOffer, directory: Path) -> Any:
    return await Joiner(f"unix:{directory}/c.sock").join(call, offer, Chunk)


async def everything(frames_of: FrameSocket) -> list[Any]:
    frames = []
    while (frame := await frames_of.read()) is not grpc.aio.EOF:
        frames.append(frame)
    return frames


class Call:
    """A stream beside the socket, as far as a client's end asks it."""

    def __init__(self, status: Exception | None = None) -> None:
        self.status = status
        self.done: list[Callable[[Any], None]] = []
        self.cancelled = False

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.done.append(callback)

    async def read(self) -> Any:
        if self.status is not None:
            raise self.status
        return grpc.aio.EOF

    def cancel(self) -> None:
        self.cancelled = True


@contextlib.asynccontextmanager
async def listener(directory: Path) -> AsyncIterator[FrameListener]:
    made = FrameListener(directory / "c.sock")
    await made.open()
    try:
        yield made
    finally:
        await made.close()


@contextlib.asynccontextmanager
async def pair(directory: Path, call: Call | None = None) -> AsyncIterator[tuple[Any, Any, Beside]]:
    """A client's and a server's end."""
    async with listener(directory) as made, made.beside(None, Chunk, wanted=True) as beside:
        client = await join(call or Call(), beside.offer, directory)
        try:
            yield client, await beside.joined(), beside
        finally:
            client.cancel()


@given(st.lists(st.binary(max_size=300), max_size=20), st.lists(st.integers(1, 40), min_size=1))
def test_frames_are_the_same_however_the_bytes_come(datas: list[bytes], cuts: list[int]) -> None:
    async def check() -> None:
        end = FrameSocket(Chunk)
        stream, at, i = packed(*(Chunk(data=d) for d in datas)), 0, 0
        while at < len(stream):
            end.data_received(stream[at : at + cuts[i % len(cuts)]])
            at, i = at + cuts[i % len(cuts)], i + 1
        end.eof_received()
        assert [frame.data for frame in await everything(end)] == datas

    asyncio.run(check())


@given(st.binary(max_size=400))
def test_bytes_that_are_no_frames_end_in_a_typed_error_or_are_frames(data: bytes) -> None:
    async def check() -> None:
        end = FrameSocket(Chunk)
        end.data_received(data)
        end.eof_received()
        with contextlib.suppress(MalformedSubmission):
            await everything(end)

    asyncio.run(check())


async def test_a_frame_larger_than_a_message_may_be_is_refused_at_its_length() -> None:
    end = FrameSocket(Chunk)
    end.data_received(struct.pack("<I", frame_socket.MAX_FRAME_BYTES + 1))
    with pytest.raises(MalformedSubmission, match="a frame of"):
        await end.read()


async def test_empty_frames_are_held_back_too(run_dir: Path) -> None:
    async with pair(run_dir) as (client, server, _):
        sending = asyncio.ensure_future(everything_sent(client, 200_000))
        await asyncio.sleep(1.0)
        assert not sending.done()
        assert len(server._frames) < 120_000  # what is read at once may be above the bound
        sending.cancel()


async def everything_sent(client: Any, count: int) -> None:
    for _ in range(count):
        await client.write(Chunk())


async def test_a_frame_that_nobody_would_take_isn_t_sent(run_dir: Path) -> None:
    async with pair(run_dir) as (client, server, _):
        with pytest.raises(FrameTooLarge):
            await client.write(Chunk(data=bytes(5 << 20)))
        await client.write(Chunk(size=1))
        assert (await server.read()).size == 1


async def test_who_can_t_join_asks_for_no_socket_until_a_stream_without_has_begun(run_dir: Path) -> None:
    joiner = Joiner(f"unix:{run_dir}/c.sock")
    wanted = [joiner.wanted]
    with pytest.raises(ConnectionError):
        await joiner.join(Call(), common_pb2.FrameSocketOffer(ticket=b"t" * 16), Chunk)
    wanted.append(joiner.wanted)
    assert await joiner.join("the call", common_pb2.FrameSocketOffer(), Chunk) == "the call"
    wanted.append(joiner.wanted)
    async with listener(run_dir):  # of another server: it knows no such ticket
        stream = await joiner.join(Call(), common_pb2.FrameSocketOffer(ticket=b"t" * 16), Chunk)
        assert await stream.read() is grpc.aio.EOF
        stream.cancel()
    assert [*wanted, joiner.wanted] == [True, False, True, False]
    assert not Joiner("localhost:1").wanted


async def test_frames_travel_both_ways_and_each_end_sees_the_other_close(run_dir: Path) -> None:
    async with pair(run_dir) as (client, server, _):
        large = Chunk(data=b"x" * (4 << 20))
        sending = asyncio.ensure_future(client.write(large))
        assert await server.read() == large
        await sending
        for i in range(100):
            await server.write(Chunk(size=i))
        assert [(await client.read()).size for _ in range(100)] == list(range(100))
        await client.done_writing()
        assert await server.read() is grpc.aio.EOF
        await server.write(Chunk(digest="a last word"))
        server.close()
        assert (await client.read()).digest == "a last word"
        assert await client.read() is grpc.aio.EOF
        with pytest.raises(ConnectionResetError):
            await client.write(Chunk())


async def test_who_isn_t_read_waits_and_little_is_kept(run_dir: Path) -> None:
    async with pair(run_dir) as (client, server, _):
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                await client.write(Chunk(data=bytes(64 << 10)))
                sent += 1

        flooding = asyncio.ensure_future(flood())
        await asyncio.sleep(0.3)
        before = sent
        await asyncio.sleep(0.1)
        assert sent == before < 64  # 4 MiB: what either end and the kernel keep
        for _ in range(before * 4):
            await server.read()
        assert sent > before * 3
        flooding.cancel()


async def test_a_flood_of_frames_leaves_the_loop_to_others(run_dir: Path) -> None:
    end = FrameSocket(Chunk)
    end.data_received(packed(*(Chunk(size=i) for i in range(1000))))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.ensure_future(other())
    for _ in range(1000):
        await end.read()
    others.cancel()
    assert turns > 40


@pytest.mark.parametrize("first", [b"", b"\x10\0\0\0" + b"?" * 16, b"\xff\xff\xff\x7f", b"\x03\0\0\0abc"])
async def test_strangers_are_shown_out(run_dir: Path, monkeypatch: pytest.MonkeyPatch, first: bytes) -> None:
    monkeypatch.setattr(frame_streams, "JOIN_TIMEOUT_S", 0.2)
    async with listener(run_dir):
        reader, writer = await asyncio.open_unix_connection(str(run_dir / "c.sock.frames"))
        writer.write(first)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


async def test_a_ticket_admits_one(run_dir: Path) -> None:
    async with pair(run_dir) as (client, server, beside):
        second = await join(Call(), beside.offer, run_dir)
        assert await second.read() is grpc.aio.EOF
        second.cancel()
        await client.write(Chunk(size=7))
        assert (await server.read()).size == 7


async def test_a_client_that_doesn_t_come_ends_the_stream(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_streams, "JOIN_TIMEOUT_S", 0.1)
    async with listener(run_dir) as made, made.beside(None, Chunk, wanted=True) as beside:
        with pytest.raises(ConnectionError, match="nobody has joined"):
            await beside.joined()


async def test_what_is_no_frame_ends_a_client_s_connection_and_nothing_else(run_dir: Path) -> None:
    async with pair(run_dir) as (client, server, _):
        server._transport.write(b"\xff" * 8)
        with pytest.raises(ConnectionError, match="a frame of"):
            await client.read()


async def test_nobody_at_the_socket_is_a_connection_error(run_dir: Path) -> None:
    with pytest.raises(ConnectionError, match=r"c\.sock\.frames"):
        await join(Call(), common_pb2.FrameSocketOffer(ticket=b"t" * 16), run_dir)


async def test_why_the_stream_ended_is_what_the_call_says(run_dir: Path) -> None:
    class GoneError(Exception):
        pass

    async with pair(run_dir, Call(GoneError("killed"))) as (client, server, _):
        await server.write(Chunk(size=1))
        server.close()
        assert (await client.read()).size == 1
        with pytest.raises(GoneError, match="killed"):
            await client.read()


async def test_a_call_that_has_ended_takes_the_socket_with_it(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_streams, "LAST_FRAMES_S", 0.2)
    call = Call()
    async with pair(run_dir, call) as (client, server, _):
        for done in call.done:
            done(call)
        await server.write(Chunk(digest="on its way"))
        assert (await client.read()).digest == "on its way"
        assert await asyncio.wait_for(client.read(), 5) is grpc.aio.EOF
        assert await asyncio.wait_for(server.read(), 5) is grpc.aio.EOF


async def test_no_socket_is_offered_where_none_is_wanted_or_none_fits(run_dir: Path) -> None:
    async with listener(run_dir) as made, made.beside("the call", Chunk, wanted=False) as beside:
        assert not beside.offer.ticket
        assert await beside.joined() == "the call"
        assert await join("the call", beside.offer, run_dir) == "the call"
    for path in (None, Path("/tmp/" + "x" * 96 + ".sock")):
        made = FrameListener(path)
        await made.open()
        async with made.beside("the call", Chunk, wanted=True) as beside:
            assert not beside.offer.ticket
        await made.close()


async def test_a_socket_that_a_killed_server_left_is_taken_over(run_dir: Path) -> None:
    async with listener(run_dir):
        pass
    assert not (run_dir / "c.sock.frames").exists()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(run_dir / "c.sock.frames"))
    async with pair(run_dir) as (client, server, _):
        await client.write(Chunk(size=1))
        assert (await server.read()).size == 1
