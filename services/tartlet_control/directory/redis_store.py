"""The directory in Redis: a hash for each section of a generation. Each change is a script that checks the generation.

Keys, of a release `R` (docs/operations.md has the table):
- `tartlet:directory:1:{R}:live`: the live generation;
- `...:generations`: a hash with the epoch of the control that wrote each generation;
- `...:GENERATION:sections`: a set with the names of its sections;
- `...:GENERATION/SECTION`: a hash with the entries of a section.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import redis.asyncio as redis

from tartlet_control.directory.store import Entries, Found, StoreAway, StoreLost, StoreTaken, grown, reading_order

log = logging.getLogger("tartlet.control")

VERSION: Final = 1
"""Of the entries' form. A control reads no entries of another version."""
KEPT_S: Final = 7 * 86_400
"""Redis forgets a directory that no control has written for so long, in seconds."""
ANSWER_S: Final = 1.0
_CHUNK: Final = 1024
"""Entries of one script: Redis does nothing else meanwhile."""
_GONE: Final = 0xFFFF_FFFF
_LENGTHS: Final = struct.Struct("<II")
_BEGIN: Final = """
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then redis.call('UNLINK', KEYS[1]) end
for _, epoch in ipairs(redis.call('HVALS', KEYS[1])) do
  if (tonumber(epoch) or 0) > tonumber(ARGV[2]) then return 0 end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
"""
_COMMIT: Final = """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('SET', KEYS[2], ARGV[1], 'EX', ARGV[2])
for _, other in ipairs(redis.call('HKEYS', KEYS[1])) do
  if other ~= ARGV[1] then
    local names = ARGV[3] .. other .. ':sections'
    for _, section in ipairs(redis.call('SMEMBERS', names)) do
      redis.call('UNLINK', ARGV[3] .. other .. '/' .. section)
    end
    redis.call('UNLINK', names)
    redis.call('HDEL', KEYS[1], other)
  end
end
return 1
"""
_WRITE: Final = """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return false end
local sets, gone, data, at = {}, {}, ARGV[4], 1
local function change()
  if #sets > 0 then redis.call('HSET', KEYS[3], unpack(sets)) end
  if #gone > 0 then redis.call('HDEL', KEYS[3], unpack(gone)) end
  sets, gone = {}, {}
end
while at <= #data do
  local field, value
  field, value, at = struct.unpack('<I4I4', data, at)
  local name = string.sub(data, at, at + field - 1)
  at = at + field
  if value == 0xFFFFFFFF then
    gone[#gone + 1] = name
  else
    sets[#sets + 1] = name
    sets[#sets + 1] = string.sub(data, at, at + value - 1)
    at = at + value
  end
  if #sets + #gone > 1000 then change() end
end
change()
redis.call('SADD', KEYS[2], ARGV[3])
redis.call('EXPIRE', KEYS[2], ARGV[2])
redis.call('EXPIRE', KEYS[3], ARGV[2])
return redis.call('HLEN', KEYS[3])
"""
_SCAN: Final = """
local found = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local data = {}
for i = 1, #found[2], 2 do
  local name, value = found[2][i], found[2][i + 1]
  data[#data + 1] = struct.pack('<I4I4', #name, #value) .. name .. value
end
return {found[1], table.concat(data)}
"""
_DROP: Final = """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return false end
redis.call('UNLINK', KEYS[3])
redis.call('SREM', KEYS[2], ARGV[2])
return 1
"""
_CHECK: Final = """
if redis.call('GET', KEYS[3]) ~= ARGV[1] or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return false end
local found = {}
for _, section in ipairs(redis.call('SMEMBERS', KEYS[2])) do
  local key = ARGV[3] .. ARGV[1] .. '/' .. section
  redis.call('EXPIRE', key, ARGV[2])
  found[#found + 1] = section
  found[#found + 1] = redis.call('HLEN', key)
end
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, ARGV[2]) end
return found
"""


class RedisStore:
    """One control's view of the directory of a release."""

    def __init__(self, client: redis.Redis, release: str, epoch: int, answer_s: float = ANSWER_S) -> None:
        """Use a client that neither bounds nor repeats commands.

        `release` tells the directories in one Redis apart. A Redis that takes longer than `answer_s` counts as away.
        """
        self._client = client
        self._answer_s = answer_s
        self._epoch = epoch
        self._root = f"tartlet:directory:{VERSION}:{{{release}}}:"
        self._live = f"{self._root}live"
        self._generations = f"{self._root}generations"
        self._generation = ""
        self._sizes: dict[str, int] = {}

    async def read(self) -> AsyncIterator[tuple[str, Found]]:
        """Yield the entries of the live generation."""
        live = await self._read("get", self._live)
        if live is None:
            return
        generation = live.decode("utf-8", "surrogateescape")
        sections = await self._read("smembers", f"{self._root}{generation}:sections") or ()
        for name in reading_order(section.decode("utf-8", "surrogateescape") for section in sections):
            cursor, key = 0, self._key(generation, name)
            while True:
                told, data = await self._read("eval", _SCAN, 1, key, cursor, _CHUNK) or (b"0", b"")
                yield name, _unpacked(data)
                cursor = int(told)
                if not cursor:
                    break

    async def _read(self, name: str, *args: Any, **options: Any) -> Any:
        """Return what a command reads; None if another program uses the key for something else."""
        try:
            return await self._call(name, *args, **options)
        except redis.ResponseError as e:
            log.warning("the directory can't be read: %s", e)
            return None

    async def begin(self) -> None:
        """Begin a generation."""
        self._generation, self._sizes = uuid.uuid4().hex, {}
        if not await self._run(_BEGIN, [self._generations], self._generation, self._epoch, KEPT_S):
            raise StoreTaken

    async def commit(self) -> None:
        """Make the generation live."""
        if not await self._run(_COMMIT, [self._generations, self._live], self._generation, KEPT_S, self._root):
            raise StoreLost

    async def write(self, section: str, entries: Entries) -> None:
        """Set and delete entries."""
        for at in range(0, len(entries), _CHUNK):
            data = _packed(entries[at : at + _CHUNK])
            size = await self._run(_WRITE, self._keys(section), self._generation, KEPT_S, section, data)
            if size is None:
                raise StoreLost
            self._sizes[section] = int(size)

    async def drop(self, section: str) -> None:
        """Delete a section."""
        if not await self._run(_DROP, self._keys(section), self._generation, section):
            raise StoreLost
        self._sizes.pop(section, None)

    async def check(self) -> None:
        """Compare the sizes of sections, and put off that Redis forgets them."""
        keys = [self._generations, f"{self._root}{self._generation}:sections", self._live]
        told = await self._run(_CHECK, keys, self._generation, KEPT_S, self._root)
        if told is None:
            raise StoreLost
        found = dict(zip((name.decode("utf-8", "replace") for name in told[::2]), told[1::2], strict=True))
        if grown(found) != grown(self._sizes):
            raise StoreLost

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def _keys(self, section: str) -> list[Any]:
        names = f"{self._root}{self._generation}:sections"
        return [self._generations, names, self._key(self._generation, section)]

    def _key(self, generation: str, section: str) -> bytes:
        return f"{self._root}{generation}/{section}".encode("utf-8", "surrogateescape")

    async def _run(self, script: str, keys: list[Any], *args: Any) -> Any:
        try:
            return await self._call("eval", script, len(keys), *keys, *args)
        except redis.ResponseError as e:  # it has no room
            raise StoreAway(str(e)) from e

    async def _call(self, name: str, *args: Any, **options: Any) -> Any:
        command: Callable[..., Any] = getattr(self._client, name)
        try:
            async with asyncio.timeout(self._answer_s):
                return await command(*args, **options)
        except redis.ResponseError:
            raise
        except (redis.RedisError, OSError) as e:  # a timeout is an OSError
            await self._client.connection_pool.disconnect()
            raise StoreAway(str(e) or f"no answer in {self._answer_s} s") from e


def _unpacked(data: bytes) -> Found:
    """Return the entries that `_SCAN` tells."""
    found: Found = []
    at = 0
    while at < len(data):
        name, value = _LENGTHS.unpack_from(data, at)
        at += _LENGTHS.size
        end = at + name + value
        found.append((data[at : at + name], data[at + name : end]))
        at = end
    return found


def _packed(entries: Entries) -> bytes:
    """Return entries as `_WRITE` takes them: the lengths of field and value, then both. One argument costs least."""
    parts: list[bytes] = []
    for name, value in entries:
        if value is None:
            parts += (_LENGTHS.pack(len(name), _GONE), name)
        else:
            parts += (_LENGTHS.pack(len(name), len(value)), name, value)
    return b"".join(parts)
