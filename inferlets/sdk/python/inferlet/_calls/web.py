"""HTTP requests, made by the host with its own network, proxy and certificates (`http_get`, `http_post` in the paper).

A program has no sockets. It may ask hosts that its launch, its entry in the catalogue and the runtime's settings name.
"""

from __future__ import annotations

import asyncio
import codecs
import json as json_texts
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Self

from inferlet._calls import program
from inferlet._generated import packers
from inferlet._values import refusals
from inferlet._values.http_reply import HttpHeaders, HttpReply, charset
from inferlet._wire.channel import channel

_WHOLE_BYTES = 1 << 20  # most of one answer
_CHUNK_BYTES = 64 << 10
Headers = Mapping[str, str] | Iterable[tuple[str, str]]


class HttpStream:
    """A reply whose body comes piece by piece; `http_stream` makes it. The host reads no faster than the program.

    Iterating over it gives bytes, as they come. `lines` gives lines of text.

    Example:
        >>> async def main():
        ...     try:
        ...         async with http_stream("GET", "https://example.org/") as reply:
        ...             print(reply.status, await reply.read(1000))
        ...     except errors.NotAllowed:
        ...         print("it may not")
        it may not
    """

    __slots__ = ("_first", "_is_over", "_number", "headers", "method", "status", "url")

    def __init__(self, method: str, number: int, head: Mapping[str, Any], first: bytes, *, is_over: bool) -> None:
        self.method = method
        self.status: int = head["status"]
        self.url: str = head["url"]
        self.headers = HttpHeaders(head["headers"])
        self._number = number
        self._first = first
        self._is_over = is_over

    async def read(self, most: int = _CHUNK_BYTES) -> bytes:
        """Return the next bytes of the body, at most `most` and 1 MiB; b"" at its end.

        A read that is cancelled ends the request.

        Raises:
            RequestFailed: the connection broke, or nothing came within the request's `timeout_s`.
            Interrupted: the runtime was lost in the middle of the body.
            BodyTooLarge: the program's journal keeps no more of one body (8 MiB).
        """
        return await self._read(most, whole=False)

    async def _read(self, most: int, *, whole: bool) -> bytes:
        if self._first:
            first, self._first = self._first[:most], self._first[most:]
            return first
        while not self._is_over:
            data, is_over = await self._ask(min(most, _WHOLE_BYTES), whole=whole)
            self._is_over = is_over
            if data:
                return data
        return b""

    async def _ask(self, most: int, *, whole: bool) -> tuple[bytes, bool]:
        try:
            _, is_over, data = await channel.call(_answer, *packers.http_read(self._number, most, whole))
        except (Exception, asyncio.CancelledError):
            self.close()
            raise
        return data, is_over

    def close(self) -> None:
        """End the request; the host closes its connection."""
        if not self._is_over:
            self._is_over = True
            channel.record(*packers.http_close(self._number))

    async def lines(self) -> AsyncIterator[str]:
        """Yield the body's lines as text, without their ends, as they come; server-sent events are such lines."""
        decoder = codecs.getincrementaldecoder(charset(self.headers))(errors="replace")
        begun = ""
        while data := await self.read():
            *whole, begun = (begun + decoder.decode(data)).split("\n")
            for line in whole:
                yield line.removesuffix("\r")
        begun += decoder.decode(b"", final=True)
        if begun:
            yield begun

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self.read():
            yield data

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class _Opening:
    """What `http_stream` returns: `async with` sends the request and gives its reply."""

    __slots__ = ("_asked", "_stream")

    def __init__(self, asked: _Asked) -> None:
        self._asked = asked
        self._stream: HttpStream | None = None

    async def __aenter__(self) -> HttpStream:
        self._stream = await self._asked.send(0)
        return self._stream

    async def __aexit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()


class _Asked:
    """A request, packed."""

    __slots__ = ("_body", "_head", "_method")

    def __init__(  # noqa: PLR0913 - as of the calls
        self,
        call: str,
        method: object,
        url: object,
        *,
        headers: Headers,
        secrets: Headers,
        body: str | bytes | None,
        json: Any,
        timeout_s: float,
        redirects: int,
    ) -> None:
        if not isinstance(method, str) or not isinstance(url, str):
            name, value = ("url", url) if isinstance(method, str) else ("method", method)
            raise refusals.refusal(call, name, f"{type(value).__name__} is no text")
        pairs, hidden = _pairs(call, "headers", headers), _pairs(call, "secrets", secrets)
        self._method = method.upper()
        self._body = _packed_body(call, body, json)
        if json is not None and not any(name.lower() == "content-type" for name, _ in pairs):
            pairs.append(("Content-Type", "application/json"))
        head: dict[str, Any] = {
            "method": self._method,
            "url": url,
            "headers": pairs,
            "timeout_s": timeout_s,
            "redirects": redirects,
        }
        if hidden:
            head["secrets"] = hidden
        try:
            self._head = refusals.utf8(call, "url", json_texts.dumps(head, ensure_ascii=False))
        except (TypeError, ValueError) as e:
            raise refusals.refusal(call, "timeout_s, redirects", f"they are numbers: {e}") from None

    async def send(self, wanted: int) -> HttpStream:
        """Send the request; its answer holds the head and the first `wanted` bytes of the body."""
        program.state.requests += 1
        number = program.state.requests
        future = channel.call(_answer, *packers.http_request(number, wanted, self._head, self._body))
        try:
            size, is_over, payload = await future
        except asyncio.CancelledError:
            channel.record(*packers.http_close(number))
            raise
        head = json_texts.loads(payload[:size])
        return HttpStream(self._method, number, head, payload[size:], is_over=is_over)


def http_stream(
    method: str,
    url: str,
    *,
    headers: Headers = (),
    secrets: Headers = (),
    body: str | bytes | None = None,
    json: Any = None,
    timeout_s: float = 30.0,
    redirects: int = 10,
) -> _Opening:
    """Send a request, and read the body of its reply as it comes, in an `async with` block.

    Args:
        method: GET, HEAD, OPTIONS, PUT, DELETE, POST or PATCH.
        url: http:// or https://, with a host that the program may ask.
        headers: a mapping, or pairs. The host sets Host, Content-Length and the like itself.
        secrets: further headers, whose values name secrets of the host, as in `{"Authorization": "Bearer {openai}"}`.
            The host fills them in. The program and its journal never see them.
        body: text (sent as UTF-8) or bytes; not with `json`.
        json: a value that is sent as JSON.
        timeout_s: seconds until the reply begins, and for each read of its body; at most 600.
        redirects: how many are followed at most; 0: a reply that redirects is the answer.

    Raises:
        InvalidArgument: an argument is none of these.
        NotAllowed: the program may not ask this host, or its address is private.
        RequestFailed: there was no reply.
        Interrupted: the runtime was lost, and the request isn't one that may be sent twice.

    Example:
        >>> async def main():
        ...     try:
        ...         async with http_stream("GET", "https://example.org/events") as reply:
        ...             async for line in reply.lines():
        ...                 print(line)
        ...     except errors.NotAllowed:
        ...         print("launch it with --allow-http example.org")
        launch it with --allow-http example.org
    """
    asked = _Asked(
        "http_stream",
        method,
        url,
        headers=headers,
        secrets=secrets,
        body=body,
        json=json,
        timeout_s=timeout_s,
        redirects=redirects,
    )
    return _Opening(asked)


async def http_request(
    method: str,
    url: str,
    *,
    headers: Headers = (),
    secrets: Headers = (),
    body: str | bytes | None = None,
    json: Any = None,
    timeout_s: float = 30.0,
    redirects: int = 10,
) -> HttpReply:
    """Send a request and wait for its whole reply. Many requests run at once, as tasks.

    Arguments and errors are those of `http_stream`. `timeout_s` holds for each MiB of the body.

    Raises:
        BodyTooLarge: the reply has more than 8 MiB, and the program keeps a journal.
        InvalidArgument, NotAllowed, RequestFailed, Interrupted: as of `http_stream`.

    Example:
        >>> async def main():
        ...     try:
        ...         reply = await http_request("PUT", "https://example.org/a", json={"n": 1})
        ...     except errors.NotAllowed as e:
        ...         print(e)
        an inferlet may not use HTTP requests to https://example.org
    """
    asked = _Asked(
        "http_request",
        method,
        url,
        headers=headers,
        secrets=secrets,
        body=body,
        json=json,
        timeout_s=timeout_s,
        redirects=redirects,
    )
    async with await asked.send(_WHOLE_BYTES) as stream:
        parts = []
        while data := await stream._read(_WHOLE_BYTES, whole=True):  # noqa: SLF001 - of this module
            parts.append(data)
        return HttpReply(stream.method, stream.status, stream.url, stream.headers, b"".join(parts))


async def http_get(url: str, **options: Any) -> HttpReply:
    """Send a GET and wait for its whole reply. Options are those of `http_request` (paper, section 4).

    Example:
        >>> async def main():
        ...     try:
        ...         print((await http_get("http://10.0.0.1/")).text())
        ...     except errors.NotAllowed as e:
        ...         print(e)
        an inferlet may not use HTTP requests to http://10.0.0.1
    """
    return await http_request("GET", url, **options)


async def http_post(url: str, body: str | bytes | None = None, **options: Any) -> HttpReply:
    """Send a POST and wait for its whole reply. Options are those of `http_request` (paper, section 4).

    A POST is sent once. If its runtime is lost meanwhile, the call raises `Interrupted`, unless a header
    Idempotency-Key says that the server recognises a repetition.

    Example:
        >>> async def main():
        ...     try:
        ...         await http_post("https://example.org/tools", json={"city": "Paris"})
        ...     except errors.NotAllowed:
        ...         print("it may not")
        it may not
    """
    return await http_request("POST", url, body=body, **options)


def _pairs(call: str, argument: str, headers: Headers) -> list[tuple[str, str]]:
    try:
        pairs = [(name, value) for name, value in (headers.items() if isinstance(headers, Mapping) else headers)]
    except (TypeError, ValueError):
        raise refusals.refusal(call, argument, "a mapping, or pairs of texts are wanted") from None
    for pair in pairs:
        if not all(isinstance(text, str) for text in pair):
            raise refusals.refusal(call, argument, f"{pair!r} is no pair of texts")
    return pairs


def _packed_body(call: str, body: str | bytes | None, json: Any) -> bytes:
    if json is not None:
        if body is not None:
            raise refusals.refusal(call, "body", "json is given, too: give one of them")
        try:
            return json_texts.dumps(json).encode()
        except (TypeError, ValueError, RecursionError) as e:
            raise refusals.refusal(call, "json", f"no JSON can be made of it: {e}") from None
    if body is None:
        return b""
    if isinstance(body, str):
        return refusals.utf8(call, "body", body)
    try:
        return bytes(memoryview(body))
    except TypeError:
        raise refusals.refusal(call, "body", f"{type(body).__name__} is neither text nor bytes") from None


def _answer(a: int, b: int, _c: int, payload: bytes) -> tuple[int, bool, bytes]:
    """Return the bytes of JSON, whether the body is over, and the payload."""
    return a, b != 0, payload
