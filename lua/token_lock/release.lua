#!lua flags=allow-oom
-- token_lock/release — give holds back: compare, then delete; waiters are told
--
-- A list: entry i is KEYS[2i-1] and KEYS[2i] with its two arguments. Releasing needs no memory,
-- hence the flag in the first line.
--
-- KEYS[2i-1]     lock       string: the token of its holder
-- KEYS[2i]       channel    where waiters of this lock listen
-- ARGV[2i-1]     token      the hold that gives back
-- ARGV[2i]       publish    PUBLISH or SPUBLISH, as the waiters listen; empty: tell nobody
--
-- Returns one integer for each entry, then one text for each entry that failed or was not told
--          0 + told         released: the lock is free; `told` subscribers got the message "0"
--         -1                gone: the lock does not hold this token; nothing was done
--         -2 + text         failed: nothing was done; the text is the server's error
--         -4 + text         released, but the server refused to publish; the text is its error
-- Resend  safe: only the lock that holds this token is deleted; the resend says gone
local codes, texts = {}, {}

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

local function release(lock, channel, token, publish)
  local holder = redis.pcall('GET', lock)
  if text_of(holder) then return -2, text_of(holder) end
  if holder ~= token then return -1 end
  local deleted = redis.pcall('DEL', lock)
  if text_of(deleted) then return -2, text_of(deleted) end
  if publish == '' then return 0 end
  local told = redis.pcall(publish, channel, '0')
  if text_of(told) then return -4, text_of(told) end
  return told
end

local entries = #KEYS / 2
for i = 1, entries do
  local code, text = release(KEYS[2 * i - 1], KEYS[2 * i], ARGV[2 * i - 1], ARGV[2 * i])
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
