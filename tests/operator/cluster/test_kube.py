"""Requests to the API server: how many at once, what is sent again, what is refused before it is sent."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tartlet_common.yaml_json import dumps
from tartlet_operator.api.meta import Key
from tartlet_operator.cluster.access import ApiAccess
from tartlet_operator.cluster.kube import Api, ApiError


def reply(status: str, body: bytes, *fields: bytes) -> bytes:
    head = [b"HTTP/1.1 " + status.encode(), b"Content-Length: %d" % len(body), *fields]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


OK = reply("200 OK", b'{"metadata":{"name":"p"}}')


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
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                self.requests.append(head + await reader.readexactly(int(length or 0)))
                self.at_once += 1
                self.most = max(self.most, self.at_once)
                await self.gate.wait()
                self.at_once -= 1
                next_reply = self.replies.pop(0)
                if next_reply is None:
                    return
                writer.write(next_reply)
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(
    *replies: bytes | None, at_once: int = 2, connections: int = 100
) -> AsyncIterator[tuple[Server, Api]]:
    server = Server(list(replies))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    access = ApiAccess(f"http://127.0.0.1:{port}/proxy/", ssl.create_default_context(), lambda: "secret", "ns")
    open_connections = access.connections(connections)
    session = access.session(open_connections)
    try:
        yield server, Api(access.server, session, at_once)
    finally:
        await session.close()
        await open_connections.close()
        listening.close()
        await listening.wait_closed()


async def test_requests_carry_the_token_and_follow_the_servers_path() -> None:
    async with serving(OK, OK) as (server, api):
        assert await api.get("Pod", "ns", "p") == {"metadata": {"name": "p"}}
        await api.apply({"kind": "Deployment", "metadata": {"name": "p", "namespace": "ns"}})
    assert server.connections == 1
    line, *fields = server.requests[1].split(b"\r\n")
    path = b"/proxy/apis/apps/v1/namespaces/ns/deployments/p?fieldManager=tartlet-operator&force=true"
    assert line == b"PATCH " + path + b" HTTP/1.1"
    assert {b"Authorization: Bearer secret", b"Content-Type: application/apply-patch+yaml"} < set(fields)


@pytest.mark.parametrize("method", ["GET", "PATCH"])
async def test_a_connection_lost_while_idle_is_replaced_and_a_fresh_one_lost_is_an_error(method: str) -> None:
    async def ask(api: Api) -> Any:
        if method == "GET":
            return await api.get("Pod", "ns", "p")
        return await api.apply({"kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}})

    async with serving(OK, None, OK, None, None, None, None) as (server, api):
        for _ in range(2):
            assert await ask(api) == {"metadata": {"name": "p"}}
        assert (len(server.requests), server.connections) == (3, 2)
        with pytest.raises(ApiError) as gone:
            await ask(api)
    assert (gone.value.status, gone.value.retryable) == (0, True)


@pytest.mark.parametrize("answer", [OK[:-1], b"SSH-2.0\r\n\r\n", reply("200 OK", b"<html>")])
async def test_half_a_reply_and_none_of_json_are_errors_that_may_pass(answer: bytes) -> None:
    async with serving(answer, answer) as (_, api):
        with pytest.raises(ApiError) as unreadable:
            await api.get("Pod", "ns", "p")
    assert (unreadable.value.status, unreadable.value.retryable) == (0, True)


async def test_a_reply_that_nests_deeper_than_python_reads_is_an_error() -> None:
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    async with serving(reply("200 OK", deep), reply("400 Bad", deep)) as (_, api):
        for status in (0, 400):
            with pytest.raises(ApiError) as unreadable:
                await api.get("Pod", "ns", "p")
            assert unreadable.value.status == status


@pytest.mark.parametrize(("at_once", "connections"), [(3, 100), (100, 3)])
async def test_requests_and_connections_have_bounds(at_once: int, connections: int) -> None:
    async with serving(*[OK] * 9, at_once=at_once, connections=connections) as (server, api):
        server.gate.clear()
        asking = [asyncio.ensure_future(api.get("Pod", "ns", "p")) for _ in range(9)]
        await until_asked(lambda: server.at_once == 3)
        server.gate.set()
        await asyncio.gather(*asking)
    assert (server.most, server.connections) == (3, 3)


async def test_the_api_server_unreachable_and_refusals_are_told_apart() -> None:
    refusal = json.dumps({"reason": "Conflict", "message": "somebody else was faster"}).encode()
    async with serving(reply("409 Conflict", refusal)) as (_, api):
        with pytest.raises(ApiError, match="somebody else") as refused:
            await api.get("Pod", "ns", "p")
        api._server = "http://127.0.0.1:1"
        with pytest.raises(ApiError) as unreachable:
            await api.get("Pod", "ns", "p")
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")
    assert (unreachable.value.status, unreachable.value.reason) == (0, "Unreachable")


async def test_writing_the_status_of_a_deleted_object_is_no_error() -> None:
    async with serving(reply("404 Not Found", b"{}")) as (_, api):
        assert await api.apply_status(Key("Inferlet", "ns", "i"), "uid", {}) == (0, 0)


@pytest.mark.parametrize(
    "name",
    ["a HTTP/1.1\r\nHost: a\r\n\r\nDELETE /b", "a?watch=1", "../pods", "a/status", "a%2Fstatus", "A B", "a" * 254],
)
async def test_a_name_that_no_object_can_have_is_not_requested(name: str) -> None:
    async with serving(OK) as (server, api):
        assert await api.get("ConfigMap", "ns", name) is None
        with pytest.raises(ApiError, match="can be named") as refused:
            await api.apply({"kind": "ConfigMap", "metadata": {"name": "a", "namespace": name}})
        assert (refused.value.status, refused.value.retryable) == (404, False)
    assert server.requests == []


@pytest.mark.parametrize(
    "length", [b"Content-Length: 5000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n4c4b40\r\n"]
)
async def test_a_large_page_is_given_up_for_a_shorter_one(length: bytes) -> None:
    pages: list[dict[str, Any]] = [
        {"items": [{"n": 1}, {"n": 2}], "metadata": {"continue": "more"}},
        {"items": [{"n": 3}], "metadata": {}},
    ]
    large = b"HTTP/1.1 200 OK\r\n" + length + b"x" * 5_000_000
    async with serving(large, *[reply("200 OK", page) for page in map(dumps, pages)]) as (server, api):
        assert [body["n"] async for body in api.pages("Pod", "ns")] == [1, 2, 3]
    targets = [request.split()[1].partition(b"?")[2] for request in server.requests]
    assert targets == [b"limit=100", b"limit=12", b"limit=24&continue=more"]
    assert server.connections == 2  # what was left came over the first


async def until_asked(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not done():  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.005)
