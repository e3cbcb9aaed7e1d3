"""Downloads for users: no URL leads to an address that is private, reserved or a cloud's metadata."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
from collections.abc import AsyncIterator, Callable
from ipaddress import ip_address
from typing import Any

import aiohttp
import pytest
from pydantic import ValidationError

from tartlet_common.config.lists import listed
from tartlet_common.config.settings import OperatorSettings
from tartlet_common.egress.addresses import Exceptions, public
from tartlet_common.errors.registry import InvalidConfig
from tartlet_operator.api.inferlet import Source, UrlSource
from tartlet_operator.api.reasons import Reason
from tartlet_operator.machinery.sources import SourceFetcher, SourceProblem, StillFetching

BODY = b"pass"
DIGEST = f"sha256:{hashlib.sha256(BODY).hexdigest()}"
FOUND = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\n" + BODY

LOOPBACK = [
    # every notation by which the servers of these tests are reached
    "127.0.0.1",
    "127.0.0.2",
    "0.0.0.0",
    "localhost",
    "LOCALHOST",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
]
ODD = ["127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "0", "2852039166"]
"""Notations that some libraries read as addresses; the HTTP client refuses most of them itself."""
ELSEWHERE = [
    "10.0.0.1",
    "10.96.0.1",
    "172.16.0.1",
    "172.31.255.254",
    "192.168.1.1",
    "169.254.169.254",
    "169.254.170.2",
    "100.100.100.200",
    "100.64.0.1",
    "168.63.129.16",
    "192.0.0.192",
    "198.18.0.1",
    "203.0.113.5",
    "224.0.0.251",
    "239.255.255.250",
    "255.255.255.255",
    "240.0.0.1",
    "[fe80::1]",
    "[fd00:ec2::254]",
    "[fd20:ce::254]",
    "[fc00::1]",
    "[ff02::1]",
    "[::ffff:169.254.169.254]",
    "[::ffff:0a00:0001]",
    "[64:ff9b::a9fe:a9fe]",
    "[64:ff9b::10.0.0.1]",
    "[64:ff9b:1::1]",
    "[2002:a00:1::1]",
    "[2001:0:53aa:64c::1]",
    "[2001:db8::1]",
    "[::10.0.0.1]",
    "[100::1]",
    "[fec0::1]",
]


class Listener:
    """A server on all of this machine's addresses, which counts connections."""

    def __init__(
        self, reply: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\n" + BODY
    ) -> None:
        self.reply, self.connections, self.port = reply, 0, 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self.reply)
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def listening(*reply: bytes) -> AsyncIterator[Listener]:
    listener = Listener(*reply)
    both = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    listener.port = both.getsockname()[1]
    async with await asyncio.start_server(listener.answer, sock=both):
        yield listener


async def fetch(url: str, private_hosts: str = "") -> bytes | SourceProblem:
    """Fetch as an Inferlet does, with every host allowed; return the file or the problem."""
    fetcher = SourceFetcher(None, "*", private_hosts)  # type: ignore[arg-type]
    try:
        while True:
            try:
                return await fetcher.fetch(Source(url=UrlSource(url=url, digest=DIGEST)), "ns")
            except StillFetching as still:
                await still.coming
    except SourceProblem as problem:
        return problem
    finally:
        await fetcher.close()


async def test_no_url_reaches_an_address_that_is_not_public() -> None:
    async with listening() as server, asyncio.timeout(60):
        for host in LOOPBACK + ODD + ELSEWHERE:
            got = await fetch(f"http://{host}:{server.port}/a.py")
            assert isinstance(got, SourceProblem), host
            if host not in ODD:
                assert (got.reason, got.retry) == (Reason.ADDRESS_NOT_ALLOWED, False), (host, got.message)
        assert server.connections == 0


@pytest.mark.parametrize(
    ("host", "named"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.0/8"),
        ("0.0.0.0", "0.0.0.0/32"),
        ("localhost", "localhost"),
        ("localhost", "127.0.0.1, ::1"),
        ("[::1]", "::1/128"),
        ("[::ffff:127.0.0.1]", "127.0.0.0/8"),
        ("LOCALHOST", "git.example.org,local*"),
    ],
)
async def test_an_administrator_opens_a_host_or_a_network_and_no_other(host: str, named: str) -> None:
    async with listening() as server:
        assert await fetch(f"http://{host}:{server.port}/a.py", named) == BODY
        port = await fetch(f"http://localhost:{server.port}/a.py", "localhost:1")
        assert isinstance(port, SourceProblem)
        assert await fetch(f"http://localhost:{server.port}/a.py", f"localhost:{server.port}") == BODY
        other = await fetch(f"http://127.9.9.9:{server.port}/a.py", "10.0.0.0/8, git.example.org")
        assert isinstance(other, SourceProblem)
        assert (other.reason, server.connections) == (Reason.ADDRESS_NOT_ALLOWED, 2)


async def test_the_address_that_was_checked_is_the_one_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that changes its answer gets no second question, and a private answer no connection."""
    asked: list[str] = []

    def resolving(address: str) -> Callable[..., Any]:
        async def resolve(_: object, host: str, port: int = 0, family: int = 0) -> list[dict[str, Any]]:
            asked.append(host)
            at = address if len(asked) == 1 else "127.0.0.1"
            flags = {"proto": 0, "flags": 0}
            return [{"hostname": host, "host": at, "port": port, "family": socket.AF_INET, **flags}]

        return resolve

    async with listening() as server:
        url = f"http://rebinds.example.org:{server.port}/a.py"
        monkeypatch.setattr(aiohttp.resolver.ThreadedResolver, "resolve", resolving("127.0.0.1"))
        got = await fetch(url)
        assert isinstance(got, SourceProblem)
        assert (got.reason, asked, server.connections) == (Reason.ADDRESS_NOT_ALLOWED, ["rebinds.example.org"], 0)
        asked.clear()
        monkeypatch.setattr(aiohttp.resolver.ThreadedResolver, "resolve", resolving("127.0.0.3"))
        assert await fetch(url, "127.0.0.3") == BODY
        assert (asked, server.connections) == (["rebinds.example.org"], 1)


async def test_neither_a_redirect_nor_a_proxy_of_the_environment_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as hidden:
        for variable in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(variable, f"http://127.0.0.1:{hidden.port}")
        to = f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{hidden.port}/\r\nContent-Length: 0\r\n\r\n"
        async with listening(to.encode()) as server:
            got = await fetch(f"http://127.0.0.1:{server.port}/a.py", "127.0.0.1")
            assert isinstance(got, SourceProblem)
            assert (got.reason, server.connections, hidden.connections) == (Reason.FETCH_FAILED, 1, 0)


def test_public_addresses_stay_reachable() -> None:
    for text in ("8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "223.255.255.254"):
        assert public(ip_address(text)), text
        assert Exceptions().allow(ip_address(text)), text


@pytest.mark.parametrize("entry", ["10.0.0.0/33", "300.1.1.1", "10.1", "10.1.2.3.4:80", "git.example.org/24"])
def test_what_can_be_neither_host_nor_network_is_refused(entry: str) -> None:
    with pytest.raises(InvalidConfig, match="source_private_hosts"):
        Exceptions.of([entry])


def test_a_url_is_no_setting_and_a_star_is_every_host() -> None:
    for text in ("https://git.example.org", "git.example.org/path", "a b", "user@host", "-/-"):
        with pytest.raises(ValidationError):
            OperatorSettings(source_private_hosts=text)
    for text in ("*", "git.example.org, *.example.org:8443,10.1.0.0/16", "[fd00::]/8", "10.1.2.3", "svc-?.local", ""):
        assert OperatorSettings(source_private_hosts=text).source_private_hosts == text
        Exceptions.of(listed(text))
    assert Exceptions.of(["*"]).open("git.example.org", 443)


async def test_downloads_share_one_bounded_set_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """No download opens a session of its own, whose connections nobody counts."""
    made: list[aiohttp.TCPConnector] = []
    real = aiohttp.TCPConnector.__init__

    def counted(self: aiohttp.TCPConnector, **options: Any) -> None:
        made.append(self)
        real(self, **options)

    monkeypatch.setattr(aiohttp.TCPConnector, "__init__", counted)
    async with listening() as server:
        fetcher = SourceFetcher(None, "*", "127.0.0.0/8")  # type: ignore[arg-type]
        for n in range(1, 6):
            url = UrlSource(url=f"http://127.0.0.{n}:{server.port}/a.py", digest="sha256:" + f"{n}" * 64)
            with pytest.raises(StillFetching) as still:
                await fetcher.fetch(Source(url=url), "ns")
            await still.value.coming
        assert (server.connections, len(made), made[0].limit) == (5, 1, 32)
        await fetcher.close()
        assert made[0].closed
