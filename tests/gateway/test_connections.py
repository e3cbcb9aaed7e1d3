"""Clients that leave, dawdle or flood: their runs end, and everybody else is served."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import time

import httpx
import pytest

import tartlet
from tartlet_gateway.http.protocol import HEADERS_S, MAX_HEADER_BYTES, MOST_PARTS
from tartlet_gateway.runs.models import FRESH_S
from tests.gateway.conftest import Gateway

MANY = 200
ANSWERED_S = 5.0
"""How soon a request behind many abandoned ones is answered."""
FOREVER = "from inferlet import send, receive\nasync def main(args):\n    {say}\n    await receive()\n"


async def running(client: tartlet.AsyncClient) -> int:
    return len(await client.list())


async def until_running(client: tartlet.AsyncClient, count: int) -> None:
    while await running(client) != count:  # noqa: ASYNC110 - another process ends them
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_run(gateway: Gateway, *, stream: bool) -> None:
    name = f"waits-{stream}"
    source = tartlet.Source.python(FOREVER.format(say="send('so far')" if stream else "pass"))
    async with asyncio.timeout(30), tartlet.AsyncClient(gateway.server.address) as client:
        await client.put([tartlet.CatalogueEntry(name, source)])
        async with httpx.AsyncClient(base_url=gateway.url) as http:
            model = (await http.get("/v1/models")).json()["data"][0]["id"]
            body = {"model": f"{model}/{name}", "messages": [{"role": "user", "content": "Hi"}], "stream": stream}
            requests = [asyncio.ensure_future(http.post("/v1/chat/completions", json=body)) for _ in range(20)]
            await until_running(client, 20)
            for request in requests:
                request.cancel()
            await asyncio.gather(*requests, return_exceptions=True)
        await until_running(client, 0)
    with gateway.client() as http_after:
        assert http_after.get("/v1/models").status_code == 200


@pytest.mark.timeout(240)
async def test_two_hundred_clients_that_time_out_are_cancelled_and_the_next_one_is_answered(gateway: Gateway) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True, "max_tokens": 900}
    async with asyncio.timeout(200), tartlet.AsyncClient(gateway.server.address) as client:
        await until_running(client, 0)
        limits = httpx.Limits(max_connections=MANY)
        async with httpx.AsyncClient(base_url=gateway.url, timeout=0.5, limits=limits) as http:
            asked = (http.post("/v1/chat/completions", json=body | {"stream": i % 2 == 1}) for i in range(MANY))
            answers = await asyncio.gather(*asked, return_exceptions=True)
        gave_up = sum(isinstance(answer, httpx.TimeoutException) for answer in answers)
        assert gave_up > MANY // 2, [type(answer).__name__ for answer in answers]
        began_s = time.monotonic()
        async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
            reply = await http.post("/v1/chat/completions", json=body | {"max_tokens": 2})
        assert reply.status_code == 200, reply.text
        assert time.monotonic() - began_s < ANSWERED_S
        await until_running(client, 0)


def raw(gateway: Gateway, data: bytes, timeout_s: float) -> bytes:
    """What the server answers to bytes, until it closes the connection."""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=timeout_s) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(1 << 16):
                answer += part
        return answer


def test_headers_that_never_end_are_given_up(gateway: Gateway) -> None:
    began_s = time.monotonic()
    answer = raw(gateway, b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n", timeout_s=HEADERS_S + 10)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - began_s >= HEADERS_S - 1


@pytest.mark.parametrize("size", [MAX_HEADER_BYTES + 1, 4 * MAX_HEADER_BYTES])
@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
def test_headers_without_bound_are_refused(gateway: Gateway, size: int, end: bytes) -> None:
    flood = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: " + b"a" * size + end
    assert raw(gateway, flood, timeout_s=10).startswith(b"HTTP/1.1 431 ")


CHUNKED = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
)


def test_a_body_in_too_many_chunks_is_refused(gateway: Gateway) -> None:
    answer = raw(gateway, CHUNKED + b"1\r\n \r\n" * (MOST_PARTS + 1), timeout_s=60)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    assert json.loads(body)["error"]["code"] == "too_many_parts"


def test_a_body_in_many_chunks_is_read(gateway: Gateway) -> None:
    text = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}).encode()
    parts = [b" "] * (MOST_PARTS - 1 - len(text)) + [text[at : at + 1] for at in range(len(text))]
    answer = raw(gateway, CHUNKED + b"".join(b"1\r\n%s\r\n" % part for part in parts) + b"0\r\n\r\n", timeout_s=60)
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_bytes_that_are_no_http_are_refused(gateway: Gateway) -> None:
    assert raw(gateway, b"\x16\x03\x01\x02\x00\x01\x00" * 10, timeout_s=10).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("line", [b"GET /\xff HTTP/1.1\r\n", b"GET /v1/live HTTP/1.1\r\n\xff: x\r\n"])
def test_a_handshake_that_is_no_ascii_is_refused(gateway: Gateway, line: bytes) -> None:
    handshake = b"host: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
    key = b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    assert raw(gateway, line + handshake + key, timeout_s=10).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("pause_s", [0.0, 0.2])
@pytest.mark.parametrize("offer", [b"h2c", b"TLS/1.0, x"])
def test_an_offer_of_another_protocol_loses_no_body(gateway: Gateway, offer: bytes, pause_s: float) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade, HTTP2-Settings\r\n"
        b"upgrade: " + offer + b"\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\ncontent-length: %d\r\n\r\n" % len(body)
    )
    last = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=30) as connection:
        connection.sendall(head if pause_s else head + body)
        time.sleep(pause_s)
        connection.sendall(body if pause_s else b"")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 200
        assert json.loads(answer.read())["usage"]["completion_tokens"] == 2
        connection.sendall(last)  # the connection goes on in HTTP/1.1
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


async def test_a_client_that_sends_ahead_and_leaves_ends_its_run(gateway: Gateway) -> None:
    source = tartlet.Source.python(FOREVER.format(say="pass"))
    async with asyncio.timeout(30), tartlet.AsyncClient(gateway.server.address) as client:
        await client.put([tartlet.CatalogueEntry("waits-ahead", source)])
        async with httpx.AsyncClient(base_url=gateway.url) as http:
            model = (await http.get("/v1/models")).json()["data"][0]["id"]
        body = json.dumps({"model": f"{model}/waits-ahead", "messages": [{"role": "user", "content": "Hi"}]}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        request = head + b"content-length: %d\r\n\r\n" % len(body) + body
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(request * 3)
        await until_running(client, 1)
        writer.close()
        await until_running(client, 0)


async def test_a_runtime_that_does_not_answer_is_told_in_time(gateway: Gateway) -> None:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
        os.kill(gateway.server.pid("runtime"), signal.SIGSTOP)
        try:
            await asyncio.sleep(FRESH_S)
            assert (await http.get("/health")).status_code == 503
            assert (await http.get("/v1/models")).status_code == 503
        finally:
            os.kill(gateway.server.pid("runtime"), signal.SIGCONT)
        async with asyncio.timeout(10):  # control has given its connection up by then, and the runtime dials again
            while (await http.get("/health")).status_code != 200:
                pass


async def test_a_restarted_runtime_costs_an_error_that_can_be_retried(gateway: Gateway) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    async with asyncio.timeout(60), httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
        gateway.server.kill("runtime")
        statuses: list[int] = []
        while not statuses or statuses[-1] != 200:
            reply = await http.post("/v1/chat/completions", json=body)
            statuses.append(reply.status_code)
            if reply.status_code != 200:
                assert reply.status_code == 503, reply.text
                assert float(reply.headers["retry-after"]) > 0
                assert json.loads(reply.text)["error"]["code"]
                await asyncio.sleep(0.1)
        assert (await http.get("/health")).status_code == 200


def test_serve_alone_says_that_it_serves_and_no_role_says_so_sooner(gateway: Gateway) -> None:
    said = [line for line in gateway.server.text().splitlines() if "serving at" in line]
    assert [line.startswith(f"serving at {gateway.server.address} ") for line in said] == [True], said


async def test_health_tells_that_no_engine_is_left(gateway: Gateway) -> None:
    async with asyncio.timeout(60), httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
        seen: set[int] = set()
        while 503 not in seen:  # on a slow machine the next worker may be there before anybody has looked
            with contextlib.suppress(ProcessLookupError):  # it is down
                gateway.server.kill("worker")
            for _ in range(25):
                seen.add((await http.get("/health")).status_code)
                await asyncio.sleep(0.02)
        while (await http.get("/health")).status_code != 200:  # noqa: ASYNC110 - another process tells
            await asyncio.sleep(0.02)


async def test_requests_that_outlast_the_gateways_stop_end_with_an_error(gateway: Gateway) -> None:
    source = tartlet.Source.python(FOREVER.format(say="send('so far')"))
    async with asyncio.timeout(60), tartlet.AsyncClient(gateway.server.address) as client:
        await client.put([tartlet.CatalogueEntry("waits-on", source)])
        async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
            model = (await http.get("/v1/models")).json()["data"][0]["id"]
            body = {"model": f"{model}/waits-on", "messages": [{"role": "user", "content": "Hi"}]}
            requests = [
                asyncio.ensure_future(http.post("/v1/chat/completions", json=body | {"stream": stream}))
                for stream in (True, False)
            ]
            await until_running(client, 2)
            await asyncio.sleep(0.2)  # the stream's first event goes out
            os.kill(gateway.server.pid("gateway"), signal.SIGTERM)
            streamed, whole = await asyncio.gather(*requests)
        await until_running(client, 0)
    assert streamed.status_code == 200
    *chunks, last, done = streamed.text.strip().split("\n\n")
    assert done == "data: [DONE]"
    assert "so far" in "".join(chunks)
    assert whole.status_code == 503
    for error in (json.loads(last.removeprefix("data: ")), whole.json()):
        assert (error["error"]["type"], error["error"]["code"]) == ("service_unavailable_error", "stopping")
    async with asyncio.timeout(30), httpx.AsyncClient(base_url=gateway.url) as http:
        while True:  # another process starts the gateway again
            with contextlib.suppress(httpx.TransportError):
                if (await http.get("/health")).status_code == 200:
                    break
            await asyncio.sleep(0.05)


async def test_models_and_health_are_told_without_asking_control(gateway: Gateway) -> None:
    """Control steps programs on; its whole state takes it as long as several steps do."""
    async with asyncio.timeout(60), httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
        while (await http.get("/health")).status_code != 200:  # noqa: ASYNC110 - another test's processes come back
            await asyncio.sleep(0.05)
        os.kill(gateway.server.pid("control"), signal.SIGSTOP)
        try:
            await asyncio.sleep(FRESH_S + 0.1)  # what the gateway knew is too old to be told again
            began_s = time.monotonic()
            assert (await http.get("/health")).status_code == 200
            assert time.monotonic() - began_s < 1.0
        finally:
            os.kill(gateway.server.pid("control"), signal.SIGCONT)
        models = (await http.get("/v1/models")).json()["data"]
        assert models[0]["max_model_len"] > 0
