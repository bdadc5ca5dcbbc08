#!lua flags=allow-oom
-- count_down_latch/count_down — count down by one; at 0 the latch opens and all waiters are told
--
-- It needs no memory but a short record, which ends by itself; hence the flag in the first line.
--
-- KEYS[1]        latch      string: how many count-downs are left, decimal
-- KEYS[2]        channel    where waiters of this latch listen
-- KEYS[3]        once       hash: call id -> what came of it; of this client and latch
-- ARGV[1]        id         this call, a decimal that the client never uses again
-- ARGV[2]        publish    PUBLISH or SPUBLISH, as the waiters listen; empty: tell nobody
-- ARGV[3]        ack        ids of settled calls, with spaces between: their records go
--
-- Returns one integer, then a text if it failed or was not told
--          0 + left         counted down: so many are left; at 0 the waiters got the message "0"
--         -1                open already: there was nothing to count down
--         -2 + text         failed: nothing was done; the text is the server's error
--         -4 + text         open now, but the server refused to publish; the text is its error
-- Resend  safe for 60 s: the record answers with the count of then
local ONCE_MS = 60000
local latch, channel, once = KEYS[1], KEYS[2], KEYS[3]
local id, publish, ack = ARGV[1], ARGV[2], ARGV[3]

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

if not string.match(id, '^%d+$') then return { -2, 'ERR id is not a decimal' } end
for settled in string.gmatch(ack, '%d+') do
  local dropped = redis.pcall('HDEL', once, settled)
  if text_of(dropped) then return { -2, text_of(dropped) } end
end
local record = redis.pcall('HGET', once, id)
if text_of(record) then return { -2, text_of(record) } end
if record then
  local left = tonumber(record)
  if not left then return { -2, 'ERR record of the call is not an integer' } end
  return { left }
end
local stored = redis.pcall('GET', latch)
if text_of(stored) then return { -2, text_of(stored) } end
if not stored then return { -1 } end
local count = string.match(stored, '^%-?%d+$') and tonumber(stored)
if not count or math.abs(count) >= 2 ^ 53 then return { -2, 'ERR count is not an integer' } end
if count <= 0 then
  -- Set to 0 and never counted down: as in Redisson, it may be set anew from here on.
  local deleted = redis.pcall('DEL', latch)
  if text_of(deleted) then return { -2, text_of(deleted) } end
  return { -1 }
end

local left = count - 1
local written = redis.pcall('HSET', once, id, left)
if text_of(written) then return { -2, text_of(written) } end
local kept = redis.pcall('PEXPIRE', once, ONCE_MS)
if text_of(kept) then
  redis.pcall('HDEL', once, id)
  return { -2, text_of(kept) }
end
local moved
if left > 0 then moved = redis.pcall('DECR', latch) else moved = redis.pcall('DEL', latch) end
if text_of(moved) then
  redis.pcall('HDEL', once, id)
  return { -2, text_of(moved) }
end
if left == 0 and publish ~= '' then
  local told = redis.pcall(publish, channel, '0')
  if text_of(told) then return { -4, text_of(told) } end
end
return { left }
