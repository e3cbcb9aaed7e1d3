"""Replies to HTTP requests, with their headers and their whole bodies."""

from __future__ import annotations

import codecs
import json as json_texts
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from inferlet._generated.error_registry import RequestFailed

_ERRORS_FROM = 400


class HttpHeaders(Mapping[str, str]):
    """Headers of a reply. Names count without case; several values of one name are joined by ", ".

    Example:
        >>> async def main():
        ...     headers = HttpHeaders([("content-type", "text/html"), ("set-cookie", "a"), ("set-cookie", "b")])
        ...     print(headers["Content-Type"], headers.get_all("set-cookie"))
        text/html ['a', 'b']
    """

    __slots__ = ("pairs",)

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.pairs = [(name.lower(), value) for name, value in pairs]
        """All headers, in their order; names are in lower case."""

    def get_all(self, name: str) -> list[str]:
        """Return all values of a header."""
        return [value for known, value in self.pairs if known == name.lower()]

    def __getitem__(self, name: str) -> str:
        values = self.get_all(name)
        if not values:
            raise KeyError(name)
        return ", ".join(values)

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self.pairs))

    def __len__(self) -> int:
        return len(dict(self.pairs))

    def __repr__(self) -> str:
        return f"HttpHeaders({self.pairs!r})"


class HttpReply:
    """A reply, with its whole body.

    Example:
        >>> async def main():
        ...     reply = HttpReply("GET", 200, "https://example.org/", HttpHeaders([]), b'{"n": 1}')
        ...     print(reply.ok, reply.json()["n"])
        True 1
    """

    __slots__ = ("body", "headers", "method", "status", "url")

    def __init__(self, method: str, status: int, url: str, headers: HttpHeaders, body: bytes) -> None:
        self.method = method
        self.status = status
        self.url = url
        """Where the reply came from, behind all redirects."""
        self.headers = headers
        self.body = body

    @property
    def ok(self) -> bool:
        """Whether the status is below 400."""
        return self.status < _ERRORS_FROM

    def text(self) -> str:
        """Return the body as text, in the charset that its Content-Type names, or else UTF-8."""
        return self.body.decode(charset(self.headers), errors="replace")

    def json(self) -> Any:
        """Return the value that the body holds as JSON.

        Raises:
            ValueError: it holds none.
        """
        return json_texts.loads(self.body)

    def check(self) -> Self:
        """Return the reply itself.

        Raises:
            RequestFailed: its status is 400 or more.
        """
        if not self.ok:
            raise RequestFailed(method=self.method, url=self.url, detail=f"the server answered {self.status}")
        return self

    def __repr__(self) -> str:
        return f"<HttpReply {self.status} {self.url}, {len(self.body)} bytes>"


def charset(headers: HttpHeaders) -> str:
    """Return the name of the charset in which a body is written: what its Content-Type says, or else UTF-8."""
    for part in headers.get("content-type", "").split(";")[1:]:
        name, _, value = part.partition("=")
        if name.strip().lower() == "charset":
            try:
                return codecs.lookup(value.strip(" \"'")).name
            except LookupError:
                break
    return "utf-8"
