"""Replies that the protocol writes itself, before an application has the request, and that close the connection."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec


class Refusal(NamedTuple):
    """A reply.

    Attributes:
        status: The status and its reason, such as `408 Request Timeout`.
        code: A word for programs, as in errors of the OpenAI API; "" for a reply without a body.
        told: What to do, a sentence.
        retry: Whether the client may send the request again in a second.
    """

    status: bytes
    code: str = ""
    told: str = ""
    retry: bool = False

    def to_bytes(self) -> bytes:
        r"""Return the reply as it is written.

        Example:
            >>> Refusal(b"408 Request Timeout").to_bytes()
            b'HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n'
        """
        body = b""
        head = b"HTTP/1.1 " + self.status + b"\r\nconnection: close\r\n"
        if self.code:
            kind = "service_unavailable_error" if self.retry else "invalid_request_error"
            error = {"message": self.told, "type": kind, "param": None, "code": self.code}
            body = msgspec.json.encode({"error": error})
            head += b"content-type: application/json\r\n"
        if self.retry:
            head += b"retry-after: 1\r\n"
        return head + b"content-length: %d\r\n\r\n" % len(body) + body


LATE: Final = Refusal(b"408 Request Timeout")
LONG_HEADERS: Final = Refusal(b"431 Request Header Fields Too Large")
UNREADABLE: Final = Refusal(b"400 Bad Request")
