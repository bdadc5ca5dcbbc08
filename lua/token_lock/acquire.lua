-- token_lock/acquire — take locks that are one string key, as SET with NX and PX does
--
-- A list: entry i is KEYS[i] with its two arguments. Entries never disturb each other.
--
-- KEYS[i]        lock       string: the token of its holder
-- ARGV[2i-1]     lease_ms   how long the hold lasts unless renewed, in milliseconds
-- ARGV[2i]       token      the hold that asks: any text, never used before, not empty
--
-- Returns one integer for each entry, then one text for each entry that is refused or failed
--          0                acquired: the lock holds this token
--         -2 + text         failed: this entry could not be tried; the text is the server's error
--         -3 + text         refused: another token (the text) has it, and it stands without a TTL
--          1 + ttl + text   refused: another token (the text) has it for ttl more milliseconds
-- Resend  safe: a lock that holds this token already is acquired, and a TTL only ever grows
local LONGEST_MS = 315576000000
local codes, texts = {}, {}

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

local function acquire(lock, lease_ms, token)
  lease_ms = tonumber(lease_ms)
  if not lease_ms or lease_ms % 1 ~= 0 or lease_ms < 1 or lease_ms > LONGEST_MS then
    return -2, 'ERR lease_ms is not a whole number from 1 to ' .. LONGEST_MS
  end
  if token == '' then return -2, 'ERR token is empty' end
  -- Looked at before it is written: who is refused needs no right to write, and no memory.
  local holder = redis.pcall('GET', lock)
  if text_of(holder) then return -2, text_of(holder) end
  if not holder then
    -- One write brings value and TTL, or neither: there is nothing to put back.
    local taken = redis.pcall('SET', lock, token, 'PX', lease_ms)
    if text_of(taken) then return -2, text_of(taken) end
    return 0
  end
  local ttl = redis.pcall('PTTL', lock)
  if text_of(ttl) then return -2, text_of(ttl) end
  if holder ~= token then
    if ttl < 0 then return -3, holder end
    return 1 + ttl, holder
  end
  if ttl < lease_ms then
    local raised = redis.pcall('PEXPIRE', lock, lease_ms)
    if text_of(raised) then return -2, text_of(raised) end
  end
  return 0
end

for i = 1, #KEYS do
  local code, text = acquire(KEYS[i], ARGV[2 * i - 1], ARGV[2 * i])
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
