#!lua flags=allow-oom
-- semaphore/release — give back what one call has taken, once, and tell the waiters
--
-- A list: entry i is KEYS[3i-2] to KEYS[3i] with its five arguments. Giving back needs no memory
-- but a short record, which ends by itself; hence the flag in the first line.
--
-- KEYS[3i-2]     semaphore  string: permits that can be taken, decimal; below 0 after an `add`
-- KEYS[3i-1]     channel    where waiters of this semaphore listen
-- KEYS[3i]       once       hash: call id -> what came of it; of this client and semaphore
-- ARGV[5i-4]     permits    how many the call has taken
-- ARGV[5i-3]     id         the call that took them: an `acquire` or a `drain`
-- ARGV[5i-2]     sure       1: it is known to have taken them; 0: undo it, whatever came of it
-- ARGV[5i-1]     publish    PUBLISH or SPUBLISH, as the waiters listen; empty: tell nobody
-- ARGV[5i]       ack        ids of settled calls, with spaces between: their records go
--
-- Returns one integer for each entry, then one text for each entry that failed or was not told
--          0 + told         given back; `told` subscribers got the message, the new number
--         -1                gone: given back before, or the semaphore is missing, or (undo) the
--                           call had taken nothing; should it run later, it takes nothing
--         -2 + text         failed: nothing was done; the text is the server's error
--         -4 + text         given back, but the server refused to publish; the text is its error
-- Resend  safe for 60 s: the record says that it is given back, and the resend says gone
local MOST, ONCE_MS, VOID = 2147483647, 60000, 'void'
local codes, texts = {}, {}

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

local function integer(text)
  local number = string.match(text, '^%-?%d+$') and tonumber(text)
  return number and math.abs(number) < 2 ^ 53 and number or nil
end

local function release(semaphore, channel, once, permits, id, sure, publish, ack)
  permits = tonumber(permits)
  if not permits or permits % 1 ~= 0 or permits < 1 or permits > MOST then
    return -2, 'ERR permits is not a whole number from 1 to ' .. MOST
  end
  if not string.match(id, '^%d+$') then return -2, 'ERR id is not a decimal' end
  if sure ~= '0' and sure ~= '1' then return -2, 'ERR sure is neither 0 nor 1' end
  for settled in string.gmatch(ack, '%d+') do
    local dropped = redis.pcall('HDEL', once, settled)
    if text_of(dropped) then return -2, text_of(dropped) end
  end
  local record = redis.pcall('HGET', once, id)
  if text_of(record) then return -2, text_of(record) end
  if record == VOID then return -1 end
  local back = permits
  if sure == '0' then
    back = integer(record or '0')
    if not back then return -2, 'ERR record of the call is not an integer' end
  end
  local stored = redis.pcall('GET', semaphore)
  if text_of(stored) then return -2, text_of(stored) end
  if stored and back ~= 0 and not integer(stored) then
    return -2, 'ERR number of permits is not an integer'
  end

  local function restore()
    if record then redis.pcall('HSET', once, id, record) else redis.pcall('HDEL', once, id) end
  end
  local written = redis.pcall('HSET', once, id, VOID)
  if text_of(written) then return -2, text_of(written) end
  local kept = redis.pcall('PEXPIRE', once, ONCE_MS)
  if text_of(kept) then
    restore()
    return -2, text_of(kept)
  end
  -- A semaphore that was deleted is not made anew with too few permits.
  if back == 0 or not stored then return -1 end
  local now = redis.pcall('INCRBY', semaphore, back)
  if text_of(now) then
    restore()
    return -2, text_of(now)
  end
  -- Nobody can take what is below 1, and Redisson's listener throws at a negative number.
  if publish == '' or now < 1 then return 0 end
  local told = redis.pcall(publish, channel, now)
  if text_of(told) then return -4, text_of(told) end
  return told
end

local entries = #KEYS / 3
for i = 1, entries do
  local code, text = release(
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
