"""Whom a request is served for, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import tartlet
from tartlet_gateway.runs.events import Counted

_KEY: Final = "tartlet.caller"


def _nothing(_key: str) -> None:
    """No-op: without keys there are no bounds."""


def _uncounted() -> Callable[[int], None]:
    """Return a no-op: without keys nothing is counted."""
    return lambda _tokens: None


class Place(NamedTuple):
    """A launched program's place among what its tenant may have at once.

    Attributes:
        release: Is to be called once, at the program's end.
        refusals: Returns how often the tenant was refused so far because all its places were taken.
    """

    release: Callable[[], None]
    refusals: Callable[[], int]


def _unbounded(_key: str) -> Place | None:
    """Return None: without keys there are no bounds."""
    return None


def _unwatched(_program_id: str) -> None:
    """No-op: the program was not launched here."""


@dataclass(slots=True)
class Caller:
    """The caller of one request; its endpoint notes what the request did.

    Attributes:
        tenant: For whom programs run; None: no key is asked for, and the caller acts for all tenants.
        key_id: Which key the request brought.
        subject: Whom the token names that the request brought.
        model: What the request ran, as its `model` names it.
        program_id: The run.
        tokens: The run's tokens, those of the prompt and those generated, once its end was seen or
            its reader left.
        admit: Counts a launch over a WebSocket, with its idempotency key, against the tenant's bounds, as a request
            that lasts as long as the connection. Raises an error with status 429 if there may be none now.
        claim: Is told the idempotency key of a launch before it begins. Raises an error with status 429 if the tenant
            may have none now, unless the key names a program that counts already.
        outlive: Lets the run of this request count against the tenant's bounds beyond the request. Returns what is to
            be called with the run's tokens at its end.
        hold: Lets the program that this request launches with an idempotency key count against `concurrency` until its
            end, and the request no longer. Returns the program's place; None: there is no such bound. Tokens count as
            without it.
        ended: Is told the id of a program whose end this request has seen.
    """

    tenant: str | None = None
    key_id: str = ""
    subject: str = ""
    model: str = ""
    program_id: str = ""
    tokens: int = 0
    admit: Callable[[str], None] = _nothing
    claim: Callable[[str], None] = _nothing
    outlive: Callable[[], Callable[[int], None]] = _uncounted
    hold: Callable[[str], Place | None] = _unbounded
    ended: Callable[[str], None] = _unwatched

    def saw(self, run: tartlet.Run, usage: Counted) -> None:
        """Note the tokens of a run that this request read, by its end or, if the client left before, by its reply."""
        self.tokens = usage.prompt_tokens + usage.completion_tokens
        if run.ended is not None:
            told = run.ended.usage
            self.tokens = max(self.tokens, told.input_tokens + told.sampled_tokens)

    def saw_end(self, ended: tartlet.Ended) -> None:
        """Note the tokens of the run that this request launched or followed to its end."""
        self.tokens = ended.usage.input_tokens + ended.usage.sampled_tokens
        self.ended(self.program_id)


def caller_of(scope: Any) -> Caller:
    """Return the caller of an ASGI request; without the check of keys, one that acts for all."""
    caller: Caller = scope.setdefault(_KEY, Caller())
    return caller


def set_caller(scope: Any, caller: Caller) -> None:
    """Note the caller of an ASGI request."""
    scope[_KEY] = caller
