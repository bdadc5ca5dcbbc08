-- read_write_lock/write_acquire — take write holds to a given count, or say who is in the way
--
-- A list: entry i is KEYS[i] with its three arguments. Entries never disturb each other. A read
-- hold is not upgraded: its own owner is refused as any other.
--
-- KEYS[i]        lock       hash: "mode" -> read or write; owner -> read count;
--                           owner:write -> write count
-- ARGV[3i-2]     lease_ms   how long the hold lasts unless renewed, in milliseconds
-- ARGV[3i-1]     owner      the hold that asks, "<uuid>:<id>"
-- ARGV[3i]       count      the write count to reach: 1 takes the lock, more re-enters it
--
-- Returns one integer for each entry, then one text for each entry that is refused or failed
--          0                acquired: the owner holds the lock for writing `count` times
--         -1                gone: a re-entry of a write hold that is no longer there; nothing was
--                           done
--         -2 + text         failed: this entry could not be tried; the text is the server's error
--         -3 + text         refused: somebody (the text: one of them) has it, and it stands
--                           without a TTL
--          1 + ttl + text   refused: somebody (the text: one of them) has it for ttl more
--                           milliseconds
-- Resend  safe: the count to reach is part of the request, and a TTL only ever grows
local LONGEST_MS = 315576000000
local MOST = 5000
local codes, texts = {}, {}

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

local function count_of(text)
  local count = string.match(text, '^[1-9]%d*$') and tonumber(text)
  return count and count <= MOST and count or nil
end

local function refused(lock, ttl)
  -- Two of the fields, for one of them may be the mode.
  local fields = redis.pcall('HRANDFIELD', lock, 2)
  local holder = fields[1] == 'mode' and fields[2] or fields[1]
  holder = holder and holder ~= 'mode' and string.gsub(holder, ':write$', '') or ''
  if ttl < 0 then return -3, holder end
  return 1 + ttl, holder
end

local function acquire(lock, lease_ms, owner, count)
  lease_ms, count = tonumber(lease_ms), tonumber(count)
  if not lease_ms or lease_ms % 1 ~= 0 or lease_ms < 1 or lease_ms > LONGEST_MS then
    return -2, 'ERR lease_ms is not a whole number from 1 to ' .. LONGEST_MS
  end
  if not count or count % 1 ~= 0 or count < 1 or count > MOST then
    return -2, 'ERR count is not a whole number from 1 to ' .. MOST
  end
  local field = owner .. ':write'
  local ttl = redis.pcall('PTTL', lock)
  if text_of(ttl) then return -2, text_of(ttl) end
  local mode, held
  if ttl ~= -2 then
    local fields = redis.pcall('HMGET', lock, 'mode', field)
    if text_of(fields) then return -2, text_of(fields) end
    mode, held = fields[1], fields[2]
    if mode ~= 'read' and mode ~= 'write' then
      return -2, 'WRONGTYPE the hash is no read/write lock: its mode is neither read nor write'
    end
    if mode == 'read' then held = false end
    if not held and count == 1 then return refused(lock, ttl) end
  end
  if not held and count > 1 then return -1 end
  if held and not count_of(held) then
    return -2, 'ERR hold count is not an integer from 1 to ' .. MOST
  end
  local counted = 0
  if not mode then
    counted = redis.pcall('HSET', lock, 'mode', 'write', field, count)
  elseif count_of(held) ~= count then
    counted = redis.pcall('HSET', lock, field, count)
  end
  -- Redisson adds the lease to what is left; the larger of the two is enough.
  if not text_of(counted) and ttl < lease_ms then
    counted = redis.pcall('PEXPIRE', lock, lease_ms)
  end
  if text_of(counted) then
    -- Without its TTL the lock would stand for ever: put back what this entry changed.
    if held then
      redis.pcall('HSET', lock, field, held)
    else
      redis.pcall('HDEL', lock, 'mode', field)
    end
    return -2, text_of(counted)
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
