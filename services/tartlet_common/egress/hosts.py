"""URLs that programs ask for, read strictly, and the patterns of hosts that they may ask. Pure.

Programs and libraries read URLs in different ways, and an attack lives from the difference. So a URL is taken apart
once, here. What isn't plain is refused, and the request goes to the URL that is put together from the parts.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import quote, urljoin, urlsplit

from tartlet_common.errors.registry import InvalidArgument

MAX_URL_CHARS: Final = 8192
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_MOST_PORT: Final = 0xFFFF
_MAX_HOST_CHARS: Final = 253
_UNSAFE: Final = re.compile(r"[\x00-\x20\x7f\\]")
_NAME: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PRINTABLE: Final = "!#$%&'()*+,/:;=?@[]~-._"
_PATTERN: Final = re.compile(r"(?:(?P<scheme>https?)://)?(?P<host>\[[^\]]+\]|[^:/]+)(?::(?P<port>[0-9]{1,5}|\*))?")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request goes to."""

    scheme: str  # http or https
    host: str  # a name in lower case without a final dot, or an address in its usual form without brackets
    port: int

    def __str__(self) -> str:
        """Return it as a URL without a path; a port that is the scheme's own is left out."""
        port = "" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{bracketed(self.host)}{port}"


@dataclass(frozen=True, slots=True)
class Url:
    """A URL that a request may name."""

    origin: Origin
    target: str  # path and query

    def __str__(self) -> str:
        """Return the URL in the one form that is sent."""
        return f"{self.origin}{self.target}"

    @classmethod
    def of(cls, text: str) -> Self:
        """Read a URL.

        Raises:
            InvalidArgument: it isn't a plain URL of http or https.

        Example:
            >>> str(Url.of("HTTPS://Example.ORG.:443/a?q=1#part"))
            'https://example.org/a?q=1'
        """
        if len(text) > MAX_URL_CHARS:
            raise _refusal(f"longer than {MAX_URL_CHARS} characters")
        if _UNSAFE.search(text):
            raise _refusal("spaces, control characters and backslashes are escaped as %20 and the like")
        try:
            text.encode()  # a lone surrogate is no text
            parts = urlsplit(text)
            port = parts.port
        except ValueError as e:
            raise _refusal(str(e)) from e
        if parts.scheme not in DEFAULT_PORTS:
            raise _refusal("http:// or https:// is wanted")
        if "@" in parts.netloc:
            raise _refusal("a user and a password don't go into a URL: use a header, or a secret")
        host = canonical_host(parts.hostname or "", is_bracketed="[" in parts.netloc)
        if port == 0:
            raise _refusal("port 0")
        target = quote(parts.path or "/", safe=_PRINTABLE)
        if parts.query:
            target += "?" + quote(parts.query, safe=_PRINTABLE)
        return cls(Origin(parts.scheme, host, port or DEFAULT_PORTS[parts.scheme]), target)

    def redirected(self, location: str) -> Url:
        """Return where a reply's `Location` leads to.

        Raises:
            InvalidArgument: it isn't a plain URL of http or https.
        """
        if len(location) > MAX_URL_CHARS or _UNSAFE.search(location):
            raise _refusal("spaces, control characters and backslashes are escaped as %20 and the like")
        try:
            return Url.of(urljoin(str(self), location))
        except ValueError as e:  # such as http://[x
            raise _refusal(str(e)) from e


def canonical_host(host: str, *, is_bracketed: bool = False) -> str:
    """Return a host in the one form in which it is compared, resolved and sent.

    Raises:
        InvalidArgument: it is neither a name in ASCII nor an address in its usual form.

    Example:
        >>> canonical_host("Example.org."), canonical_host("0:0::1", is_bracketed=True)
        ('example.org', '::1')
    """
    if is_bracketed:
        try:
            return str(ipaddress.IPv6Address(host if "%" not in host else ""))
        except ValueError as e:
            raise _refusal(f"[{host}] is no IPv6 address") from e
    name = host.lower().removesuffix(".")
    if not name.isascii():
        raise _refusal(f"{host}: give a name with other letters in its ASCII form, xn--...")
    if len(name) > _MAX_HOST_CHARS or not _NAME.fullmatch(name):
        raise _refusal(f"{host!r} is no host")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):  # so everything would read it as an address, each in its own way
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError as e:
            raise _refusal(f"{host} is no address: four decimal numbers are wanted") from e
    return name


def bracketed(host: str) -> str:
    """Return a host as URLs write it."""
    return f"[{host}]" if ":" in host else host


@dataclass(frozen=True, slots=True)
class HostPattern:
    """Hosts that requests may go to: `[scheme://]host[:port]`, with `*.` before a name for all names below it."""

    scheme: str  # "": both
    host: str  # "*": all hosts; "*.example.org": all names below example.org
    port: int  # 0: all ports

    @classmethod
    def of(cls, text: str) -> Self:
        """Read a pattern.

        Raises:
            InvalidArgument: it is none.

        Example:
            >>> HostPattern.of("https://*.Example.org:8443")
            HostPattern(scheme='https', host='*.example.org', port=8443)
        """
        found = _PATTERN.fullmatch(text.strip())
        if found is None:
            raise InvalidArgument(argument="http", detail=f"{text!r}: [scheme://]host[:port] is wanted, without a path")
        host, port = found["host"], found["port"]
        if host != "*":
            below, name = ("*.", host[2:]) if host.startswith("*.") else ("", host)
            host = below + canonical_host(name.strip("[]"), is_bracketed=name.startswith("["))
        number = 0 if port in (None, "*") else int(port)
        if number > _MOST_PORT:
            raise InvalidArgument(argument="http", detail=f"{text!r}: there is no port {number}")
        return cls(found["scheme"] or "", host, number)

    def allows(self, origin: Origin) -> bool:
        """Return whether a request may go there.

        Example:
            >>> pattern = HostPattern.of("*.example.org")
            >>> [pattern.allows(Url.of(f"https://{host}").origin) for host in ("a.example.org", "example.org")]
            [True, False]
        """
        if self.scheme not in ("", origin.scheme) or self.port not in (0, origin.port):
            return False
        if self.host.startswith("*"):
            return origin.host.endswith(self.host[1:])
        return origin.host == self.host


def own_addresses(patterns: Iterable[str]) -> list[str]:
    """Return those of the patterns that name this machine or an address, without their schemes.

    Raises:
        InvalidArgument: one is no pattern.

    Example:
        >>> own_addresses(["https://api.example.org", "http://127.0.0.1:80", "localhost", "[::1]:8080", "*"])
        ['127.0.0.1:80', 'localhost', '[::1]:8080']
    """
    named = []
    for pattern in map(HostPattern.of, patterns):
        host = pattern.host
        if host == "localhost" or ":" in host or host.rpartition(".")[2].isdecimal():
            named.append(bracketed(host) + (f":{pattern.port}" if pattern.port else ""))
    return named


def _refusal(detail: str) -> InvalidArgument:
    return InvalidArgument(argument="url", detail=detail)
