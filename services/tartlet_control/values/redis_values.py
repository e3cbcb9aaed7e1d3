"""Values in a Redis: a hash for each tenant, and a hash with the answers to programs' last writes.

Writes go through a script, which refuses a control with a lower epoch than the last one that wrote. A value of another
type at such a key would let no write through, so the script renames that value to the key with `:foreign` behind it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec
import redis.asyncio as redis
from redis.exceptions import RedisError

from tartlet_common.config.settings import ControlSettings
from tartlet_common.errors.registry import InvalidConfig
from tartlet_control.lease.redis_client import SCHEMES, check_no_password, make_client
from tartlet_control.tables.shared.topics import MAX_OF_TENANT
from tartlet_control.values.kept_store import KeptStore
from tartlet_control.values.kept_topics import KeptTopics
from tartlet_control.values.values import Change, Found, Told, ValuesAway

log = logging.getLogger("tartlet.control")

ANSWER_S: Final = 1.0
"""A Redis that takes longer to answer counts as away, in seconds."""
_ERRORS: Final = (RedisError, OSError, TimeoutError)
_PAGE: Final = 64
_TOLD: Final = msgspec.json.Decoder(
    list[tuple[Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)], Annotated[int, msgspec.Meta(ge=0)]]]
)
"""Tickets, and the answers: of the store whether the key was there."""
_WRITE: Final = """
-- KEYS: of the epoch, then a hash for each field. ARGV: control's epoch, then field, 1 to set or 0 to delete, value.
local function clear(key, wanted)
  local kind = redis.call('TYPE', key).ok
  if kind ~= wanted and kind ~= 'none' then redis.call('RENAME', key, key .. ':foreign') end
end
clear(KEYS[1], 'string')
local held = tonumber(redis.call('GET', KEYS[1]) or '')
if held and held > tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
for i = 2, #KEYS do
  local at = 3 * i - 4
  clear(KEYS[i], 'hash')
  if ARGV[at + 1] == '1' then
    redis.call('HSET', KEYS[i], ARGV[at], ARGV[at + 2])
  else
    redis.call('HDEL', KEYS[i], ARGV[at])
  end
end
return 1
"""


def topics_of(settings: ControlSettings, epoch: int) -> KeptTopics:
    """Return the topics in the Redis that the settings name. `epoch` is this control's.

    Raises:
        InvalidConfig: as `store_of`.
    """
    values = RedisValues(_client(settings), settings.directory_release, epoch, what="topics", most=MAX_OF_TENANT)
    return KeptTopics(values)


def store_of(settings: ControlSettings, epoch: int) -> KeptStore:
    """Return the store in the Redis that the settings name. `epoch` is this control's.

    Raises:
        InvalidConfig: its URL has an unknown scheme, or holds a password.
    """
    return KeptStore(RedisValues(_client(settings), settings.directory_release, epoch))


def _client(settings: ControlSettings) -> redis.Redis:
    scheme = urlsplit(settings.store_url).scheme
    if scheme not in SCHEMES:
        detail = f"store_url begins with {scheme}://; {', '.join(SCHEMES)} are known"
        raise InvalidConfig(role="control", detail=detail, remedy="Use redis://HOST:PORT or rediss://HOST:PORT.")
    check_no_password(settings.store_url, "store")
    return make_client(settings.store_url, settings.store_password_file, settings.store_ca_file, ANSWER_S, bare=True)


class RedisValues:
    """The values of one release."""

    def __init__(self, client: redis.Redis, release: str, epoch: int, *, what: str = "store", most: int = 1) -> None:
        """Begin unconnected.

        Args:
            client: the connection.
            release: of this Tartlet, which shares no values with others.
            epoch: this control's.
            what: names the kind of values.
            most: the largest answer to a write that makes sense.
        """
        self._client = client
        self._most = most
        self._prefix = f"tartlet:{what}:{{{release}}}:"
        self._epoch = epoch
        self._script = client.register_script(_WRITE)

    async def read(self) -> AsyncIterator[Found]:
        """Yield all entries. From then on a control with a lower epoch can't write.

        Raises:
            ValuesAway: Redis doesn't answer, or a later control has written.
        """
        await self.write((), {})
        try:
            begins = f"{self._prefix}of/"
            async for key in self._client.scan_iter(f"{begins}*", count=1000):
                if await self._client.type(key) != b"hash":
                    log.error("the store's Redis has a foreign value at %r, which is left out", key[:200])
                    continue
                async for field, value in self._client.hscan_iter(key, count=_PAGE):
                    yield Found(key.decode(errors="replace")[len(begins) :], field.decode(errors="replace"), value)
            if await self._client.type(f"{self._prefix}told") == b"hash":
                async for field, value in self._client.hscan_iter(f"{self._prefix}told", count=_PAGE):
                    yield Found("", field.decode(errors="replace"), told=_told_of(value, self._most))
        except _ERRORS as e:
            raise ValuesAway(f"{type(e).__name__}: {e}") from e

    async def write(self, changes: Sequence[Change], told: Told) -> None:
        """Apply changes, and keep what runs are told, in one script call.

        Raises:
            ValuesAway: Redis doesn't answer, or a later control has written.
        """
        keys, arguments = [f"{self._prefix}epoch"], list[Any]([self._epoch])
        for change in changes:
            keys.append(f"{self._prefix}of/{change.tenant}")
            arguments += [change.key, int(change.value is not None), change.value or b""]
        for run, answers in told.items():
            keys.append(f"{self._prefix}told")
            arguments += [run, int(bool(answers)), json.dumps(list(answers.items()))]
        try:
            async with asyncio.timeout(ANSWER_S):
                written = await self._script(keys=keys, args=arguments)
        except _ERRORS as e:
            raise ValuesAway(f"{type(e).__name__}: {e}") from e
        if not written:
            raise ValuesAway("a control that began later has written")

    async def close(self) -> None:
        """Close the connection."""
        await self._client.aclose()


def _told_of(value: bytes, most: int) -> dict[int, int]:
    """Return the answers to a program's writes; none if they make no sense, as if control had never kept them."""
    try:
        told = dict(_TOLD.decode(value))
        return told if max(told.values(), default=0) <= most else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
