-- semaphore/drain — take all permits that there are
--
-- KEYS[1]        semaphore  string: permits that can be taken, decimal; below 0 after an `add`
-- KEYS[2]        once       hash: call id -> what came of it; of this client and semaphore
-- ARGV[1]        id         this call, a decimal that the client never uses again
-- ARGV[2]        ack        ids of settled calls, with spaces between: their records go
--
-- Returns one integer, then a text if permits were taken or it failed
--          0 + text         drained: there are 0 now; the text is the number until then, and below
--                           0 if permits in use had been taken away: those are forgiven
--         -1                gone: the semaphore is missing, or `release` has undone this call
--         -2 + text         failed: nothing was done; the text is the server's error
-- Resend  safe for 60 s: the record answers 0 and the number of then
local ONCE_MS, VOID = 60000, 'void'
local semaphore, once = KEYS[1], KEYS[2]
local id, ack = ARGV[1], ARGV[2]

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

if not string.match(id, '^%d+$') then return { -2, 'ERR id is not a decimal' } end
for settled in string.gmatch(ack, '%d+') do
  local dropped = redis.pcall('HDEL', once, settled)
  if text_of(dropped) then return { -2, text_of(dropped) } end
end
local record = redis.pcall('HGET', once, id)
if text_of(record) then return { -2, text_of(record) } end
if record == VOID then return { -1 } end
if record then return { 0, record } end
local stored = redis.pcall('GET', semaphore)
if text_of(stored) then return { -2, text_of(stored) } end
if not stored then return { -1 } end
local available = string.match(stored, '^%-?%d+$') and tonumber(stored)
if not available or math.abs(available) >= 2 ^ 53 then
  return { -2, 'ERR number of permits is not an integer' }
end
if available == 0 then return { 0, stored } end

local written = redis.pcall('HSET', once, id, stored)
if text_of(written) then return { -2, text_of(written) } end
local kept = redis.pcall('PEXPIRE', once, ONCE_MS)
if text_of(kept) then
  redis.pcall('HDEL', once, id)
  return { -2, text_of(kept) }
end
-- Redisson's own call drops the semaphore's TTL.
local emptied = redis.pcall('SET', semaphore, '0', 'KEEPTTL')
if text_of(emptied) then
  redis.pcall('HDEL', once, id)
  return { -2, text_of(emptied) }
end
return { 0, stored }
