"""The audit log: who did what and when. A prompt, an answer or a credential is never written."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from starlette.types import Scope

from tartlet_gateway.http.traced import trace_of
from tartlet_gateway.runs.caller import Caller

WINDOW_S: Final = 60.0
"""The time for which refused requests of one address are counted together."""
SHOWN: Final = 10
"""Refused requests of one address and status that have a line of their own in that time."""
MOST_ADDRESSES: Final = 1024
"""Addresses, each with a status, that are counted apart. Those of further addresses count together."""
audit = logging.getLogger("tartlet.audit")

Later = Callable[[float, Callable[[], None]], Any]
"""Calls a function after some seconds."""


def note(scope: Scope, caller: Caller, status: int, took_s: float) -> None:
    """Write the line of a request that was let in."""
    _write(_entry(scope, caller, status, took_s))


class RefusedRequests:
    """Writes the lines of requests that aren't let in: a few for each address and status, and then their number.

    Anybody can send such requests, so the number of lines has a bound, whatever their number.

    Args:
        later: calls a function after some seconds; None: the running loop does.
    """

    def __init__(self, later: Later | None = None) -> None:
        self._later = later
        self._counts: dict[tuple[str, int], int] = {}

    def note(self, scope: Scope, status: int) -> None:
        """Write the line of a refused request, or count the request for the line at the end of `WINDOW_S`."""
        entry = _entry(scope, Caller(), status, 0.0)
        key = (entry["client"], status)
        if key not in self._counts and len(self._counts) >= MOST_ADDRESSES:
            key = ("", status)
        if key not in self._counts:
            self._counts[key] = 0
            (self._later or asyncio.get_running_loop().call_later)(WINDOW_S, partial(self._end, key))
        self._counts[key] += 1
        if self._counts[key] <= SHOWN:
            _write(entry | {"refused": 1})

    def _end(self, key: tuple[str, int]) -> None:
        more = self._counts.pop(key, 0) - SHOWN
        if more > 0:
            client, status = key
            nothing: Scope = {"client": (client, 0), "method": "", "path": ""}
            _write(_entry(nothing, Caller(), status, 0.0) | {"refused": more})

    def close(self) -> None:
        """Write the numbers that were counted so far."""
        for key in list(self._counts):
            self._end(key)


def _entry(scope: Scope, caller: Caller, status: int, took_s: float) -> dict[str, Any]:
    return {
        "tenant": caller.tenant,
        "key": caller.key_id,
        "subject": caller.subject,
        "client": (scope.get("client") or ("",))[0],
        "method": scope["method"],
        "path": scope["path"][:200],
        "model": caller.model[:200],
        "program": caller.program_id,
        "status": status,
        "tokens": caller.tokens,
        "took_ms": round(took_s * 1e3),
        "trace": trace_of(scope),
    }


def _write(entry: dict[str, Any]) -> None:
    audit.info("%s", json.dumps(entry))
