-- permit_semaphore/acquire — take permits with ids and a deadline, all or none, or say what is left
--
-- A list: entry i is KEYS[3i-2] to KEYS[3i] with its four arguments. Entries never disturb each
-- other. Permits past their deadline are taken back first.
--
-- KEYS[3i-2]     semaphore  string: permits that can be taken, decimal; below 0 after an `add`
-- KEYS[3i-1]     deadlines  zset: permit id -> when it ends, milliseconds of the server's clock
-- KEYS[3i]       channel    where waiters of this semaphore listen
-- ARGV[4i-3]     lease_ms   how long the permits last unless renewed, in milliseconds; 0: for ever
-- ARGV[4i-2]     ids        the new permits: 16 random bytes each, one behind the other
-- ARGV[4i-1]     size       empty: the semaphore must be there; else what a missing one starts with
-- ARGV[4i]       publish    PUBLISH or SPUBLISH, as the waiters listen; empty: tell nobody
--
-- Returns one integer for each entry, then one text for each entry that is refused or failed
--          0                acquired: the ids are permits now
--         -1                gone: some of these ids are permits and others are not: these have been
--                           given back since; nothing was done
--         -2 + text         failed: this entry could not be tried; the text is the server's error,
--                           or begins with UNINITIALISED: the semaphore is missing and has no size
--         -3 + text         refused: only so many (the text) are left, and no permit ever ends
--          1 + ms + text    refused: only so many (the text) are left; a permit ends in ms
-- Resend  safe while the permits stand: ids that are permits are not taken again. It cannot tell
--         ids that were given back, so none may follow their release
local MOST, LONGEST_MS, NEVER = 2147483647, 315576000000, 922337203685477
local MOST_AT_ONCE = 1000
local codes, texts = {}, {}

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

local clock = redis.pcall('TIME')
local now = not clock.err and clock[1] * 1000 + math.floor(clock[2] / 1000)

local function each_of(ids)
  local found, seen = {}, {}
  for at = 1, #ids, 16 do
    local id = string.sub(ids, at, at + 15)
    if #id < 16 or seen[id] or #found == MOST_AT_ONCE then return nil end
    found[#found + 1], seen[id] = id, true
  end
  return #found > 0 and found or nil
end

local function acquire(semaphore, deadlines, channel, lease_ms, ids, size, publish)
  lease_ms, ids = tonumber(lease_ms), each_of(ids)
  if not lease_ms or lease_ms % 1 ~= 0 or lease_ms < 0 or lease_ms > LONGEST_MS then
    return -2, 'ERR lease_ms is not a whole number from 0 to ' .. LONGEST_MS
  end
  if not ids then return -2, 'ERR ids is not 1 to ' .. MOST_AT_ONCE .. ' different 16 bytes' end
  local start = tonumber(size)
  if size ~= '' and (not start or start % 1 ~= 0 or start < 0 or start > MOST) then
    return -2, 'ERR size is not a whole number from 0 to ' .. MOST
  end
  if not now then return -2, clock.err end
  local stored = redis.pcall('GET', semaphore)
  if text_of(stored) then return -2, text_of(stored) end
  local scores = redis.pcall('ZMSCORE', deadlines, unpack(ids))
  if text_of(scores) then return -2, text_of(scores) end
  if not stored and size == '' then return -2, 'UNINITIALISED the semaphore has no permits set' end
  local standing = 0
  for i = 1, #ids do
    if scores[i] and tonumber(scores[i]) > now then standing = standing + 1 end
  end
  if standing == #ids then return 0 end
  if standing > 0 then return -1 end
  local available
  if stored then
    available = string.match(stored, '^%-?%d+$') and tonumber(stored)
    if not available or math.abs(available) >= 2 ^ 53 then
      return -2, 'ERR number of permits is not an integer'
    end
  else
    -- Permits that outlived their semaphore still count: there are never more than its size.
    local in_use = redis.pcall('ZCARD', deadlines)
    if text_of(in_use) then return -2, text_of(in_use) end
    available = start - in_use
  end

  local ended = redis.pcall('ZCOUNT', deadlines, '-inf', now)
  if text_of(ended) then return -2, text_of(ended) end
  local left = available + ended
  local take = left >= #ids and #ids or 0
  local next_end
  if take == 0 then
    next_end =
      redis.pcall('ZRANGE', deadlines, now + 1, NEVER, 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
    if text_of(next_end) then return -2, text_of(next_end) end
  end
  local moved
  if not stored then
    moved = redis.pcall('SET', semaphore, left - take)
  elseif ended ~= take then
    moved = redis.pcall('INCRBY', semaphore, ended - take)
  end
  if text_of(moved) then return -2, text_of(moved) end
  local function restore()
    for i, id in ipairs(ids) do
      if scores[i] then
        redis.pcall('ZADD', deadlines, scores[i], id)
      else
        redis.pcall('ZREM', deadlines, id)
      end
    end
    if not stored then
      redis.pcall('DEL', semaphore)
    elseif ended ~= take then
      redis.pcall('INCRBY', semaphore, take - ended)
    end
  end
  if take > 0 then
    local score, members = lease_ms > 0 and now + lease_ms or NEVER, {}
    for _, id in ipairs(ids) do
      members[#members + 1], members[#members + 2] = score, id
    end
    local added = redis.pcall('ZADD', deadlines, unpack(members))
    if text_of(added) then
      restore()
      return -2, text_of(added)
    end
    -- Both keys end together: permits must not outlive the semaphore, nor it their deadlines.
    local kept = stored and redis.pcall('PEXPIRETIME', semaphore) or -1
    if not text_of(kept) then
      if kept >= 0 then
        kept = redis.pcall('PEXPIREAT', deadlines, kept)
      else
        kept = redis.pcall('PERSIST', deadlines)
      end
    end
    if text_of(kept) then
      restore()
      return -2, text_of(kept)
    end
  end
  if ended > 0 then
    local removed = redis.pcall('ZREMRANGEBYSCORE', deadlines, '-inf', now)
    if text_of(removed) then
      restore()
      return -2, text_of(removed)
    end
  end
  -- Others may wait for permits that came back, and Redisson's waiters sleep without an end on a
  -- semaphore that is missing. Whether they can be told changes nothing for this entry.
  if publish ~= '' and left > take and (ended > 0 or not stored) then
    redis.pcall(publish, channel, left - take)
  end
  if take > 0 then return 0 end

  local text = string.format('%.0f', left)
  local score = tonumber(next_end[2])
  if not score or score >= NEVER then return -3, text end
  return 1 + math.ceil(score - now), text
end

local entries = #KEYS / 3
for i = 1, entries do
  local code, text = acquire(
    KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i],
    ARGV[4 * i - 3], ARGV[4 * i - 2], ARGV[4 * i - 1], ARGV[4 * i]
  )
  -- A read-only server has changed nothing: say it as an error of the whole list, so that the
  -- client looks for the primary.
  if i == 1 and code == -2 and string.sub(text, 1, 8) == 'READONLY' then
    return redis.error_reply(text)
  end
  codes[i] = code
  if text then texts[#texts + 1] = text end
end
for i = 1, #texts do codes[entries + i] = texts[i] end
return codes
