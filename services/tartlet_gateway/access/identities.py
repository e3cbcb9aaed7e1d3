"""Finds out who a caller is: by API keys, then by the tokens of others, whose checks are remembered for a while."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from tartlet_common.api_keys import TenantLimits
from tartlet_gateway.access.identity import MOST_CHARS, Authenticator, Identity, UnauthorizedError
from tartlet_gateway.access.keys import Keys
from tartlet_gateway.openai.errors import ApiError

FRESH_S: Final = 60.0
"""How long a token that was checked is taken without another check. One that was withdrawn is valid for as long."""
GRACE_S: Final = 300.0
"""How long after its last check a stream goes on with a token that can't be checked now."""
REFUSED_S: Final = 10.0
"""How long a token that was refused is refused without another check."""
AWAY_S: Final = 1.0
"""How long a token that couldn't be checked isn't checked again."""
MOST_TOKENS: Final = 8192
"""Valid tokens that are remembered, and as many that were refused. Those that were used last are kept."""
MOST_CHECKS: Final = 16
"""New tokens that are checked at once, and as many that were valid before."""
MOST_WAITING: Final = 64
"""New tokens that wait for their check, and as many that were valid before."""


class _Checked(NamedTuple):
    """The outcome of a check, when it was known, and until when it holds."""

    outcome: Identity | ApiError
    at_s: float
    until_s: float


class _Queue:
    """Checks: some run at once, some wait, and more are refused. Callers with one token share its check."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(MOST_CHECKS)
        self._tasks: dict[bytes, asyncio.Task[_Checked]] = {}

    async def check(self, digest: bytes, check: Callable[[], Awaitable[_Checked]]) -> _Checked:
        """Return the outcome of a token's check.

        Raises:
            ApiError: 503, too many wait.
        """
        task = self._tasks.get(digest)
        if task is None:
            if len(self._tasks) >= MOST_CHECKS + MOST_WAITING:
                told = "Too many tokens wait for their check: send the request again."
                raise ApiError(503, told, code="too_many_checks")
            task = self._tasks[digest] = asyncio.ensure_future(self._run(check))
            task.add_done_callback(lambda done: self._end(digest, done))
        return await asyncio.shield(task)

    async def _run(self, check: Callable[[], Awaitable[_Checked]]) -> _Checked:
        async with self._slots:
            return await check()

    def _end(self, digest: bytes, done: asyncio.Task[_Checked]) -> None:
        del self._tasks[digest]
        if not done.cancelled():
            done.exception()  # whoever waits has it

    async def close(self) -> None:
        """End all checks."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Identities:
    """Everybody whom a gateway lets in.

    Args:
        keys: the API keys; None: there are none.
        authenticators: those who check tokens; the first that takes a token checks it.
        clock: seconds that never jump back.
        wall: Unix seconds.
    """

    def __init__(
        self,
        keys: Keys | None,
        authenticators: Sequence[Authenticator] = (),
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._authenticators = authenticators
        self._clock = clock
        self._wall = wall
        self._valid: OrderedDict[bytes, _Checked] = OrderedDict()  # by digest, those used last behind
        self._refused: OrderedDict[bytes, _Checked] = OrderedDict()
        self._new, self._known = _Queue(), _Queue()

    def limits(self, tenant: str) -> TenantLimits:
        """Return the limits that the file of keys gives a tenant."""
        return TenantLimits() if self._keys is None else self._keys.limits(tenant)

    async def identify(self, text: str) -> Identity:
        """Return whose credential this is.

        Raises:
            ApiError: 401, 403 or 503; nobody is let in.
        """
        key = None if self._keys is None else self._keys.find(text)
        if key is not None:
            return Identity(key.tenant, key_id=key.id)
        by = None
        if 0 < len(text) <= MOST_CHARS:
            by = next((each for each in self._authenticators if each.takes(text)), None)
        if by is None:
            raise self._unknown()
        digest = _digest(text)
        checked = self._remembered(digest)
        if checked is None:  # a flood of new tokens keeps none that was valid before from its check
            queue = self._known if digest in self._valid else self._new
            checked = await queue.check(digest, partial(self._check, by, text, digest))
        if isinstance(checked.outcome, ApiError):
            raise checked.outcome
        return checked.outcome

    async def still_valid(self, text: str) -> bool:
        """Tell whether a credential that was valid still is: not once it has expired.

        One that can't be checked now counts as valid for `GRACE_S` after its last check.
        """
        digest = _digest(text)
        known = self._valid.get(digest)
        if known is not None and self._is_over(known):
            return False
        try:
            await self.identify(text)
        except ApiError as e:
            known = self._valid.get(digest)
            return e.status >= 500 and known is not None and self._clock() - known.at_s < GRACE_S
        return True

    async def close(self) -> None:
        """Close all connections."""
        await self._new.close()
        await self._known.close()
        for each in self._authenticators:
            await each.close()

    def _remembered(self, digest: bytes) -> _Checked | None:
        for table in (self._refused, self._valid):
            found = table.get(digest)
            if found is not None and found.until_s > self._clock() and not self._is_over(found):
                table.move_to_end(digest)
                return found
        return None

    def _is_over(self, checked: _Checked) -> bool:
        """Return whether a token has expired."""
        outcome = checked.outcome
        return isinstance(outcome, Identity) and outcome.expires_s is not None and outcome.expires_s <= self._wall()

    async def _check(self, by: Authenticator, text: str, digest: bytes) -> _Checked:
        outcome: Identity | ApiError
        try:
            outcome, holds_s = await by.identify(text), FRESH_S
        except ApiError as e:
            outcome, holds_s = e, AWAY_S if e.status >= 500 else REFUSED_S
        now_s = self._clock()
        checked = _Checked(outcome, now_s, now_s + holds_s)
        if isinstance(outcome, Identity):
            self._refused.pop(digest, None)
            _put(self._valid, digest, checked)
        else:
            if outcome.status < 500:
                self._valid.pop(digest, None)
            _put(self._refused, digest, checked)
        return checked

    def _unknown(self) -> ApiError:
        if not self._authenticators:
            told = "No valid API key came: send one as `Authorization: Bearer KEY`; `tartlet keys create` makes keys."
        else:
            told = "No valid credential came: send an API key, or a token of an issuer that this server trusts, as "
            told += "`Authorization: Bearer TOKEN`."
        return UnauthorizedError(told, "invalid_api_key")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="replace")).digest()


def _put(table: OrderedDict[bytes, _Checked], digest: bytes, checked: _Checked) -> None:
    table[digest] = checked
    table.move_to_end(digest)
    if len(table) > MOST_TOKENS:
        table.popitem(last=False)
