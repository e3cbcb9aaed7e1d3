"""JSON over HTTP from an issuer or an API server: bounded in time and size, with the proxy of nobody's environment."""

from __future__ import annotations

import ipaddress
import socket
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


def is_local(url: str) -> bool:
    """Return whether an address names this machine, in whatever form.

    Raises:
        ValueError: it is no address.

    Example:
        >>> is_local("https://127.1/keys"), is_local("https://[::ffff:127.0.0.1]"), is_local("https://issuer.example")
        (True, True, False)
    """
    host = (urlsplit(url).hostname or "").rstrip(".")
    if host in LOOPBACK or host.endswith(".localhost"):
        return True
    try:
        found: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        try:
            found = ipaddress.ip_address(host)
        except ValueError:
            return False
    found = getattr(found, "ipv4_mapped", None) or found
    return found.is_loopback or found.is_unspecified


def check_address(url: str, setting: str, *, local: bool = True) -> None:
    """Refuse an address that others could read or change; without `local` also one of this machine.

    Raises:
        InvalidConfig: it is neither https nor, with `local`, one of this machine.
    """
    try:
        host, scheme, here = urlsplit(url).hostname, urlsplit(url).scheme, is_local(url)
    except ValueError as e:
        raise InvalidConfig(role="gateway", detail=f"{setting}: {url} is no address") from e
    if here and not local:
        raise InvalidConfig(role="gateway", detail=f"{setting}: {url} is on this machine, and its issuer isn't")
    if scheme != "https" and host not in LOOPBACK:
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
