"""What a program asks for with HTTP_REQUEST, checked, and where redirects lead to. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any, Final

from tartlet_common.egress.hosts import Url
from tartlet_common.errors.registry import InvalidArgument, RequestFailed

MAX_HEAD_BYTES: Final = 128 << 10
MAX_HEADERS: Final = 64
MAX_HEADER_BYTES: Final = 32 << 10
MAX_TIMEOUT_S: Final = 600.0
MAX_REDIRECTS: Final = 20
_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "POST", "PATCH"})
_IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_HOSTS_OWN: Final = frozenset(
    {"connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)
"""Headers that say how bytes travel, which is the host's business."""
_ONE_ORIGINS: Final = frozenset({"authorization", "cookie"})
"""Headers that are meant for one server, and aren't sent to where that one redirects."""
_BODYS_OWN: Final = frozenset({"content-type", "content-encoding", "content-language", "content-location"})
_SEE_OTHER: Final = frozenset({301, 302, 303})
_REDIRECTS: Final = _SEE_OTHER | {307, 308}
_FIELDS: Final = frozenset({"method", "url", "headers", "secrets", "timeout_s", "redirects"})


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, or one hop of it."""

    method: str
    url: Url
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    timeout_s: float = 30.0
    redirects: int = 10  # how many may be followed; 0: a reply that redirects is the answer
    followed: int = 0
    secrets: tuple[tuple[str, str], ...] = ()  # headers whose values name secrets: the host fills them in

    @property
    def repeats(self) -> bool:
        """Whether the request may be sent a second time, when nobody knows if the first one arrived."""
        return self.method in _IDEMPOTENT or any(name.lower() == "idempotency-key" for name, _ in self.headers)

    @classmethod
    def of(cls, head: bytes, body: bytes) -> Asked:
        """Read the JSON of a request.

        Raises:
            InvalidArgument: it isn't as docs/abi.md says.
        """
        if len(head) > MAX_HEAD_BYTES:
            raise _refusal("request", f"{len(head)} bytes of URL and headers, the limit is {MAX_HEAD_BYTES}")
        try:
            told = json.loads(head)
        except (ValueError, RecursionError) as e:
            raise _refusal("request", f"not JSON: {e}") from e
        if not isinstance(told, dict) or not told.keys() <= _FIELDS:
            raise _refusal("request", f"an object with some of {', '.join(sorted(_FIELDS))} is wanted")
        method, url = told.get("method"), told.get("url")
        if not isinstance(method, str) or method not in _METHODS:
            raise _refusal("method", f"one of {', '.join(sorted(_METHODS))} is wanted")
        if not isinstance(url, str):
            raise _refusal("url", "a text is wanted")
        if body and method in {"GET", "HEAD", "OPTIONS"}:
            raise _refusal("body", f"{method} has none")
        headers, secrets = read_headers(told.get("headers", [])), read_headers(told.get("secrets", []))
        if {name.lower() for name, _ in headers} & {name.lower() for name, _ in secrets}:
            raise _refusal("secrets", "a header is given, too")
        timeout_s = _number("timeout_s", told.get("timeout_s", 30.0), MAX_TIMEOUT_S)
        redirects = _number("redirects", told.get("redirects", 10), MAX_REDIRECTS)
        if timeout_s <= 0 or redirects != int(redirects):
            raise _refusal("timeout_s" if timeout_s <= 0 else "redirects", "it is no such number")
        return cls(method, Url.of(url), headers, body, float(timeout_s), int(redirects), secrets=secrets)

    def after(self, status: int, location: str | None) -> Asked | None:
        """Return the next hop of a reply that redirects, or None if the reply is the answer.

        As browsers do, 301, 302 and 303 turn a POST into a GET. Headers for one server stay with its origin.

        Raises:
            RequestFailed: it redirects too often, or to what isn't a URL.
        """
        if status not in _REDIRECTS or not location or not self.redirects:
            return None
        if self.followed == self.redirects:
            raise RequestFailed(method=self.method, url=str(self.url.origin), detail="it redirects too often")
        try:
            url = self.url.redirected(location)
        except InvalidArgument as e:
            detail = f"it redirects to what is no URL for a request: {e.fields['detail']}"
            raise RequestFailed(method=self.method, url=str(self.url.origin), detail=detail) from e
        method, headers, body = self.method, self.headers, self.body
        if (status in _SEE_OTHER and method == "POST") or (status == 303 and method not in {"GET", "HEAD"}):
            method, body = "GET", b""
            headers = tuple(pair for pair in headers if pair[0].lower() not in _BODYS_OWN)
        secrets, followed = self.secrets, self.followed + 1
        if url.origin != self.url.origin:
            headers = tuple(pair for pair in headers if pair[0].lower() not in _ONE_ORIGINS)
            secrets = ()
        return replace(self, method=method, url=url, headers=headers, body=body, followed=followed, secrets=secrets)


def read_headers(told: Any) -> tuple[tuple[str, str], ...]:
    """Check a list of pairs of texts.

    Raises:
        InvalidArgument: it is none, or a header is the host's own.
    """
    if not isinstance(told, list) or len(told) > MAX_HEADERS:
        raise _refusal("headers", f"at most {MAX_HEADERS} pairs of texts are wanted")
    headers: list[tuple[str, str]] = []
    for pair in told:
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise _refusal("headers", "each is a pair of texts")
        name, value = pair
        if not _TOKEN.fullmatch(name):
            raise _refusal("headers", f"{name[:64]!r} is no name of a header")
        if name.lower() in _HOSTS_OWN or name.lower().startswith("proxy-"):
            raise _refusal("headers", f"the host sets {name} itself")
        if not _VALUE.fullmatch(value):
            raise _refusal("headers", f"the value of {name} has characters that no header has, such as line ends")
        headers.append((name, value))
    if sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
        raise _refusal("headers", f"more than {MAX_HEADER_BYTES} bytes")
    return tuple(headers)


def _number(argument: str, value: Any, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise _refusal(argument, f"a number up to {most:g} is wanted")
    return value


def _refusal(argument: str, detail: str) -> InvalidArgument:
    return InvalidArgument(argument=argument, detail=detail)
