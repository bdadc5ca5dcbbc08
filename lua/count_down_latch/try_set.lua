-- count_down_latch/try_set — close a latch with a count, if it is not set
--
-- KEYS[1]        latch      string: how many count-downs are left, decimal
-- KEYS[2]        channel    where waiters of this latch listen
-- ARGV[1]        count      how many count-downs open it; 0: it is set, and open
-- ARGV[2]        publish    PUBLISH or SPUBLISH, as the waiters listen; empty: tell nobody
--
-- Returns one integer, then a text if it failed or was not told
--          0 + told         set; `told` subscribers got the message "1"
--         -1                set already; nothing was done
--         -2 + text         failed: nothing was done; the text is the server's error
--         -4 + text         set, but the server refused to publish; the text is its error
-- Resend  safe while it stands, but it may answer -1 for what the first has set; once the latch
--         is open, it closes it anew
local MOST = 2147483647
local latch, channel = KEYS[1], KEYS[2]
local count, publish = tonumber(ARGV[1]), ARGV[2]

if not count or count % 1 ~= 0 or count < 0 or count > MOST then
  return { -2, 'ERR count is not a whole number from 0 to ' .. MOST }
end
local stored = redis.pcall('GET', latch)
if type(stored) == 'table' then return { -2, stored.err } end
if stored then return { -1 } end
local set = redis.pcall('SET', latch, count)
if set.err then return { -2, set.err } end
if publish == '' then return { 0 } end
local told = redis.pcall(publish, channel, '1')
if type(told) == 'table' then return { -4, told.err } end
return { told }
