#!lua flags=allow-oom
-- read_write_lock/write_release — give write holds back down to a given count; waiters are told
--
-- A list: entry i is KEYS[3i-2] to KEYS[3i] with its three arguments. Releasing needs no memory,
-- hence the flag in the first line. If the owner reads as well, the last release leaves it a
-- reader: other readers may come in now, so they are told too.
--
-- KEYS[3i-2]     lock       hash: "mode" -> read or write; owner -> read count;
--                           owner:write -> write count
-- KEYS[3i-1]     channel    where waiters of this lock listen
-- KEYS[3i]       timeouts   what the keys of this owner's read holds begin with
-- ARGV[3i-2]     owner      the hold that gives back, "<uuid>:<id>"
-- ARGV[3i-1]     count      the write count to keep: 0 gives all of them back, whatever was held
-- ARGV[3i]       publish    PUBLISH or SPUBLISH, as the waiters listen; empty: tell nobody
--
-- Returns one integer for each entry, then one text for each entry that failed or was not told
--          0 + told         released: the lock is free or has readers only; `told` subscribers
--                           got the message "1"
--         -1                gone: the owner has no write hold here; nothing was done
--         -2 + text         failed: nothing was done; the text is the server's error
--         -3                kept: the owner now holds the lock for writing `count` times
--         -4 + text         released, but the server refused to publish; the text is its error
-- Resend  safe: the count to keep is part of the request; the resend of a release to 0 says gone
local MOST = 5000
local codes, texts = {}, {}

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

local function count_of(text)
  local count = string.match(text, '^[1-9]%d*$') and tonumber(text)
  return count and count <= MOST and count or nil
end

-- What the owner still reads with stands as long as the lock, or others would take it for dead
-- before its time. Missing keys are made anew: nobody else can have come in.
local function outlived(lock, timeouts, reads)
  local ttl, keys = redis.pcall('PTTL', lock), {}
  if text_of(ttl) then return nil, text_of(ttl) end
  for i = 1, ttl > 0 and (count_of(reads) or 1) or 0 do
    local key = timeouts .. ':' .. i
    local left = redis.pcall('PTTL', key)
    if text_of(left) then return nil, text_of(left) end
    if left < ttl then keys[#keys + 1] = key end
  end
  return keys, ttl
end

local function release(lock, channel, timeouts, owner, count, publish)
  count = tonumber(count)
  if not count or count % 1 ~= 0 or count < 0 or count > MOST then
    return -2, 'ERR count is not a whole number up to ' .. MOST
  end
  local field = owner .. ':write'
  local fields = redis.pcall('HMGET', lock, 'mode', field, owner)
  if text_of(fields) then return -2, text_of(fields) end
  local mode, held, reads = fields[1], fields[2], fields[3]
  if not held then return -1 end
  if count > 0 then
    local now = count_of(held)
    if not now then return -2, 'ERR hold count is not an integer from 1 to ' .. MOST end
    local counted = now == count and 0 or redis.pcall('HSET', lock, field, count)
    if text_of(counted) then return -2, text_of(counted) end
    return -3
  end

  local others = redis.pcall('HLEN', lock)
  if text_of(others) then return -2, text_of(others) end
  others = others - (mode and 2 or 1)
  if others == 0 then
    local deleted = redis.pcall('DEL', lock)
    if text_of(deleted) then return -2, text_of(deleted) end
  else
    local keys, ttl = {}, nil
    if reads and mode == 'write' then
      keys, ttl = outlived(lock, timeouts, reads)
      if not keys then return -2, ttl end
    end
    local turned = mode == 'write' and redis.pcall('HSET', lock, 'mode', 'read')
    if text_of(turned) then return -2, text_of(turned) end
    local failed = redis.pcall('HDEL', lock, field)
    if text_of(failed) then
      if turned then redis.pcall('HSET', lock, 'mode', 'write') end
      return -2, text_of(failed)
    end
    for _, key in ipairs(keys) do
      failed = redis.pcall('SET', key, '1', 'PX', ttl, 'GET')
      if text_of(failed) then
        redis.pcall('HSET', lock, 'mode', 'write', field, held)
        return -2, text_of(failed)
      end
    end
  end
  if publish == '' then return 0 end
  local told = redis.pcall(publish, channel, '1')
  if text_of(told) then return -4, text_of(told) end
  return told
end

local entries = #KEYS / 3
for i = 1, entries do
  local code, text = release(
    KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i],
    ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  )
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
