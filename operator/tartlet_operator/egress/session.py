"""The one bounded set of connections over which users' files are downloaded."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

import aiohttp
from yarl import URL

from tartlet_common.egress.addresses import Exceptions
from tartlet_common.egress.connecting import checked_socket

CONNECTIONS: Final = 32
"""Most connections that are open at once, of each session."""
_TIMEOUT: Final = aiohttp.ClientTimeout(total=30)


class Egress:
    """Makes requests to hosts that users name, over connections to allowed addresses alone.

    The check lies where a connection's socket is made. So the address that was checked is the one that is connected to,
    whatever a name means a moment later. It also covers addresses in URLs, in any notation. Proxies of the environment
    aren't used: a proxy would choose the address. Redirects aren't followed.
    """

    def __init__(self, exceptions: Exceptions) -> None:
        self._exceptions = exceptions
        self._sessions: dict[bool, aiohttp.ClientSession] = {}  # by whether addresses are checked

    @contextlib.asynccontextmanager
    async def get(self, url: str) -> AsyncIterator[aiohttp.ClientResponse]:
        """Ask for a URL; the connection is closed at the end.

        Raises:
            aiohttp.ClientError, TimeoutError, ValueError: there is no reply. Where no connection may be made, that is a
                `ClientConnectorError` whose `os_error` is an `AddressRefused`.
        """
        async with self._session(url).get(url, allow_redirects=False) as reply:
            yield reply

    async def close(self) -> None:
        """Close all connections."""
        for session in self._sessions.values():
            await session.close()

    def _session(self, url: str) -> aiohttp.ClientSession:
        at = URL(url)
        checked = not self._exceptions.open(at.raw_host or "", at.port or 0)
        if checked not in self._sessions:
            connector = aiohttp.TCPConnector(
                limit=CONNECTIONS,
                force_close=True,
                use_dns_cache=False,
                socket_factory=partial(checked_socket, self._exceptions) if checked else None,
            )
            self._sessions[checked] = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), timeout=_TIMEOUT, trust_env=False
            )
        return self._sessions[checked]
