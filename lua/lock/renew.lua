#!lua flags=allow-oom
-- lock/renew — keep holds alive; a TTL only ever grows
--
-- A list: entry i is KEYS[i] with its two arguments. Renewing needs no memory, hence the flag in
-- the first line.
--
-- KEYS[i]        lock       hash: owner -> hold count
-- ARGV[2i-1]     lease_ms   how long the hold lasts from now, in milliseconds
-- ARGV[2i]       owner      the hold to keep, "<uuid>:<id>"
--
-- Returns one integer for each entry, then one text for each entry that failed
--          0                renewed: the lock stands for lease_ms more, or for longer
--         -1                gone: the owner has no hold here; nothing was done
--         -2 + text         failed: nothing was done; the text is the server's error
-- Resend  safe: a TTL is only ever raised, and never for a hold that is gone
local LONGEST_MS = 315576000000
local codes, texts = {}, {}

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

local function renew(lock, lease_ms, owner)
  lease_ms = tonumber(lease_ms)
  if not lease_ms or lease_ms % 1 ~= 0 or lease_ms < 1 or lease_ms > LONGEST_MS then
    return -2, 'ERR lease_ms is not a whole number from 1 to ' .. LONGEST_MS
  end
  local there = redis.pcall('HEXISTS', lock, owner)
  if text_of(there) then return -2, text_of(there) end
  if there == 0 then return -1 end
  local raised = redis.pcall('PEXPIRE', lock, lease_ms, 'GT')
  if text_of(raised) then return -2, text_of(raised) end
  -- GT takes a key without a TTL (somebody's PERSIST) for one that lives longest: give it its TTL
  -- back, or a dead holder would keep the lock for ever.
  if raised == 0 then
    local ttl = redis.pcall('PTTL', lock)
    if text_of(ttl) then return -2, text_of(ttl) end
    if ttl == -1 then
      raised = redis.pcall('PEXPIRE', lock, lease_ms)
      if text_of(raised) then return -2, text_of(raised) end
    end
  end
  return 0
end

for i = 1, #KEYS do
  local code, text = renew(KEYS[i], ARGV[2 * i - 1], ARGV[2 * i])
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
