-- permit_semaphore/inspect — say how many permits there are; changes nothing
--
-- KEYS[1]        semaphore  string: permits that can be taken, decimal; below 0 after an `add`
-- KEYS[2]        deadlines  zset: permit id -> when it ends, milliseconds of the server's clock
--
-- Returns one integer, then three texts if the semaphore is there (one text if it failed)
--          0 + texts        how many can be taken (may be below 0), how many are in use, the sum;
--                           permits past their deadline can be taken
--         -1                the semaphore is missing
--         -2 + text         failed: the text is the server's error
-- Resend  safe: it only reads
local semaphore, deadlines = KEYS[1], KEYS[2]

local clock = redis.pcall('TIME')
if clock.err then return { -2, clock.err } end
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local stored = redis.pcall('GET', semaphore)
if type(stored) == 'table' then return { -2, stored.err } end
local ended = redis.pcall('ZCOUNT', deadlines, '-inf', now)
if type(ended) == 'table' then return { -2, ended.err } end
if not stored then return { -1 } end
local in_use = redis.pcall('ZCARD', deadlines)
if type(in_use) == 'table' then return { -2, in_use.err } end
local available = string.match(stored, '^%-?%d+$') and tonumber(stored)
if not available or math.abs(available) >= 2 ^ 53 then
  return { -2, 'ERR number of permits is not an integer' }
end
local counts = { available + ended, in_use - ended, available + in_use }
for i = 1, 3 do counts[i] = string.format('%.0f', counts[i]) end
return { 0, counts[1], counts[2], counts[3] }
