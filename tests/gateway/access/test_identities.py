"""Checks of tokens: what is remembered, how many run and wait, and how long one counts that can't be checked."""

from __future__ import annotations

import asyncio

import pytest

from tartlet_gateway.access import identities as checks
from tartlet_gateway.access.identities import AWAY_S, FRESH_S, GRACE_S, MOST_CHECKS, MOST_WAITING, Identities
from tartlet_gateway.access.identity import Identity, UnauthorizedError
from tartlet_gateway.openai.errors import ApiError


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Issuer:
    """Takes tokens that begin with "t" for valid, once it may go on."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.away = False
        self.expires_s: float | None = None
        self.go_on = asyncio.Event()
        self.go_on.set()

    def takes(self, token: str) -> bool:
        return bool(token)

    async def identify(self, token: str) -> Identity:
        self.asked.append(token)
        await self.go_on.wait()
        if self.away:
            raise ApiError(503, "away", code="issuer_away")
        if not token.startswith("t"):
            raise UnauthorizedError("The token isn't valid.")
        return Identity("a", expires_s=self.expires_s)

    async def close(self) -> None: ...


def begun() -> tuple[Identities, Issuer, Clock, Clock]:
    issuer, clock, wall = Issuer(), Clock(), Clock()
    return Identities(None, [issuer], clock, wall), issuer, clock, wall


async def refused(identities: Identities, token: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await identities.identify(token)
    return caught.value


async def test_a_checked_token_is_remembered_until_it_expires() -> None:
    identities, issuer, clock, wall = begun()
    issuer.expires_s = 1050.0
    for _ in range(3):
        await identities.identify("t")
    assert len(issuer.asked) == 1
    clock.now_s += FRESH_S
    await identities.identify("t")
    assert len(issuer.asked) == 2
    wall.now_s = 1051.0
    await identities.identify("t")
    assert len(issuer.asked) == 3


async def test_forged_tokens_push_no_valid_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MOST_TOKENS", 8)
    identities, issuer, *_ = begun()
    await identities.identify("t")
    for at in range(50):
        assert (await refused(identities, f"forged {at}")).status == 401
    assert len(identities._refused) == 8
    for at in range(50):
        await identities.identify(f"t{at}")
        await identities.identify("t")  # the one that is used stays
    assert issuer.asked.count("t") == 1


async def test_a_flood_of_new_tokens_is_bounded_and_leaves_known_ones_alone() -> None:
    identities, issuer, clock, _ = begun()
    await identities.identify("t")
    clock.now_s += FRESH_S
    issuer.go_on.clear()
    most = MOST_CHECKS + MOST_WAITING
    flood = [asyncio.ensure_future(identities.identify(f"forged {at}")) for at in range(10 * most)]
    same = [asyncio.ensure_future(identities.identify("forged 0")) for _ in range(100)]
    known = asyncio.ensure_future(identities.identify("t"))
    await asyncio.sleep(0.01)
    early = [each.exception() for each in flood if each.done()]
    assert len(early) == 9 * most
    assert {(e.status, e.code, b"retry-after" in dict(e.headers)) for e in early if isinstance(e, ApiError)} == {
        (503, "too_many_checks", True)
    }
    assert not any(each.done() for each in same)
    assert len(issuer.asked) == 1 + MOST_CHECKS + 1
    assert issuer.asked[-1] == "t"
    issuer.go_on.set()
    assert (await known).tenant == "a"
    outcomes = await asyncio.gather(*flood, *same, return_exceptions=True)
    assert sum(isinstance(each, UnauthorizedError) for each in outcomes) == most + 100
    assert issuer.asked.count("forged 0") == 1
    await identities.close()


async def test_a_token_that_cannot_be_checked_counts_for_a_while_and_not_once_it_expired() -> None:
    identities, issuer, clock, wall = begun()
    issuer.expires_s = 5000.0
    await identities.identify("t")
    issuer.away = True
    for passed_s in (FRESH_S, GRACE_S - FRESH_S - AWAY_S):
        clock.now_s += passed_s
        assert await identities.still_valid("t")
        assert (await refused(identities, "t")).status == 503
    clock.now_s += 2 * AWAY_S
    assert not await identities.still_valid("t")
    issuer.away = False
    clock.now_s += 2 * AWAY_S
    assert await identities.still_valid("t")
    wall.now_s = 5001.0
    assert not await identities.still_valid("t")
    assert not await identities.still_valid("never seen")


async def test_a_caller_that_leaves_ends_no_check_of_others() -> None:
    identities, issuer, *_ = begun()
    issuer.go_on.clear()
    leaving, staying = (asyncio.ensure_future(identities.identify("t")) for _ in range(2))
    await asyncio.sleep(0.01)
    leaving.cancel()
    await asyncio.sleep(0)
    issuer.go_on.set()
    assert (await staying).tenant == "a"
    assert len(issuer.asked) == 1
