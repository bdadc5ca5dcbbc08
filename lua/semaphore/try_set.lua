-- semaphore/try_set — say how many permits there are, if nobody has yet
--
-- KEYS[1]        semaphore  string: permits that can be taken, decimal; below 0 after an `add`
-- KEYS[2]        channel    where waiters of this semaphore listen
-- KEYS[3]        once       hash: call id -> what came of it; of this client and semaphore
-- ARGV[1]        permits    how many there are to be
-- ARGV[2]        ttl_ms     how long the semaphore stands, in milliseconds; 0: for ever
-- ARGV[3]        id         this call, a decimal that the client never uses again
-- ARGV[4]        publish    PUBLISH or SPUBLISH, as the waiters listen; empty: tell nobody
-- ARGV[5]        ack        ids of settled calls, with spaces between: their records go
--
-- Returns one integer, then a text if it failed or was not told
--          0 + told         set; `told` subscribers got the message, the number
--         -1                there already, be it with 0 permits; nothing was done
--         -2 + text         failed: nothing was done; the text is the server's error
--         -4 + text         set, but the server refused to publish; the text is its error
-- Resend  safe for 60 s: the record answers 0
local MOST, LONGEST_MS, ONCE_MS = 2147483647, 315576000000, 60000
local semaphore, channel, once = KEYS[1], KEYS[2], KEYS[3]
local permits, ttl_ms, id = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local publish, ack = ARGV[4], ARGV[5]

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

if not permits or permits % 1 ~= 0 or permits < 0 or permits > MOST then
  return { -2, 'ERR permits is not a whole number from 0 to ' .. MOST }
end
if not ttl_ms or ttl_ms % 1 ~= 0 or ttl_ms < 0 or ttl_ms > LONGEST_MS then
  return { -2, 'ERR ttl_ms is not a whole number from 0 to ' .. LONGEST_MS }
end
if not string.match(id, '^%d+$') then return { -2, 'ERR id is not a decimal' } end
for settled in string.gmatch(ack, '%d+') do
  local dropped = redis.pcall('HDEL', once, settled)
  if text_of(dropped) then return { -2, text_of(dropped) } end
end
local record = redis.pcall('HGET', once, id)
if text_of(record) then return { -2, text_of(record) } end
if record then return { 0 } end
local stored = redis.pcall('GET', semaphore)
if text_of(stored) then return { -2, text_of(stored) } end
if stored then return { -1 } end

local written = redis.pcall('HSET', once, id, 'done')
if text_of(written) then return { -2, text_of(written) } end
local kept = redis.pcall('PEXPIRE', once, ONCE_MS)
if text_of(kept) then
  redis.pcall('HDEL', once, id)
  return { -2, text_of(kept) }
end
local set
if ttl_ms > 0 then
  set = redis.pcall('SET', semaphore, permits, 'PX', ttl_ms)
else
  set = redis.pcall('SET', semaphore, permits)
end
if text_of(set) then
  redis.pcall('HDEL', once, id)
  return { -2, text_of(set) }
end
if publish == '' or permits < 1 then return { 0 } end
local told = redis.pcall(publish, channel, permits)
if text_of(told) then return { -4, text_of(told) } end
return { told }
