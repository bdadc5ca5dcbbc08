-- permit_semaphore/set — say how many permits there are in all, those in use among them
--
-- KEYS[1]        semaphore  string: permits that can be taken, decimal; below 0 after an `add`
-- KEYS[2]        deadlines  zset: permit id -> when it ends, milliseconds of the server's clock
-- KEYS[3]        channel    where waiters of this semaphore listen
-- ARGV[1]        permits    how many there are to be; those in use stay, and are not given anew
-- ARGV[2]        publish    PUBLISH or SPUBLISH, as the waiters listen; empty: tell nobody
--
-- Returns one integer, then a text if it failed or was not told
--          0 + told         set; if there are more now, `told` subscribers got the new number
--         -2 + text         failed: nothing was done; the text is the server's error
--         -4 + text         set, but the server refused to publish; the text is its error
-- Resend  safe: the number to reach is part of the request
local MOST = 2147483647
local semaphore, deadlines, channel = KEYS[1], KEYS[2], KEYS[3]
local permits, publish = tonumber(ARGV[1]), ARGV[2]

if not permits or permits % 1 ~= 0 or permits < 0 or permits > MOST then
  return { -2, 'ERR permits is not a whole number from 0 to ' .. MOST }
end
local stored = redis.pcall('GET', semaphore)
if type(stored) == 'table' then return { -2, stored.err } end
local in_use = redis.pcall('ZCARD', deadlines)
if type(in_use) == 'table' then return { -2, in_use.err } end
local available = string.match(stored or '0', '^%-?%d+$') and tonumber(stored or '0')
if not available or math.abs(available) >= 2 ^ 53 then
  return { -2, 'ERR number of permits is not an integer' }
end
-- Permits past their deadline are in use until somebody takes them back; the sum is the same.
local left = permits - in_use
if stored and left == available then return { 0 } end
-- INCRBY leaves the semaphore its TTL.
local moved = redis.pcall('INCRBY', semaphore, left - available)
if type(moved) == 'table' then return { -2, moved.err } end
-- Fewer permits wake nobody, and Redisson's listener throws at a negative number.
if publish == '' or left < 1 or left < available then return { 0 } end
local told = redis.pcall(publish, channel, left)
if type(told) == 'table' then return { -4, told.err } end
return { told }
