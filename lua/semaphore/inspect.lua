-- semaphore/inspect — say how many permits there are; changes nothing
--
-- KEYS[1]        semaphore  string: permits that can be taken, decimal; below 0 after an `add`
--
-- Returns one integer, then a text unless the semaphore is missing
--          0 + text         there are so many permits (the text), which may be below 0
--         -1                the semaphore is missing
--         -2 + text         failed: the text is the server's error
-- Resend  safe: it only reads
local semaphore = KEYS[1]

local stored = redis.pcall('GET', semaphore)
if type(stored) == 'table' then return { -2, stored.err } end
if not stored then return { -1 } end
local available = string.match(stored, '^%-?%d+$') and tonumber(stored)
if not available or math.abs(available) >= 2 ^ 53 then
  return { -2, 'ERR number of permits is not an integer' }
end
return { 0, stored }
