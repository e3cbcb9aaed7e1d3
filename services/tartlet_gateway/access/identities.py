"""Finds out who a caller is: by API keys, then by the tokens of others, whose checks are remembered for a while."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tartlet_common.api_keys import TenantLimits
from tartlet_gateway.access.identity import MOST_CHARS, Authenticator, Identity, UnauthorizedError
from tartlet_gateway.access.keys import Keys
from tartlet_gateway.openai.errors import ApiError

FRESH_S: Final = 60.0
"""How long a token that was checked is taken without another check. One that was withdrawn is valid for as long."""
REFUSED_S: Final = 10.0
"""How long a token that was refused is refused without another check."""
MOST_TOKENS: Final = 8192
"""Tokens that are remembered."""
MOST_CHECKS: Final = 16
"""Tokens that are checked at once."""


class _Checked(NamedTuple):
    """The outcome of a check, and until when it holds."""

    outcome: Identity | ApiError
    until_s: float


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
        self._checked: OrderedDict[bytes, _Checked] = OrderedDict()
        self._checking = asyncio.Semaphore(MOST_CHECKS)

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
        digest = hashlib.sha256(text.encode(errors="replace")).digest()
        checked = self._remembered(digest)
        if checked is None:
            async with self._checking:
                checked = self._remembered(digest) or await self._check(by, text, digest)
        if isinstance(checked.outcome, ApiError):
            raise checked.outcome
        return checked.outcome

    async def still_valid(self, text: str) -> bool:
        """Tell whether a credential that was valid still is. One that can't be checked now counts as valid."""
        try:
            await self.identify(text)
        except ApiError as e:
            return e.status >= 500
        return True

    async def close(self) -> None:
        """Close all connections."""
        for each in self._authenticators:
            await each.close()

    def _remembered(self, digest: bytes) -> _Checked | None:
        found = self._checked.get(digest)
        if found is None or found.until_s <= self._clock():
            return None
        outcome = found.outcome
        over = isinstance(outcome, Identity) and outcome.expires_s is not None and outcome.expires_s <= self._wall()
        return None if over else found

    async def _check(self, by: Authenticator, text: str, digest: bytes) -> _Checked:
        outcome: Identity | ApiError
        try:
            outcome, holds_s = await by.identify(text), FRESH_S
        except ApiError as e:
            outcome, holds_s = e, REFUSED_S
            if e.status >= 500:
                holds_s = 1.0
        checked = _Checked(outcome, self._clock() + holds_s)
        self._checked[digest] = checked
        self._checked.move_to_end(digest)
        if len(self._checked) > MOST_TOKENS:
            self._checked.popitem(last=False)
        return checked

    def _unknown(self) -> ApiError:
        if not self._authenticators:
            told = "No valid API key came: send one as `Authorization: Bearer KEY`; `tartlet keys create` makes keys."
        else:
            told = "No valid credential came: send an API key, or a token of an issuer that this server trusts, as "
            told += "`Authorization: Bearer TOKEN`."
        return UnauthorizedError(told, "invalid_api_key")
