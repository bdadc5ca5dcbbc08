-- lock/acquire — take locks to a given hold count, or say who has them
--
-- A list: entry i is KEYS[i] with its three arguments. Entries never disturb each other.
--
-- KEYS[i]        lock       hash: owner -> hold count
-- ARGV[3i-2]     lease_ms   how long the hold lasts unless renewed, in milliseconds
-- ARGV[3i-1]     owner      the hold that asks, "<uuid>:<id>"
-- ARGV[3i]       count      the hold count to reach: 1 takes the lock, more re-enters it
--
-- Returns one integer for each entry, then one text for each entry that is refused or failed
--          0                acquired: the owner holds the lock `count` times
--         -1                gone: a re-entry of a hold that is no longer there; nothing was done
--         -2 + text         failed: this entry could not be tried; the text is the server's error
--         -3 + text         refused: another owner (the text) has it, and it stands without a TTL
--          1 + ttl + text   refused: another owner (the text) has it for ttl more milliseconds
-- Resend  safe: the count to reach is part of the request, and a TTL only ever grows
local LONGEST_MS = 315576000000
local codes, texts = {}, {}

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

local function acquire(lock, lease_ms, owner, count)
  lease_ms, count = tonumber(lease_ms), tonumber(count)
  if not lease_ms or lease_ms % 1 ~= 0 or lease_ms < 1 or lease_ms > LONGEST_MS then
    return -2, 'ERR lease_ms is not a whole number from 1 to ' .. LONGEST_MS
  end
  if not count or count % 1 ~= 0 or count < 1 then
    return -2, 'ERR count is not a whole number above 0'
  end
  local ttl = redis.pcall('PTTL', lock)
  if text_of(ttl) then return -2, text_of(ttl) end
  local held
  if ttl ~= -2 then
    held = redis.pcall('HGET', lock, owner)
    if text_of(held) then return -2, text_of(held) end
    if not held and count == 1 then
      local holder = redis.pcall('HRANDFIELD', lock)
      if type(holder) ~= 'string' then holder = '' end
      if ttl < 0 then return -3, holder end
      return 1 + ttl, holder
    end
  end
  if not held and count > 1 then return -1 end
  local step = count
  if held then
    local now = tonumber(held)
    if not now or now % 1 ~= 0 or math.abs(now) > 2 ^ 53 then
      return -2, 'ERR hold count is not an integer'
    end
    step = count - now
  end
  if step ~= 0 then
    local moved = redis.pcall('HINCRBY', lock, owner, step)
    if text_of(moved) then return -2, text_of(moved) end
  end
  if ttl < lease_ms then
    local kept = redis.pcall('PEXPIRE', lock, lease_ms)
    if text_of(kept) then
      -- Without its TTL the lock would stand for ever: put back what this entry changed.
      if not held then
        redis.pcall('HDEL', lock, owner)
      elseif step ~= 0 then
        redis.pcall('HINCRBY', lock, owner, -step)
      end
      return -2, text_of(kept)
    end
  end
  return 0
end

for i = 1, #KEYS do
  local code, text = acquire(KEYS[i], ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i])
  -- A read-only server has changed nothing: say it as an error of the whole list, so that the
  -- client looks for the primary.
  if i == 1 and code == -2 and string.sub(text, 1, 8) == 'READONLY' then
    return redis.error_reply(text)
  end
  codes[i] = code
  if text then texts[#texts + 1] = text end
end
for i = 1, #texts do codes[#KEYS + i] = texts[i] end
return codes
