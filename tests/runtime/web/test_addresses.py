"""Addresses, names and redirects that a program must not reach, although its host patterns allow every host."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from tartlet_common.capabilities import Grant
from tartlet_common.egress.addresses import Exceptions
from tartlet_common.egress.hosts import Url
from tartlet_common.errors.registry import InvalidArgument, NotAllowed, RequestFailed, TartletError
from tartlet_runtime.budget.ledger import Ledger
from tartlet_runtime.web.asked import Asked
from tartlet_runtime.web.exchange import Exchange
from tartlet_runtime.web.sending import May, Sender
from tests.runtime.web.servers import Server, serving


def may(host: str) -> May:
    """What a program may do that may ask some hosts."""
    return May("", [Grant("a test", (host,))], Grant("a test", (host,)))


ALL = may("*")
PRIVATE = [
    "127.0.0.1",
    "127.0.0.2",
    "127.255.255.254",
    "0.0.0.0",
    "10.0.0.1",
    "10.96.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "169.254.170.2",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "224.0.0.251",
    "255.255.255.255",
    "[::]",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[fe80::1]",
    "[fd00:ec2::254]",
    "[ff02::1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::ffff:169.254.169.254]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b::a9fe:a9fe]",
    "[2002:7f00:1::]",
    "[::127.0.0.1]",
]
"""Addresses in their usual forms."""
NAMES = ["localhost", "LOCALHOST", "localhost.", "metadata.google.internal", "kubernetes.default.svc", "a.rebinds.test"]
"""Names that stand for private addresses, here by a resolver of the test."""
ODD = [
    "127.1",
    "127.0.1",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "0177.0.0.1",
    "0",
    "127.0.0.1.",
    "2852039166",
    "127.0.0.1..",
    "\uff11\uff12\uff17.0.0.1",
    "127\u30020\u30020\u30021",
    "loc\u00e4lhost",
    "\u24db\u24de\u24d2alhost",
    "[fe80::1%25eth0]",
    "[::1%lo]",
    "[::ffff:0x7f.1]",
    "example.org@127.0.0.1",
    "user:password@127.0.0.1",
    "127.0.0.1\\@example.org",
    "example.org%40127.0.0.1",
    "example.org#@127.0.0.1",
    "127.0.0.1%00.example.org",
    "127.0.0.1\t",
    "127.0.0.1 .example.org",
    "-localhost",
    "local_host..",
]
"""What programs and libraries read in different ways."""
SCHEMES = ["file:///etc/passwd", "ftp://127.0.0.1/", "gopher://127.0.0.1/", "//127.0.0.1/", "127.0.0.1", "unix:/x", ""]


class Resolver(AbstractResolver):
    """Answers each name with an address, and every further question with another one."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append(host)
        at = self.addresses[min(len(self.asked), len(self.addresses)) - 1]
        kind = socket.AF_INET6 if ":" in at else socket.AF_INET
        return [ResolveResult(hostname=host, host=at, port=port, family=kind, proto=0, flags=0)]

    async def close(self) -> None: ...


@contextlib.asynccontextmanager
async def sender(exceptions: Exceptions, *addresses: str) -> AsyncIterator[tuple[Sender, Resolver]]:
    resolver = Resolver(*(addresses or ("127.0.0.1",)))
    made = Sender(exceptions, resolver=resolver)
    try:
        yield made, resolver
    finally:
        await made.close()


async def fetch(made: Sender, url: str, **fields: Any) -> dict[str, Any]:
    """Sends a GET; returns the head, with the body's text."""
    import json

    exchange = Exchange(Asked("GET", Url.of(url), **fields), Ledger(1 << 30))
    try:
        async with asyncio.timeout(10):
            head: dict[str, Any] = json.loads(await exchange.begin(made, ALL))
            head["body"] = (await exchange.read(1 << 20, whole=True))[0].decode()
            return head
    finally:
        await exchange.close()


async def refused(made: Sender, url: str) -> TartletError:
    with pytest.raises((NotAllowed, InvalidArgument, RequestFailed)) as caught:
        await fetch(made, url)
    return caught.value


def test_there_are_forty_and_more_of_them() -> None:
    assert len({*PRIVATE, *NAMES, *ODD, *SCHEMES}) >= 40


@pytest.mark.parametrize("host", [*PRIVATE, *NAMES, *ODD])
async def test_a_host_that_is_private_or_ambiguous_is_refused_without_a_connection(host: str) -> None:
    async with serving() as server, sender(Exceptions()) as (made, _):
        error = await refused(made, f"http://{host}:{server.port}/")
        assert isinstance(error, NotAllowed if host in (*PRIVATE, *NAMES) else InvalidArgument | NotAllowed), error
        assert server.connections == 0
        assert "127.0.0.1" not in error.text or "127.0.0.1" in host, "a name's address isn't told"


@pytest.mark.parametrize("url", SCHEMES)
def test_other_schemes_are_no_urls(url: str) -> None:
    with pytest.raises(InvalidArgument):
        Url.of(url)


@pytest.mark.parametrize("host", [*PRIVATE, *NAMES, *ODD])
@pytest.mark.parametrize("status", [301, 307])
async def test_a_redirect_to_it_is_not_followed(host: str, status: int) -> None:
    async with serving() as hidden, serving() as server:
        opened = Exceptions.of([f"127.0.0.1:{server.port}"])
        async with sender(opened) as (made, _):
            to = f"http://{host}:{hidden.port}/"
            if set(to) & set("\t\r\n") or not to.isascii():
                return  # no header of a reply can say it
            error = await refused(made, f"{server.url}/redirect{status}?{to}".replace(" ", "%20").replace("\\", "%5C"))
            assert isinstance(error, NotAllowed | RequestFailed), error
            assert hidden.connections == 0


async def test_a_redirect_is_checked_against_the_capability_too() -> None:
    async with serving() as other, serving() as server, sender(Exceptions.of(["127.0.0.1"])) as (made, _):
        exchange = Exchange(Asked("GET", Url.of(f"{server.url}/redirect?{other.url}/")), Ledger(1 << 30))
        with pytest.raises(NotAllowed):
            await exchange.begin(made, may(f"127.0.0.1:{server.port}"))
        await exchange.close()
        assert (server.connections, other.connections) == (1, 0)


async def test_the_address_that_was_checked_is_the_one_connected_to() -> None:
    """A name server that changes its answer is asked once; its first answer is what counts."""
    async with serving() as server:
        url = f"http://rebinds.test:{server.port}/"
        async with sender(Exceptions.of(["127.0.0.3"]), "127.0.0.3", "127.0.0.1") as (made, resolver):
            refused_ = await refused(made, url)  # nobody listens at 127.0.0.3
            assert isinstance(refused_, RequestFailed)
            assert (resolver.asked, server.connections) == (["rebinds.test"], 0)
        async with sender(Exceptions.of(["127.0.0.1"]), "127.0.0.1", "127.0.0.3") as (made, resolver):
            assert f"host: rebinds.test:{server.port}" in (await fetch(made, url))["body"]
            assert isinstance(await refused(made, url), NotAllowed | RequestFailed), "the next request asks again"
            assert server.connections == 1


async def test_what_an_administrator_names_is_reached_and_nothing_beside_it() -> None:
    async with serving() as server, serving() as other:
        async with sender(Exceptions.of([f"127.0.0.1:{server.port}"])) as (made, _):
            assert (await fetch(made, server.url))["status"] == 200
            assert isinstance(await refused(made, other.url), NotAllowed)
            assert isinstance(await refused(made, f"http://named.test:{server.port}/"), NotAllowed), "a name isn't it"
        async with sender(Exceptions.of(["named.test"])) as (made, _):
            assert (await fetch(made, f"http://named.test:{server.port}/"))["status"] == 200
            assert isinstance(await refused(made, server.url), NotAllowed)


async def test_neither_proxies_nor_credentials_of_the_environment_are_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with serving() as hidden, serving() as server:
        for variable in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(variable, hidden.url)
        async with sender(Exceptions.of(["127.0.0.1"])) as (made, _):
            assert "authorization" not in (await fetch(made, server.url))["body"]
        assert hidden.connections == 0


async def test_headers_for_one_server_stay_with_it() -> None:
    async with serving() as other, serving() as server, sender(Exceptions.of(["127.0.0.1"])) as (made, _):
        headers = (("Authorization", "Bearer x"), ("Cookie", "c"), ("X-Kept", "y"))
        same = await fetch(made, f"{server.url}/redirect?/there", headers=headers)
        assert "authorization: Bearer x" in same["body"]
        await fetch(made, f"{server.url}/redirect?{other.url}/there", headers=headers)
        assert {"authorization", "cookie"}.isdisjoint(other.heard[0].headers)
        assert other.heard[0].headers["x-kept"] == "y"


async def test_a_proxy_of_the_settings_gets_all_requests_but_none_to_a_private_address() -> None:
    async with serving() as proxy:
        made = Sender(Exceptions(), proxy=proxy.url)
        try:
            assert "GET http://example.org/a" in (await fetch(made, "http://example.org/a"))["body"]
            assert isinstance(await refused(made, "http://169.254.169.254/"), NotAllowed)
        finally:
            await made.close()
        assert isinstance(proxy, Server)
        assert proxy.connections == 1
