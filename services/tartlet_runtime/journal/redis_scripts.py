"""Redis scripts of the journals. Each takes effect as a whole.

A program has two keys: a stream with one entry for each append, whose ids are 1-0, 2-0 and so on, and a hash with the
owner's `epoch` and the stream's `length`. The scripts refuse a stream with fewer entries than its length says.
"""

from __future__ import annotations

OK = 0
SUPERSEDED = 1
SHORT = 2
UNKNOWN = 3

APPEND = """
-- KEYS: hash and stream of each program. ARGV: epoch, number of the entry (0: the first of a new stream), data of each.
local answers = {}
for i = 1, #KEYS / 2 do
  local owner, stream = KEYS[2 * i - 1], KEYS[2 * i]
  local epoch, number, data = ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), ARGV[3 * i]
  local held = redis.call('HMGET', owner, 'epoch', 'length')
  if not held[1] and number == 1 then
    redis.call('HSET', owner, 'epoch', epoch, 'length', 0)
    held = {epoch, '0'}
  end
  if held[1] == epoch and number == 0 then  -- the stream begins anew; a repetition does the same again
    redis.call('DEL', stream)
    redis.call('HSET', owner, 'length', 0)
    held, number = {epoch, '0'}, 1
  end
  local entries = redis.call('XLEN', stream)
  if not held[1] then
    answers[i] = 2
  elseif held[1] ~= epoch then
    answers[i] = 1
  elseif entries ~= tonumber(held[2]) or entries < number - 1 then
    answers[i] = 2
  else
    if entries == number - 1 then  -- else it is a repetition
      redis.call('XADD', stream, number .. '-0', 'd', data)
      redis.call('HSET', owner, 'length', number)
    end
    answers[i] = 0
  end
end
return answers
"""
"""Append to the streams of several programs. Answers one status for each. An entry that is there counts as appended."""

READ = """
-- KEYS: hash and stream. ARGV: the new owner's epoch, or '' to read only.
local held = redis.call('HMGET', KEYS[1], 'epoch', 'length')
if not held[1] then return {3} end
if ARGV[1] ~= '' and tonumber(held[1]) >= tonumber(ARGV[1]) then return {1} end
if redis.call('XLEN', KEYS[2]) ~= tonumber(held[2]) then return {2} end
local epoch = tonumber(held[1])
if ARGV[1] ~= '' then
  epoch = tonumber(ARGV[1])
  redis.call('HSET', KEYS[1], 'epoch', ARGV[1])
  redis.call('HDEL', KEYS[1], 'left')
  redis.call('PERSIST', KEYS[1])
  redis.call('PERSIST', KEYS[2])
end
return {0, epoch, tonumber(held[2])}
"""
"""Raise the owner's epoch to a higher one. Answers status, epoch and length."""

LIVE = """
-- KEYS: hash and stream of each program. Answers, of each whose journal is whole: its place in KEYS, the owner's epoch,
-- the number of entries, the first entry's data, the last one's, and whether its owner has closed it (else the owner
-- lives, is gone, or has left it to the next one).
local answers = {}
for i = 1, #KEYS / 2 do
  local held = redis.call('HMGET', KEYS[2 * i - 1], 'epoch', 'length', 'left')
  local first = redis.call('XRANGE', KEYS[2 * i], '-', '+', 'COUNT', 1)[1]
  if held[1] and first and redis.call('XLEN', KEYS[2 * i]) == tonumber(held[2]) then
    local last = redis.call('XREVRANGE', KEYS[2 * i], '+', '-', 'COUNT', 1)[1]
    local closed = redis.call('PTTL', KEYS[2 * i]) >= 0 and not held[3]
    answers[#answers + 1] = {i - 1, tonumber(held[1]), tonumber(held[2]), first[2][2], last[2][2], closed and 1 or 0}
  end
end
return answers
"""
"""Read the beginning and the end of several journals."""

EXPIRE = """
-- KEYS: hash and stream of each program. ARGV: epoch, milliseconds, and whether it is left to the next owner, of each.
for i = 1, #KEYS / 2 do
  if redis.call('HGET', KEYS[2 * i - 1], 'epoch') == ARGV[3 * i - 2] then
    if ARGV[3 * i] == '1' then redis.call('HSET', KEYS[2 * i - 1], 'left', 1) end
    redis.call('PEXPIRE', KEYS[2 * i - 1], ARGV[3 * i - 1])
    redis.call('PEXPIRE', KEYS[2 * i], ARGV[3 * i - 1])
  end
end
"""
"""Let journals expire whose owner is still the one of the epoch: `READ` has made those of later owners lasting."""
