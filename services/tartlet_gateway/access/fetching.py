"""JSON over HTTP from an issuer or an API server: bounded in time and size, with the proxy of nobody's environment."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import msgspec

from tartlet_common.errors.registry import InvalidConfig
from tartlet_gateway.http.guard import LOOPBACK

ANSWER_S: Final = 5.0
"""How long an answer may take."""
MOST_BYTES: Final = 1 << 20
"""The longest answer that is read."""


class AwayError(Exception):
    """There is no usable answer; the text says why, without any credential."""


def check_address(url: str, setting: str) -> None:
    """Refuse an address that others could read or change.

    Raises:
        InvalidConfig: it is neither https nor one of this machine.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in LOOPBACK:
        raise InvalidConfig(role="gateway", detail=f"{setting}: {url} isn't https")


class Fetcher:
    """Connections to one server.

    Args:
        authority: PEM certificates that are trusted.
        system: whether those of the system are trusted too.
    """

    def __init__(self, authority: Path | None = None, *, system: bool = True) -> None:
        self._authority = authority
        self._system = system
        self._session: aiohttp.ClientSession | None = None

    async def json(self, method: str, url: str, **options: Any) -> Any:
        """Return the JSON of a reply.

        Raises:
            AwayError: there is none, or its status is 400 or more.
        """
        try:
            if self._session is None:
                connector = aiohttp.TCPConnector(ssl=self._context(), limit=16)
                timeout = aiohttp.ClientTimeout(total=ANSWER_S)
                self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False)
            async with self._session.request(method, url, allow_redirects=False, **options) as reply:
                body = await reply.content.read(MOST_BYTES + 1)
                while len(body) <= MOST_BYTES and (more := await reply.content.read(MOST_BYTES)):
                    body += more
                if not 200 <= reply.status < 300:
                    raise AwayError(f"{method} {url} was answered with status {reply.status}")
        except (aiohttp.ClientError, OSError, TimeoutError) as e:
            raise AwayError(f"{method} {url}: {type(e).__name__}: {e}") from e
        if len(body) > MOST_BYTES:
            raise AwayError(f"{method} {url} was answered with more than {MOST_BYTES} bytes")
        try:
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError) as e:
            raise AwayError(f"{method} {url} was answered with no JSON") from e

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context() if self._system else ssl.create_default_context(cafile=self._authority)
        if self._system and self._authority is not None:
            context.load_verify_locations(self._authority)
        return context

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
