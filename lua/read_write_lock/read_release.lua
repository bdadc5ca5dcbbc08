#!lua flags=allow-oom
-- read_write_lock/read_release — give read holds back down to a given count
--
-- A list: entry i is KEYS[4i-3] to KEYS[4i] with its three arguments. Releasing needs no memory,
-- hence the flag in the first line. With the last living reader the lock becomes free and waiters
-- are told. While others read, it stands as long as the longest of them. While its owner writes,
-- its time is the writer's and is left alone.
--
-- KEYS[4i-3]     lock       hash: "mode" -> read or write; owner -> read count;
--                           owner:write -> write count
-- KEYS[4i-2]     channel    where waiters of this lock listen
-- KEYS[4i-1]     timeouts   what the keys of this owner's read holds begin with
-- KEYS[4i]       prefix     what `timeouts` of any owner begins with: prefix:owner:rwlock_timeout
-- ARGV[3i-2]     owner      the hold that gives back, "<uuid>:<id>"
-- ARGV[3i-1]     count      the read count to keep: 0 gives all of them back, whatever was held
-- ARGV[3i]       publish    PUBLISH or SPUBLISH, as the waiters listen; empty: tell nobody
--
-- Returns one integer for each entry, then one text for each entry that failed or was not told
--          0 + told         released: if the lock is free now, `told` subscribers got the message
--                           "0"; if somebody still has it, 0
--         -1                gone: the owner has no read hold here; nothing was done
--         -2 + text         failed: nothing was done; the text is the server's error
--         -3                kept: the owner now holds the lock for reading `count` times
--         -4 + text         released and free, but the server refused to publish; the text is its
--                           error
-- Resend  safe: the count to keep is part of the request; the resend of a release to 0 says gone
local MOST = 5000
local codes, texts = {}, {}

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

local function count_of(text)
  local count = string.match(text, '^[1-9]%d*$') and tonumber(text)
  return count and count <= MOST and count or nil
end

-- How long the longest of the other readers has: 0 if none lives, huge if one has no end. Names
-- are built here as Redisson builds them: who else reads stands in the hash only. A count that is
-- none, or too large to look at, is read as 1: the first key is the last to be removed.
local function longest_of_others(lock, prefix, owner)
  local longest = 0
  local fields = redis.pcall('HGETALL', lock)
  if text_of(fields) then return nil, text_of(fields) end
  for at = 1, #fields, 2 do
    if fields[at] ~= 'mode' and fields[at] ~= owner then
      for i = 1, count_of(fields[at + 1]) or 1 do
        local key = prefix .. ':' .. fields[at] .. ':rwlock_timeout:' .. i
        local left = redis.pcall('PTTL', key)
        if text_of(left) then return nil, text_of(left) end
        if left == -1 then left = math.huge end
        longest = math.max(longest, left)
      end
    end
  end
  return longest
end

local function release(lock, channel, timeouts, prefix, owner, count, publish)
  count = tonumber(count)
  if not count or count % 1 ~= 0 or count < 0 or count > MOST then
    return -2, 'ERR count is not a whole number up to ' .. MOST
  end
  if owner == 'mode' or string.sub(owner, -6) == ':write' then
    return -2, 'ERR owner is the name of another field'
  end
  local fields = redis.pcall('HMGET', lock, 'mode', owner)
  if text_of(fields) then return -2, text_of(fields) end
  local mode, held = fields[1], fields[2]
  if not held then return -1 end
  local now = count_of(held)
  if count > 0 and not now then
    return -2, 'ERR hold count is not an integer from 1 to ' .. MOST
  end
  -- What stands above the count to keep goes. Nobody looks at it any more, so that a server that
  -- refuses to delete it harms nobody: it ends by itself.
  local over = {}
  for i = count + 1, now or 1 do over[#over + 1] = timeouts .. ':' .. i end
  if count > 0 then
    local counted = now == count and 0 or redis.pcall('HSET', lock, owner, count)
    if text_of(counted) then return -2, text_of(counted) end
    if #over > 0 then redis.pcall('DEL', unpack(over)) end
    return -3
  end

  local others = redis.pcall('HLEN', lock)
  if text_of(others) then return -2, text_of(others) end
  others = others - (mode and 2 or 1)
  local longest = 0
  if others > 0 and mode == 'read' then
    local text
    longest, text = longest_of_others(lock, prefix, owner)
    if text then return -2, text end
  end
  if others == 0 or mode == 'read' and longest == 0 then
    -- Fields of the dead go too, as Redisson has it.
    local deleted = redis.pcall('DEL', lock, unpack(over))
    if text_of(deleted) then return -2, text_of(deleted) end
    if publish == '' then return 0 end
    local told = redis.pcall(publish, channel, '0')
    if text_of(told) then return -4, text_of(told) end
    return told
  end
  local deleted = redis.pcall('HDEL', lock, owner)
  if text_of(deleted) then return -2, text_of(deleted) end
  if longest > 0 and longest < math.huge then
    local kept = redis.pcall('PEXPIRE', lock, longest)
    if text_of(kept) then
      redis.pcall('HSET', lock, owner, held)
      return -2, text_of(kept)
    end
  end
  redis.pcall('DEL', unpack(over))
  return 0
end

local entries = #KEYS / 4
for i = 1, entries do
  local code, text = release(
    KEYS[4 * i - 3], KEYS[4 * i - 2], KEYS[4 * i - 1], KEYS[4 * i],
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
