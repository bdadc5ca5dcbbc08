-- count_down_latch/wait — say whether latches are open; changes nothing
--
-- A list: entry i is KEYS[i], with no arguments. Entries never disturb each other.
--
-- KEYS[i]        latch      string: how many count-downs are left, decimal
--
-- Returns one integer for each entry, then one text for each entry that is closed or failed
--          0                open: nothing is left to count down, or nothing was ever set
--         -2 + text         failed: this entry could not be tried; the text is the server's error
--         -3 + text         closed: so many count-downs (the text) are left
-- Resend  safe: it only reads
local codes, texts = {}, {}

local function wait(latch)
  local stored = redis.pcall('GET', latch)
  if type(stored) == 'table' then return -2, stored.err end
  if not stored then return 0 end
  local count = string.match(stored, '^%-?%d+$') and tonumber(stored)
  if not count or math.abs(count) >= 2 ^ 53 then return -2, 'ERR count is not an integer' end
  if count <= 0 then return 0 end
  return -3, stored
end

for i = 1, #KEYS do
  local code, text = wait(KEYS[i])
  codes[i] = code
  if text then texts[#texts + 1] = text end
end
for i = 1, #texts do codes[#KEYS + i] = texts[i] end
return codes
