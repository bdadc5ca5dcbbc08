-- count_down_latch/inspect — say how many count-downs a latch has left; changes nothing
--
-- KEYS[1]        latch      string: how many count-downs are left, decimal
--
-- Returns one integer, then a text if it failed
--          0 + count        so many are left; 0: it is set, and open
--         -1                it is not set: open
--         -2 + text         failed: the text is the server's error
-- Resend  safe: it only reads
local latch = KEYS[1]

local stored = redis.pcall('GET', latch)
if type(stored) == 'table' then return { -2, stored.err } end
if not stored then return { -1 } end
local count = string.match(stored, '^%-?%d+$') and tonumber(stored)
if not count or math.abs(count) >= 2 ^ 53 then return { -2, 'ERR count is not an integer' } end
return { math.max(count, 0) }
