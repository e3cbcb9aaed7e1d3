"""HTTP_REQUEST, HTTP_READ and HTTP_CLOSE of a native guest, against a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tartlet_common.abi import Event, Flag, Op
from tartlet_common.errors.registry import (
    BodyTooLarge,
    InvalidArgument,
    NotAllowed,
    RequestFailed,
    ResourceQuotaExceeded,
    TartletError,
    UnknownResource,
)
from tartlet_protos import common_pb2, programs_pb2
from tartlet_runtime.budget.ledger import Use
from tartlet_runtime.web.exchange import JOURNALED_BYTES, MAX_OPEN
from tests.runtime.harness import NativeProgram, Rig, Stream, native, running, until
from tests.runtime.web.servers import Server, serving

Answer = tuple[dict[str, Any], bytes, bool]  # head, bytes of the body, whether it is over


class Web:
    """A native program that sends requests."""

    def __init__(self, guest: NativeProgram, stream: Stream) -> None:
        self.guest = guest
        self.stream = stream
        self._ticket = 0
        self._early: dict[int, Answer | TartletError | Event] = {}

    def ask(self, op: int, number: int, a: int = 0, c: int = 0, payload: bytes = b"") -> int:
        """Submit a command; return its ticket."""
        self._ticket += 1
        fields = {"flags": Flag.AWAIT, "ticket": self._ticket, "a": a, "b": number, "c": c, "payload": payload}
        self.guest.submit((op, fields))
        return self._ticket

    def send(self, url: str, number: int = 1, wanted: int = 1 << 20, body: bytes = b"", **head: Any) -> int:
        told = json.dumps({"method": "GET", "url": url, **head}).encode()
        return self.ask(Op.HTTP_REQUEST, number, len(told), wanted, told + body)

    async def answer(self, ticket: int) -> Answer:
        """Wait for an answer; a failure is raised."""
        while ticket not in self._early:
            batch = await self.guest.wait()
            for row in batch.records.tolist():
                payload = batch.payload[row[7] : row[7] + row[8]]
                if row[0] == Event.FAILURE:
                    self._early[row[2]] = TartletError.from_wire(row[4], payload)
                elif row[0] == Event.RESULT:
                    head = json.loads(payload[: row[4]]) if row[4] else {}
                    self._early[row[2]] = (head, payload[row[4] :], bool(row[5]))
                else:
                    self._early[row[2]] = Event(row[0])
        told = self._early.pop(ticket)
        if isinstance(told, TartletError):
            raise told
        assert not isinstance(told, Event), told
        return told

    async def get(self, url: str, **fields: Any) -> Answer:
        return await self.answer(self.send(url, **fields))

    async def read(self, number: int = 1, most: int = 0, *, whole: bool = False) -> tuple[bytes, bool]:
        _, data, is_over = await self.answer(self.ask(Op.HTTP_READ, number, most, int(whole)))
        return data, is_over


@contextlib.asynccontextmanager
async def asking(directory: Path, hosts: str = "127.0.0.1", **settings: Any) -> AsyncIterator[tuple[Rig, Server, Web]]:
    """A program that may ask hosts on loopback, and a server there."""
    open_to = {"http_hosts": hosts, "http_private_hosts": "127.0.0.1"}
    async with serving() as server, running(directory, **open_to | settings) as rig:
        stream, guest = await native(rig, capabilities=common_pb2.Capabilities(http=["*"]))
        yield rig, server, Web(guest, stream)


async def test_a_small_reply_comes_whole_with_its_head(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, server, web):
        url = f"{server.url}/a%20b?q=1#part"
        head, body, is_over = await web.get(url, headers=[["X-Mine", "caf\xe9"]])
        assert (head["status"], head["url"], is_over) == (200, f"{server.url}/a%20b?q=1", True)
        assert ["content-type", "text/plain"] in head["headers"]
        lines = body.decode().splitlines()
        assert lines[0] == "GET /a%20b?q=1"
        assert f"host: 127.0.0.1:{server.port}" in lines
        assert server.heard[0].headers["x-mine"].encode("latin-1").decode() == "caf\xe9"
        assert "accept-encoding: identity" in lines
        with pytest.raises(UnknownResource):
            await web.read()
        head, body, _ = await web.get(f"{server.url}/p", method="POST", body=b"\x00\xff", headers=[["A", "b"]])
        assert body.endswith(b"\x00\xff")
        assert server.heard[-1].headers["content-length"] == "2"


async def test_a_body_is_read_no_faster_than_the_program_reads(tmp_path: Path) -> None:
    async with asking(tmp_path) as (rig, server, web):
        head, body, is_over = await web.get(f"{server.url}/endless", wanted=0)
        assert (head["status"], body, is_over) == (200, b"", False)
        taken = 0
        for _ in range(8):
            data, is_over = await web.read(most=1 << 16, whole=True)
            assert (len(data), is_over) == (1 << 16, False)
            taken += len(data)
        held = await rig_requests(rig)
        assert 0 < held < 2 << 20, "the rest waits in the kernel's buffers"
        web.guest.submit((Op.HTTP_CLOSE, {"b": 1}))
        await until(lambda: server.closed == ["/endless"])
        with pytest.raises(UnknownResource):
            await web.read()
        assert await rig_requests(rig) == 0


async def rig_requests(rig: Rig) -> int:
    """Bytes that requests hold of the runtime's memory."""
    state = await rig.stub.RuntimeState(programs_pb2.RuntimeStateRequest())
    return int(state.memory_taken_bytes[Use.REQUESTS])


async def test_chunks_come_as_they_are_sent(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, server, web):
        _, body, is_over = await web.get(f"{server.url}/slowly?2", wanted=0)
        assert not is_over
        assert await web.read() == (b"data: 0\n", False)
        ticket = web.ask(Op.HTTP_READ, 1)
        server.go_on.set()
        _, body, is_over = await web.answer(ticket)
        assert body == b"data: 1\n"
        if not is_over:
            assert await web.read() == (b"", True)


async def test_many_requests_run_at_once_up_to_a_bound(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, server, web):
        tickets = [web.send(f"{server.url}/silent", number=i) for i in range(MAX_OPEN)]
        await until(lambda: server.connections == MAX_OPEN)
        with pytest.raises(ResourceQuotaExceeded):
            await web.get(f"{server.url}/one-more", number=MAX_OPEN)
        server.go_on.set()
        for ticket in tickets:
            assert (await web.answer(ticket))[1:] == (b"at last", True)
        assert (await web.get(f"{server.url}/again"))[0]["status"] == 200


async def test_a_journal_keeps_eight_mib_of_a_body_and_a_program_without_one_reads_on(tmp_path: Path) -> None:
    async with asking(tmp_path) as (rig, server, web):
        size = JOURNALED_BYTES + 1
        _, body, is_over = await web.get(f"{server.url}/bytes?{size}")
        read = len(body)
        for _ in range(7):
            data, is_over = await web.read(most=1 << 20, whole=True)
            read += len(data)
        assert (read, is_over) == (JOURNALED_BYTES, False)
        with pytest.raises(BodyTooLarge):
            await web.read(most=1 << 20, whole=True)
        stream, guest = await native(rig, durable=False, capabilities=common_pb2.Capabilities(http=["127.0.0.1"]))
        unbound = Web(guest, stream)
        _, body, is_over = await unbound.get(f"{server.url}/bytes?{size}")
        read = len(body)
        while not is_over:
            data, is_over = await unbound.read(most=1 << 20, whole=True)
            read += len(data)
        assert read == size


async def test_failures_are_typed_and_a_program_goes_on(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, server, web):
        for path in ("broken", "garbage", "headers"):
            with pytest.raises(RequestFailed):
                await web.get(f"{server.url}/{path}")
        with pytest.raises(RequestFailed, match=r"within 0\.2 s"):
            await web.get(f"{server.url}/silent", timeout_s=0.2)
        await until(lambda: "/silent" in server.closed)
        with pytest.raises(RequestFailed, match="no connection"):
            await web.get("http://127.0.0.1:1/")
        with pytest.raises(RequestFailed, match="too often"):
            await web.get(f"{server.url}/redirect?/redirect?/redirect?/x", redirects=2)
        head, *_ = await web.get(f"{server.url}/redirect?/x", redirects=0)
        assert head["status"] == 302
        assert (await web.get(f"{server.url}/fine"))[0]["status"] == 200


async def test_a_program_that_ends_closes_its_connections(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, server, web):
        web.send(f"{server.url}/silent", number=1)
        await web.get(f"{server.url}/endless", number=2, wanted=0)
        await until(lambda: server.connections == 2)
        web.guest.end()
        await until(lambda: set(server.closed) == {"/silent", "/endless"})


async def test_a_closed_request_cancels_the_read_that_waits(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, server, web):
        await web.get(f"{server.url}/slowly?5", wanted=0)
        await web.read()
        ticket = web.ask(Op.HTTP_READ, 1)
        with pytest.raises(InvalidArgument):
            await web.read()
        web.guest.submit((Op.HTTP_CLOSE, {"b": 1}))
        with pytest.raises(AssertionError, match="CANCELLED"):
            await web.answer(ticket)


@pytest.mark.parametrize(
    ("launched", "ceiling", "named"),
    [
        (["127.0.0.1"], "", "http_hosts"),
        ([], "127.0.0.1", "launch"),
        (["127.0.0.1:1"], "127.0.0.1", "launch"),
        (["https://127.0.0.1"], "127.0.0.1", "launch"),
        (["127.0.0.1"], "other=127.0.0.1", "http_hosts"),
        (["*.0.0.1", "example.org"], "*", "launch"),
    ],
)
async def test_a_host_needs_the_launch_and_the_ceiling(
    tmp_path: Path, launched: list[str], ceiling: str, named: str
) -> None:
    async with serving() as server, running(tmp_path, http_hosts=ceiling, http_private_hosts="127.0.0.1") as rig:
        try:
            stream, guest = await native(rig, capabilities=common_pb2.Capabilities(http=launched))
        except AssertionError:
            assert launched[0].startswith("*.0"), "only what is no pattern is refused at the launch"
            return
        with pytest.raises(NotAllowed) as caught:
            await Web(guest, stream).get(f"{server.url}/")
        assert named in caught.value.remedy
        assert server.connections == 0


async def test_a_tenants_own_hosts_are_its_alone(tmp_path: Path) -> None:
    async with serving() as server, running(tmp_path, http_hosts="a=127.0.0.1", http_private_hosts="127.0.0.1") as rig:
        for tenant, status in (("a", 200), ("b", 0)):
            stream, guest = await native(rig, tenant=tenant, capabilities=common_pb2.Capabilities(http=["127.0.0.1"]))
            web = Web(guest, stream)
            if status:
                assert (await web.get(server.url))[0]["status"] == status
            else:
                with pytest.raises(NotAllowed):
                    await web.get(server.url)
    await asyncio.sleep(0)
