"""Errors of HTTP requests that the runtime makes for programs. Code imports them from `registry`."""

from __future__ import annotations

from tartlet_common.errors.base import TartletError
from tartlet_common.errors.base import register as _register

__all__ = ["BodyTooLarge", "Interrupted", "RequestFailed"]


@_register(217)
class RequestFailed(TartletError):
    message = "{method} {url}: {detail}"
    remedy = "Check the address, and what the server and the network policy allow, or repeat the request."


@_register(316)
class BodyTooLarge(TartletError):
    message = "the body of {url} has more than the {limit} bytes that a journal keeps of one"
    remedy = "Ask for less, read less, or launch the program without a journal (--no-journal)."


@_register(416, retryable=True)
class Interrupted(TartletError):
    message = "{method} {url} was under way when the program's runtime was lost, and {why}"
    remedy = "Find out what the server has done, and ask again. A header Idempotency-Key lets the request be repeated."
