-- semaphore/give — add permits that no call of this client has taken, and tell the waiters
--
-- KEYS[1]        semaphore  string: permits that can be taken, decimal; below 0 after an `add`
-- KEYS[2]        channel    where waiters of this semaphore listen
-- KEYS[3]        once       hash: call id -> what came of it; of this client and semaphore
-- ARGV[1]        permits    how many to give
-- ARGV[2]        id         this call, a decimal that the client never uses again
-- ARGV[3]        if_exists  1: leave a missing semaphore missing; 0: it starts with what is given
-- ARGV[4]        publish    PUBLISH or SPUBLISH, as the waiters listen; empty: tell nobody
-- ARGV[5]        ack        ids of settled calls, with spaces between: their records go
--
-- Returns one integer, then a text if it failed or was not told
--          0 + told         given; `told` subscribers got the message, the new number
--         -1                gone: the semaphore is missing; nothing was done
--         -2 + text         failed: nothing was done; the text is the server's error
--         -4 + text         given, but the server refused to publish; the text is its error
-- Resend  safe for 60 s: the record answers 0
local MOST, ONCE_MS = 2147483647, 60000
local semaphore, channel, once = KEYS[1], KEYS[2], KEYS[3]
local permits, id, if_exists, publish, ack = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

if not permits or permits % 1 ~= 0 or permits < 1 or permits > MOST then
  return { -2, 'ERR permits is not a whole number from 1 to ' .. MOST }
end
if not string.match(id, '^%d+$') then return { -2, 'ERR id is not a decimal' } end
if if_exists ~= '0' and if_exists ~= '1' then return { -2, 'ERR if_exists is neither 0 nor 1' } end
for settled in string.gmatch(ack, '%d+') do
  local dropped = redis.pcall('HDEL', once, settled)
  if text_of(dropped) then return { -2, text_of(dropped) } end
end
local record = redis.pcall('HGET', once, id)
if text_of(record) then return { -2, text_of(record) } end
if record then return { 0 } end
local stored = redis.pcall('GET', semaphore)
if text_of(stored) then return { -2, text_of(stored) } end
if not stored and if_exists == '1' then return { -1 } end
local available = string.match(stored or '0', '^%-?%d+$') and tonumber(stored or '0')
if not available or math.abs(available) >= 2 ^ 53 then
  return { -2, 'ERR number of permits is not an integer' }
end

local written = redis.pcall('HSET', once, id, 'done')
if text_of(written) then return { -2, text_of(written) } end
local kept = redis.pcall('PEXPIRE', once, ONCE_MS)
if text_of(kept) then
  redis.pcall('HDEL', once, id)
  return { -2, text_of(kept) }
end
local now = redis.pcall('INCRBY', semaphore, permits)
if text_of(now) then
  redis.pcall('HDEL', once, id)
  return { -2, text_of(now) }
end
-- Nobody can take what is below 1, and Redisson's listener throws at a negative number.
if publish == '' or now < 1 then return { 0 } end
local told = redis.pcall(publish, channel, now)
if text_of(told) then return { -4, text_of(told) } end
return { told }
