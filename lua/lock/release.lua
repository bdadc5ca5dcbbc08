#!lua flags=allow-oom
-- lock/release — give holds back down to a given count; at 0 the lock is free and waiters are told
--
-- A list: entry i is KEYS[2i-1] and KEYS[2i] with its three arguments. Releasing needs no memory,
-- hence the flag in the first line.
--
-- KEYS[2i-1]     lock       hash: owner -> hold count
-- KEYS[2i]       channel    where waiters of this lock listen
-- ARGV[3i-2]     owner      the hold that gives back, "<uuid>:<id>"
-- ARGV[3i-1]     count      the hold count to keep: 0 gives the lock back, whatever was held
-- ARGV[3i]       publish    PUBLISH or SPUBLISH, as the waiters listen; empty: tell nobody
--
-- Returns one integer for each entry, then one text for each entry that failed or was not told
--          0 + told         released: the lock is free; `told` subscribers got the message "0"
--         -1                gone: the owner has no hold here; nothing was done
--         -2 + text         failed: nothing was done; the text is the server's error
--         -3                kept: the owner now holds the lock `count` times
--         -4 + text         released, but the server refused to publish; the text is its error
-- Resend  safe: the count to keep is part of the request; the resend of a release to 0 says gone
local codes, texts = {}, {}

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

local function release(lock, channel, owner, count, publish)
  count = tonumber(count)
  if not count or count % 1 ~= 0 or count < 0 then
    return -2, 'ERR count is not a whole number'
  end
  if count == 0 then
    local deleted = redis.pcall('HDEL', lock, owner)
    if text_of(deleted) then return -2, text_of(deleted) end
    if deleted == 0 then return -1 end
    if publish == '' then return 0 end
    local told = redis.pcall(publish, channel, '0')
    if text_of(told) then return -4, text_of(told) end
    return told
  end
  local held = redis.pcall('HGET', lock, owner)
  if text_of(held) then return -2, text_of(held) end
  if not held then return -1 end
  local now = tonumber(held)
  if not now or now % 1 ~= 0 or math.abs(now) > 2 ^ 53 then
    return -2, 'ERR hold count is not an integer'
  end
  if now ~= count then
    local moved = redis.pcall('HINCRBY', lock, owner, count - now)
    if text_of(moved) then return -2, text_of(moved) end
  end
  return -3
end

local entries = #KEYS / 2
for i = 1, entries do
  local code, text =
    release(KEYS[2 * i - 1], KEYS[2 * i], ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i])
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
