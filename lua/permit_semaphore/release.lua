#!lua flags=allow-oom
-- permit_semaphore/release — give permits back by their ids, each once, and tell the waiters
--
-- A list: entry i is KEYS[3i-2] to KEYS[3i] with its two arguments. Giving back needs no memory,
-- hence the flag in the first line. Permits past their deadline are taken back as well.
--
-- KEYS[3i-2]     semaphore  string: permits that can be taken, decimal; below 0 after an `add`
-- KEYS[3i-1]     channel    where waiters of this semaphore listen
-- KEYS[3i]       deadlines  zset: permit id -> when it ends, milliseconds of the server's clock
-- ARGV[2i-1]     ids        the permits: 16 bytes each, one behind the other
-- ARGV[2i]       publish    PUBLISH or SPUBLISH, as the waiters listen; empty: tell nobody
--
-- Returns one integer for each entry, then one text for each entry that failed or was not told
--          0 + told         given back; `told` subscribers got the message, the new number
--         -1                gone: at least one had ended, or was given back before, or the
--                           semaphore is missing; what still stood of them is given back
--         -2 + text         failed: nothing was done; the text is the server's error
--         -4 + text         given back, but the server refused to publish; the text is its error
-- Resend  safe: an id counts once; the resend says gone
local MOST_AT_ONCE = 1000
local codes, texts = {}, {}

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

local clock = redis.pcall('TIME')
local now = not clock.err and clock[1] * 1000 + math.floor(clock[2] / 1000)

local function each_of(ids)
  local found, seen = {}, {}
  for at = 1, #ids, 16 do
    local id = string.sub(ids, at, at + 15)
    if #id < 16 or seen[id] or #found == MOST_AT_ONCE then return nil end
    found[#found + 1], seen[id] = id, true
  end
  return #found > 0 and found or nil
end

local function release(semaphore, channel, deadlines, ids, publish)
  ids = each_of(ids)
  if not ids then return -2, 'ERR ids is not 1 to ' .. MOST_AT_ONCE .. ' different 16 bytes' end
  if not now then return -2, clock.err end
  local scores = redis.pcall('ZMSCORE', deadlines, unpack(ids))
  if text_of(scores) then return -2, text_of(scores) end
  local stored = redis.pcall('GET', semaphore)
  if text_of(stored) then return -2, text_of(stored) end
  if not stored then
    -- A semaphore that was deleted is not made anew with too few permits.
    local removed = redis.pcall('ZREM', deadlines, unpack(ids))
    if text_of(removed) then return -2, text_of(removed) end
    return -1
  end
  local standing = {}
  for i, id in ipairs(ids) do
    if scores[i] and tonumber(scores[i]) > now then standing[#standing + 1] = id end
  end
  local ended = redis.pcall('ZCOUNT', deadlines, '-inf', now)
  if text_of(ended) then return -2, text_of(ended) end
  local back = ended + #standing
  if back == 0 then return -1 end
  local available = string.match(stored, '^%-?%d+$') and tonumber(stored)
  if not available or math.abs(available) >= 2 ^ 53 then
    return -2, 'ERR number of permits is not an integer'
  end

  local left = redis.pcall('INCRBY', semaphore, back)
  if text_of(left) then return -2, text_of(left) end
  if #standing > 0 then
    local removed = redis.pcall('ZREM', deadlines, unpack(standing))
    if text_of(removed) then
      redis.pcall('DECRBY', semaphore, back)
      return -2, text_of(removed)
    end
  end
  if ended > 0 and text_of(redis.pcall('ZREMRANGEBYSCORE', deadlines, '-inf', now)) then
    -- The next one to look takes them back.
    redis.pcall('DECRBY', semaphore, ended)
    left = left - ended
  end
  local told = 0
  -- Nobody can take what is below 1, and Redisson's listener throws at a negative number.
  if publish ~= '' and left > 0 then told = redis.pcall(publish, channel, left) end
  if #standing < #ids then return -1 end
  if text_of(told) then return -4, text_of(told) end
  return told
end

local entries = #KEYS / 3
for i = 1, entries do
  local code, text =
    release(KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i], ARGV[2 * i - 1], ARGV[2 * i])
  -- A read-only server has changed nothing: say it as an error of the whole list, so that the
  -- client looks for the primary.
  if i == 1 and code == -2 and string.sub(text, 1, 8) == 'READONLY' then
    return redis.error_reply(text)
  end
  codes[i] = code
  if text then texts[#texts + 1] = text end
end
for i = 1, #texts do codes[entries + i] = texts[i] end
return codes
