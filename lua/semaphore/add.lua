-- semaphore/add — change how many permits there are by a number, which may be negative
--
-- KEYS[1]        semaphore  string: permits that can be taken, decimal; below 0 after an `add`
-- KEYS[2]        channel    where waiters of this semaphore listen
-- KEYS[3]        once       hash: call id -> what came of it; of this client and semaphore
-- ARGV[1]        permits    how many to add; below 0: to take away, also if they are in use
-- ARGV[2]        id         this call, a decimal that the client never uses again
-- ARGV[3]        publish    PUBLISH or SPUBLISH, as the waiters listen; empty: tell nobody
-- ARGV[4]        ack        ids of settled calls, with spaces between: their records go
--
-- Returns one integer, then a text
--          0 + told + text  added; the text is the new number, which `told` subscribers got
--         -2 + text         failed: nothing was done; the text is the server's error
--         -4 + text         added, but the server refused to publish; the text is its error
-- Resend  safe for 60 s: the record answers 0 and the number of then
local MOST, ONCE_MS = 2147483647, 60000
local semaphore, channel, once = KEYS[1], KEYS[2], KEYS[3]
local permits, id, publish, ack = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

if not permits or permits % 1 ~= 0 or math.abs(permits) > MOST then
  return { -2, 'ERR permits is not a whole number from -' .. MOST .. ' to ' .. MOST }
end
if not string.match(id, '^%d+$') then return { -2, 'ERR id is not a decimal' } end
for settled in string.gmatch(ack, '%d+') do
  local dropped = redis.pcall('HDEL', once, settled)
  if text_of(dropped) then return { -2, text_of(dropped) } end
end
local record = redis.pcall('HGET', once, id)
if text_of(record) then return { -2, text_of(record) } end
if record then return { 0, record } end
local stored = redis.pcall('GET', semaphore)
if text_of(stored) then return { -2, text_of(stored) } end
local available = string.match(stored or '0', '^%-?%d+$') and tonumber(stored or '0')
if not available or math.abs(available) >= 2 ^ 53 then
  return { -2, 'ERR number of permits is not an integer' }
end

local sum = string.format('%.0f', available + permits)
local written = redis.pcall('HSET', once, id, sum)
if text_of(written) then return { -2, text_of(written) } end
local kept = redis.pcall('PEXPIRE', once, ONCE_MS)
if text_of(kept) then
  redis.pcall('HDEL', once, id)
  return { -2, text_of(kept) }
end
-- INCRBY leaves the semaphore its TTL; Redisson's own call drops it.
local now = redis.pcall('INCRBY', semaphore, permits)
if text_of(now) then
  redis.pcall('HDEL', once, id)
  return { -2, text_of(now) }
end
-- Fewer permits wake nobody, and Redisson's listener throws at a negative number.
if publish == '' or permits < 1 or now < 1 then return { 0, sum } end
local told = redis.pcall(publish, channel, sum)
if text_of(told) then return { -4, text_of(told) } end
return { told, sum }
