"""At most one control leads, with a higher epoch than those before, and stops before its lease ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from subprocess import CalledProcessError

import pytest
import trustme

from tartlet_common.clock import SystemClock
from tartlet_common.config.settings import ControlSettings
from tartlet_common.errors.registry import InvalidConfig, LeaseLost
from tartlet_control.lease.lease import Lease, lease_of
from tests.redis_server import RedisServer, redis_over_tls, redis_server


def made(url: str) -> Lease:
    return lease_of(ControlSettings(lease_url=url, lease_s=0.6), SystemClock())


def secured(url: str, password: Path | None, authority: Path) -> Lease:
    settings = ControlSettings(lease_url=url, lease_s=1.0, lease_password_file=password, lease_ca_file=authority)
    return lease_of(settings, SystemClock())


def nobody(leader: str) -> None:
    """Hears of leaders without an address."""
    assert leader == ""


async def takes_turns(url: str) -> None:
    """Lets a second holder wait, and take over when the first one gives its lease back."""
    first, second = made(url), made(url)
    epoch = await first.acquire(nobody)
    assert SystemClock().now() < first.until
    waiting = asyncio.ensure_future(second.acquire(nobody))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await first.release()
    async with asyncio.timeout(5):
        assert await waiting > epoch
    await second.release()


async def test_a_lease_in_a_file_has_one_holder(tmp_path: Path) -> None:
    await takes_turns(f"file://{tmp_path}/lease")


async def test_a_lease_in_redis_has_one_holder(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as server:
        await takes_turns(server.url)


async def test_a_holder_that_cannot_renew_stops_before_another_one_leads(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as server:
        first, second = made(server.url), made(server.url)
        await first.acquire(nobody)  # and never renews, as a process that stands still
        await second.acquire(nobody)
        assert SystemClock().now() >= first.until
        with pytest.raises(LeaseLost):
            await first.keep()
        await loses_redis(server, second)
        for lease in (first, second):
            await lease.release()


async def loses_redis(server: RedisServer, lease: Lease) -> None:
    """Kills Redis under a holder, which must stop to lead by itself."""
    keeping = asyncio.ensure_future(lease.keep())
    await asyncio.sleep(0.7)
    assert not keeping.done()
    assert SystemClock().now() < lease.until
    server.kill()
    with pytest.raises(LeaseLost):
        async with asyncio.timeout(5):
            await keeping
    assert SystemClock().now() >= lease.until


async def test_a_holder_keeps_its_lease_when_redis_is_emptied_and_nobody_else_gets_it(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as server:
        first, second = made(server.url), made(server.url)
        await first.acquire(nobody)
        keeping, waiting = asyncio.ensure_future(first.keep()), asyncio.ensure_future(second.acquire(nobody))
        for _ in range(3):
            await asyncio.to_thread(server.command, "FLUSHALL")
            await asyncio.sleep(0.3)
            # either the holder renewed first, or the other one saw Redis empty, and then neither may lead at once
            if keeping.done():
                assert isinstance(keeping.exception(), LeaseLost)
                assert not waiting.done()
                break
            assert SystemClock().now() < first.until
            assert not waiting.done()
        keeping.cancel()
        await first.release()
        async with asyncio.timeout(5):
            await waiting
        await second.release()


async def test_nobody_leads_at_once_in_a_redis_that_may_have_been_emptied_under_a_leader(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as server:
        first, second = made(server.url), made(server.url)
        await first.acquire(nobody)  # and renews nothing, so the next one finds no trace of this one
        await asyncio.to_thread(server.command, "FLUSHALL")
        await second.acquire(nobody)
        assert SystemClock().now() >= first.until
        for lease in (first, second):
            await lease.release()


async def test_another_control_leads_although_the_memory_of_redis_is_full(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as server:
        first, second = made(server.url), made(server.url)
        await first.acquire(nobody)
        await asyncio.to_thread(server.command, "CONFIG", "SET", "maxmemory", "1kb")
        with pytest.raises(CalledProcessError):
            await asyncio.to_thread(server.command, "-e", "SET", "key", "value")
        async with asyncio.timeout(5):
            await second.acquire(nobody)
        for lease in (first, second):
            await lease.release()


async def test_a_lease_goes_over_tls_with_a_password_and_to_nobody_else(tmp_path: Path) -> None:
    other, password, wrong = tmp_path / "other.pem", tmp_path / "password", tmp_path / "wrong"
    trustme.CA().cert_pem.write_to_path(other)
    password.write_text("secret\n")
    wrong.write_text("guess\n")
    users = ("--user", "tartlet", "on", ">secret", "~*", "+@all", "--user", "default", "off")
    with redis_over_tls(tmp_path / "redis", *users) as (port, authority):
        url = f"rediss://tartlet@127.0.0.1:{port}/0"
        holder, next_one = secured(url, password, authority), secured(url, password, authority)
        async with asyncio.timeout(20):
            epoch = await holder.acquire(nobody)
            keeping = asyncio.ensure_future(holder.keep())
            await asyncio.sleep(1.1)  # longer than the lease lasts without renewal
            assert SystemClock().now() < holder.until
            keeping.cancel()
            await holder.release()
            for refused in (
                secured(url, wrong, authority),
                secured(url, None, authority),
                secured(url, password, other),
                secured(f"redis://tartlet@127.0.0.1:{port}/0", password, authority),
            ):
                leads = asyncio.ensure_future(refused.acquire(nobody))
                await asyncio.sleep(0.5)  # nobody holds the lease
                assert not leads.done()
                while not leads.done():
                    leads.cancel()  # which the client may lose
                    await asyncio.sleep(0.01)
                await refused.release()
            assert await next_one.acquire(nobody) > epoch
            await next_one.release()


def test_a_lease_url_must_be_known_and_hold_no_password() -> None:
    for url in ("http://redis:6379", "redis://:secret@redis:6379"):
        with pytest.raises(InvalidConfig):
            made(url)
