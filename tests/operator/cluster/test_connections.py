"""Replies in every form, connections that stay, and those that went while nobody used them."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tartlet_common.yaml_json import dumps
from tartlet_operator.cluster.access import ApiAccess
from tartlet_operator.cluster.connections import Connections, Gone
from tartlet_operator.cluster.kube import Api, ApiError

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0a;x=y\r\n0123456789\r\n0\r\n\r\n"


class Server:
    """Answers each request with the next of some replies (None: closes the connection), and closes behind the last."""

    def __init__(self, replies: list[bytes | None]) -> None:
        self.replies = replies
        self.requests: list[bytes] = []
        self.connections = self.at_once = self.most = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.replies:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                self.at_once += 1
                self.most = max(self.most, self.at_once)
                await self.gate.wait()
                self.at_once -= 1
                reply = self.replies.pop(0)
                if reply is None:
                    return
                for at in range(0, len(reply), 7):
                    writer.write(reply[at : at + 7])
                    await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(*replies: bytes | None, limit: int = 2) -> AsyncIterator[tuple[Server, Connections]]:
    server = Server(list(replies))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    connections = Connections(f"http://127.0.0.1:{port}/proxy/", ssl.create_default_context(), limit)
    try:
        yield server, connections
    finally:
        await connections.close()
        listening.close()
        await listening.wait_closed()


async def test_replies_of_every_form_come_over_one_connection() -> None:
    no_content, refused = b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n", OK.replace(b"200 OK", b"404 Not Found")
    async with serving(OK, CHUNKED, no_content, refused) as (server, connections):
        replies = [await connections.request("PATCH", "/a?b=c", "X-Y: z\r\n", b"body") for _ in range(4)]
    assert [(r.status, r.body) for r in replies] == [(200, b"ok"), (200, b"abc0123456789"), (204, b""), (404, b"ok")]
    assert server.connections == 1
    line, *fields = server.requests[0].split(b"\r\n")
    assert line == b"PATCH /proxy/a?b=c HTTP/1.1"
    assert {b"X-Y: z", b"Content-Length: 4", b"body"} < set(fields)


async def test_a_connection_that_went_while_idle_is_replaced_and_a_fresh_one_that_goes_is_an_error() -> None:
    closing = OK.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
    async with serving(OK, None, closing, OK, None) as (server, connections):
        for _ in range(3):  # the second is sent twice
            assert (await connections.request("GET", "/", "", b"")).body == b"ok"
        assert (len(server.requests), server.connections) == (4, 3)
        await connections.close()
        with pytest.raises(Gone):
            await connections.request("GET", "/", "", b"")


@pytest.mark.parametrize("reply", [OK[:-1], b"SSH-2.0\r\n\r\n", CHUNKED.replace(b"0a;", b"zz;")])
async def test_half_a_reply_and_none_of_http_are_errors(reply: bytes) -> None:
    async with serving(reply) as (_, connections):
        with pytest.raises(ConnectionError):
            await connections.request("GET", "/", "", b"")


async def test_no_more_connections_than_allowed() -> None:
    async with serving(*[OK] * 9, limit=3) as (server, connections):
        server.gate.clear()
        asking = [asyncio.ensure_future(connections.request("GET", "/", "", b"")) for _ in range(9)]
        await until_asked(lambda: server.at_once == 3)
        server.gate.set()
        await asyncio.gather(*asking)
    assert (server.most, server.connections) == (3, 3)


async def test_the_api_server_unreachable_and_refusals_are_told_apart() -> None:
    refusal = json.dumps({"reason": "Conflict", "message": "somebody else was faster"}).encode()
    conflict = b"HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n\r\n" % len(refusal) + refusal
    async with serving(conflict) as (server, connections):
        address = f"http://127.0.0.1:{connections._port}"
        api = Api(ApiAccess(address, ssl.create_default_context(), lambda: "secret", "ns"), 1)
        with pytest.raises(ApiError, match="somebody else") as refused:
            await api.get("Pod", "ns", "p")
        assert b"Authorization: Bearer secret\r\n" in server.requests[0]
        await api.close()
    with pytest.raises(ApiError) as unreachable:
        await api.get("Pod", "ns", "p")
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")
    assert (unreachable.value.status, unreachable.value.reason) == (0, "Unreachable")


@pytest.mark.parametrize(
    "name",
    ["a HTTP/1.1\r\nHost: a\r\n\r\nDELETE /b", "a?watch=1", "../pods", "a/status", "a%2Fstatus", "A B", "a" * 254],
)
async def test_a_name_that_no_object_has_is_not_asked_for(name: str) -> None:
    async with serving(OK) as (server, connections):
        api = Api(
            ApiAccess(f"http://127.0.0.1:{connections._port}", ssl.create_default_context(), lambda: "s", "ns"), 1
        )
        assert await api.get("ConfigMap", "ns", name) is None
        with pytest.raises(ApiError, match="can be named") as refused:
            await api.apply({"kind": "ConfigMap", "metadata": {"name": "a", "namespace": name}})
        assert (refused.value.status, refused.value.retryable) == (404, False)
        await api.close()
        for target in (f"/{name} ", "/\r\n", "/\x7f", "/\u00e9", "no path"):
            with pytest.raises(ValueError, match="no target"):
                await connections.request("GET", target, "", b"")
    assert server.requests == []


@pytest.mark.parametrize(
    "length", [b"Content-Length: 5000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n4c4b40\r\n"]
)
async def test_a_page_that_is_large_is_left_for_a_shorter_one(length: bytes) -> None:
    pages: list[dict[str, Any]] = [
        {"items": [{"n": 1}, {"n": 2}], "metadata": {"continue": "more"}},
        {"items": [{"n": 3}], "metadata": {}},
    ]
    replies = [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(p), p) for p in map(dumps, pages)]
    async with serving(b"HTTP/1.1 200 OK\r\n" + length, *replies) as (server, connections):
        access = ApiAccess(f"http://127.0.0.1:{connections._port}", ssl.create_default_context(), lambda: "s", "ns")
        api = Api(access, 1)
        assert [body["n"] async for body in api.pages("Pod", "ns")] == [1, 2, 3]
        await api.close()
    targets = [request.split()[1].partition(b"?")[2] for request in server.requests]
    assert targets == [b"limit=100", b"limit=12", b"limit=24&continue=more"]
    assert server.connections == 2  # what was left came over the first


async def test_a_connection_that_says_more_than_it_was_asked_is_not_used_again() -> None:
    async with serving(OK + OK, OK) as (server, connections):
        assert (await connections.request("GET", "/", "", b"")).body == b"ok"
        await asyncio.sleep(0.1)
        assert (await connections.request("GET", "/", "", b"")).body == b"ok"
    assert server.connections == 2


async def until_asked(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not done():  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.005)
