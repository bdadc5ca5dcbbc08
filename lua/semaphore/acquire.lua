-- semaphore/acquire — take permits, all or none, or say how many there are
--
-- A list: entry i is KEYS[3i-2] to KEYS[3i] with its five arguments. Entries never disturb each
-- other.
--
-- KEYS[3i-2]     semaphore  string: permits that can be taken, decimal; below 0 after an `add`
-- KEYS[3i-1]     once       hash: call id -> what came of it; of this client and semaphore
-- KEYS[3i]       channel    where waiters of this semaphore listen
-- ARGV[5i-4]     permits    how many to take
-- ARGV[5i-3]     id         this call, a decimal that the client never uses again
-- ARGV[5i-2]     size       empty: the semaphore must be there; else what a missing one starts with
-- ARGV[5i-1]     publish    PUBLISH or SPUBLISH, as the waiters listen; empty: tell nobody
-- ARGV[5i]       ack        ids of settled calls, with spaces between: their records go
--
-- Returns one integer for each entry, then one text for each entry that is refused or failed
--          0                acquired: this call has taken the permits
--         -1                gone: the call was undone, or its permits given back; nothing was done
--         -2 + text         failed: this entry could not be tried; the text is the server's error,
--                           or begins with UNINITIALISED: the semaphore is missing and has no size
--         -3 + text         refused: there are only so many permits (the text)
-- Resend  safe for 60 s: the record answers; a refused call has none and is tried anew
local MOST, ONCE_MS, VOID = 2147483647, 60000, 'void'
local codes, texts = {}, {}

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

local function whole(text, least)
  local number = tonumber(text)
  return number and number % 1 == 0 and number >= least and number <= MOST and number or nil
end

local function acquire(semaphore, once, channel, permits, id, size, publish, ack)
  permits = whole(permits, 1)
  if not permits then return -2, 'ERR permits is not a whole number from 1 to ' .. MOST end
  if not string.match(id, '^%d+$') then return -2, 'ERR id is not a decimal' end
  local start = whole(size, 0)
  if size ~= '' and not start then
    return -2, 'ERR size is not a whole number from 0 to ' .. MOST
  end
  for settled in string.gmatch(ack, '%d+') do
    local dropped = redis.pcall('HDEL', once, settled)
    if text_of(dropped) then return -2, text_of(dropped) end
  end
  local record = redis.pcall('HGET', once, id)
  if text_of(record) then return -2, text_of(record) end
  if record == VOID then return -1 end
  if record then return 0 end

  local stored = redis.pcall('GET', semaphore)
  if text_of(stored) then return -2, text_of(stored) end
  if not stored and size == '' then return -2, 'UNINITIALISED the semaphore has no permits set' end
  local available = start
  if stored then
    available = string.match(stored, '^%-?%d+$') and tonumber(stored)
    if not available or math.abs(available) >= 2 ^ 53 then
      return -2, 'ERR number of permits is not an integer'
    end
  end
  local take = available >= permits and permits or 0
  if stored and take == 0 then return -3, stored end

  if take > 0 then
    local written = redis.pcall('HSET', once, id, take)
    if text_of(written) then return -2, text_of(written) end
    local kept = redis.pcall('PEXPIRE', once, ONCE_MS)
    if text_of(kept) then
      redis.pcall('HDEL', once, id)
      return -2, text_of(kept)
    end
  end
  local moved
  if stored then
    moved = redis.pcall('DECRBY', semaphore, take)
  else
    moved = redis.pcall('SET', semaphore, available - take)
  end
  if text_of(moved) then
    if take > 0 then redis.pcall('HDEL', once, id) end
    return -2, text_of(moved)
  end
  -- Redisson's waiters sleep without an end on a semaphore that is missing: tell them what it
  -- starts with. Whether that succeeds changes nothing for this entry.
  if not stored and publish ~= '' and available > take then
    redis.pcall(publish, channel, available - take)
  end
  if take == 0 then return -3, string.format('%.0f', available) end
  return 0
end

local entries = #KEYS / 3
for i = 1, entries do
  local code, text = acquire(
    KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i],
    ARGV[5 * i - 4], ARGV[5 * i - 3], ARGV[5 * i - 2], ARGV[5 * i - 1], ARGV[5 * i]
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
