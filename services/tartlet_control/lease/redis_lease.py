"""A lease in Redis: a key that expires, and a counter of epochs beside it. Each change is one script."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable
from typing import Any, Final

import redis.asyncio as redis

from tartlet_common.clock import Clock
from tartlet_common.config.settings import ControlSettings
from tartlet_common.errors.registry import LeaseLost
from tartlet_common.rpc.resume import epoch_of
from tartlet_control.lease.redis_client import make_client

log = logging.getLogger("tartlet.control")

_POLL_S: Final = 0.2
_MARGIN: Final = 0.8
"""The share of a lease after which its holder stops to lead, because clocks may run at different speeds."""
_FLAGS: Final = "#!lua flags=allow-oom\n"
"""Lets a script write two short keys into a Redis whose memory is full. Releases before 7 don't know it."""
_ACQUIRE: Final = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return {0, holder} end
local last = redis.call('GET', KEYS[2])
if not last then
  redis.call('SET', KEYS[2], '0')
  redis.call('SET', KEYS[1], 'nobody', 'PX', ARGV[2])
  return {0, ''}
end
local epoch = math.max(tonumber(last) + 1, tonumber(ARGV[3]))
redis.call('SET', KEYS[2], string.format('%.0f', epoch))
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {epoch, ''}
"""
"""Takes the lease. A Redis without an epoch may have been emptied under a leader: nobody leads for one lease then."""
_RENEW: Final = """
local holder = redis.call('GET', KEYS[1])
if not holder and not redis.call('GET', KEYS[2]) then
  redis.call('SET', KEYS[2], ARGV[3])
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return 1
end
if holder ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
"""Renews the lease, also in a Redis that was emptied; then the answer must come while the lease is valid."""
_RELEASE: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class RedisLease:
    """A key of Redis that names its holder and the holder's address, and expires unless the holder renews it."""

    def __init__(self, settings: ControlSettings, clock: Clock) -> None:
        self._clock = clock
        self._holder = f"{uuid.uuid4().hex} {settings.advertise}"
        prefix = f"tartlet:control:{settings.directory_release}"
        self._keys = f"{prefix}:lease", f"{prefix}:epoch"
        self._lease_s = settings.lease_s
        self._epoch = 0
        self._flags = _FLAGS
        self._client = make_client(
            settings.lease_url, settings.lease_password_file, settings.lease_ca_file, settings.lease_s / 4
        )
        self.until = 0.0

    async def acquire(self, on_leader: Callable[[str], None]) -> int:
        """Wait until the key is free, and take it. While Redis can't be reached, nobody leads anew."""
        waits = False
        while True:
            began_s, now_ms = self._clock.now(), epoch_of(self._clock.unix_ns())
            try:
                epoch, holder = await self._run(_ACQUIRE, int(1000 * self._lease_s), now_ms)
            except (redis.RedisError, OSError) as e:
                log.warning("the lease's Redis: %s", e)
            else:
                if epoch:
                    self.until = began_s + _MARGIN * self._lease_s
                    self._epoch = int(epoch)
                    return self._epoch
                on_leader(holder.decode().partition(" ")[2])
            if not waits:
                waits = True
                log.info("this control stands by")
            await asyncio.sleep(_POLL_S)

    async def keep(self) -> None:
        """Renew the key a few times in its life.

        Raises:
            LeaseLost: it couldn't be renewed in time, or names another holder.
        """
        while True:
            await asyncio.sleep(self._lease_s / 5)
            began_s = self._clock.now()
            renewed = None
            with contextlib.suppress(redis.RedisError, OSError):
                renewed = await self._run(_RENEW, int(1000 * self._lease_s), self._epoch)
            if renewed and self._clock.now() < self.until:
                self.until = began_s + _MARGIN * self._lease_s
            elif renewed is not None or self._clock.now() >= self.until:
                self.until = 0.0
                raise LeaseLost(detail="another control holds it" if renewed == 0 else "Redis doesn't answer in time")

    async def release(self) -> None:
        """Delete the key, if it is still this control's."""
        self.until = 0.0
        with contextlib.suppress(redis.RedisError, OSError):
            await self._run(_RELEASE)
        await self._client.aclose()

    async def _run(self, script: str, *values: int) -> Any:
        evaluate: Callable[..., Any] = self._client.eval
        arguments = len(self._keys), *self._keys, self._holder, *values
        if self._flags:
            try:
                return await evaluate(self._flags + script, *arguments)
            except redis.ResponseError as e:
                if "compiling" not in str(e):
                    raise
                self._flags = ""
        return await evaluate(script, *arguments)
