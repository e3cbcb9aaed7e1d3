"""Sends one hop of a request with the host's own HTTP client, to an address that was checked."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from tartlet_common.capabilities import Grant, check_http
from tartlet_common.egress.addresses import Exceptions
from tartlet_common.egress.connecting import AddressRefused, checked_socket
from tartlet_common.egress.hosts import Origin
from tartlet_common.errors.registry import NotAllowed, RequestFailed, TartletError
from tartlet_runtime.budget.turns import Turns
from tartlet_runtime.web.asked import Asked
from tartlet_runtime.web.secrets import Secrets

READ_AHEAD_BYTES: Final = 64 << 10
"""What is read of a body before the program asks; the client holds up to twice as much."""
CONNECTIONS: Final = 512
OF_A_TENANT: Final = 128
"""Connections of one tenant; its further requests wait."""
_CONNECT_S: Final = 30.0
_OWN: Final = {"User-Agent": f"tartlet/{version('tartlet')}", "Accept": "*/*", "Accept-Encoding": "identity"}
_PRIVATE: Final = "Use a public address, or name the host in http_private_hosts, a setting of the runtime."


class May(NamedTuple):
    """What a program may do."""

    tenant: str
    grants: Sequence[Grant]  # of its launch and its entry in the catalogue
    ceiling: Grant  # of its tenant


class Sender:
    """The host's HTTP client.

    Each connection is used for one request. Its address is checked where its socket is made, so a name that means
    something else a moment later changes nothing. Proxies and cookies of the environment aren't used.
    """

    def __init__(
        self,
        exceptions: Exceptions,
        proxy: str = "",
        authority: Path | None = None,
        secrets: Secrets | None = None,
        resolver: AbstractResolver | None = None,
    ) -> None:
        """Open no connection yet.

        Args:
            exceptions: addresses and hosts that may be reached although they aren't public.
            proxy: URL of a proxy, which then chooses the addresses; "" for none.
            authority: PEM file of CAs that are trusted beside the system's.
            secrets: the host's; None: there are none.
            resolver: resolves names; None: as the system does.
        """
        self._exceptions = exceptions
        self._proxy = proxy
        self._authority = authority
        self._secrets = secrets or Secrets()
        self._resolver = resolver
        self._sessions: dict[bool, aiohttp.ClientSession] = {}  # by whether addresses are checked
        self._tls: ssl.SSLContext | None = None
        self._turns = Turns(OF_A_TENANT)

    @contextlib.asynccontextmanager
    async def send(self, asked: Asked, may: May) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one hop; the reply's body is read within the block, and the connection is closed at its end.

        Raises:
            NotAllowed: a grant, or the address, forbids the request, or a secret isn't bound to the host.
            InvalidArgument, Unavailable: a secret has no such name, or no value.
            RequestFailed: there is no reply.
        """
        origin = asked.url.origin
        check_http((*may.grants, may.ceiling), origin)
        own = self._secrets.headers(asked, may.tenant, may.grants)
        with translated(asked):
            async with (
                self._turns.turn(may.tenant),
                self._session(origin).request(
                    asked.method,
                    URL(str(asked.url), encoded=True),
                    headers=[*_with_own(asked.headers), *own],
                    data=BytesIO(asked.body) if asked.body else None,
                    allow_redirects=False,
                    proxy=self._proxy or None,
                    ssl=self._context() if origin.scheme == "https" else True,
                ) as reply,
            ):
                yield reply

    async def close(self) -> None:
        """Close all connections."""
        for session in self._sessions.values():
            await session.close()

    def _session(self, origin: Origin) -> aiohttp.ClientSession:
        """Return the session for a host.

        Raises:
            NotAllowed: the host is an address that may not be reached.
        """
        is_open = self._exceptions.open(origin.host, origin.port)
        if not is_open:
            with contextlib.suppress(ValueError):  # a name is checked when it has an address
                if not self._exceptions.allow(ipaddress.ip_address(origin.host)):
                    raise private(origin)
        checked = not (is_open or self._proxy)
        if checked not in self._sessions:
            connector = aiohttp.TCPConnector(
                limit=CONNECTIONS,
                force_close=True,
                use_dns_cache=False,
                resolver=self._resolver,
                socket_factory=partial(checked_socket, self._exceptions) if checked else None,
            )
            self._sessions[checked] = aiohttp.ClientSession(
                connector=connector,
                auto_decompress=False,  # what is sent is what counts, and nothing unfolds without bound
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
                read_bufsize=READ_AHEAD_BYTES,
                skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
                trust_env=False,
            )
        return self._sessions[checked]

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
            if self._authority is not None:
                self._tls.load_verify_locations(self._authority)
        return self._tls


def private(origin: Origin) -> NotAllowed:
    """Return the error of a host whose address is no public one. The text doesn't say which address it has."""
    return NotAllowed(what=f"HTTP requests to {origin}, whose address is private or reserved", remedy=_PRIVATE)


@contextlib.contextmanager
def translated(asked: Asked) -> Iterator[None]:
    """Turn the client's errors into ours, whose texts name the origin and nothing that the program didn't say.

    Raises:
        NotAllowed, RequestFailed: as `Sender.send`.
    """
    try:
        yield
    except TartletError:
        raise
    except aiohttp.ClientConnectorError as e:
        if isinstance(e.os_error, AddressRefused):
            raise private(asked.url.origin) from e
        raise failed(asked, _why_unconnected(e)) from e
    except aiohttp.ServerDisconnectedError as e:
        raise failed(asked, "the server closed the connection without a reply") from e
    except aiohttp.ClientPayloadError as e:
        raise failed(asked, "the connection broke before the body was over") from e
    except aiohttp.ServerTimeoutError as e:
        raise failed(asked, f"no connection within {_CONNECT_S:g} s") from e
    except aiohttp.ClientHttpProxyError as e:
        raise failed(asked, f"the proxy answered {e.status}") from e
    except (aiohttp.ClientResponseError, aiohttp.http.HttpProcessingError, ValueError) as e:
        raise failed(asked, "the reply is no HTTP that can be read") from e
    except (aiohttp.ClientError, OSError) as e:
        if isinstance(e, asyncio.TimeoutError):
            raise
        raise failed(asked, "the connection broke") from e


def failed(asked: Asked, detail: str) -> RequestFailed:
    """Return the error of a request. It shows no path and no query, which may hold what is nobody's business."""
    return RequestFailed(method=asked.method, url=str(asked.url.origin), detail=detail)


def _why_unconnected(error: aiohttp.ClientConnectorError) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "no address is known for this host"
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
        return "the server's certificate isn't trusted, or isn't the host's"
    number = error.os_error.errno
    return f"no connection: {os.strerror(number)}" if number else "no connection"


def _with_own(headers: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    named = {name.lower() for name, _ in headers}
    return [*headers, *((name, value) for name, value in _OWN.items() if name.lower() not in named)]
