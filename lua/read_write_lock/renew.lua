#!lua flags=allow-oom
-- read_write_lock/renew — keep holds alive, whether they read, write or both; a TTL only ever grows
--
-- A list: entry i is KEYS[2i-1] and KEYS[2i] with its three arguments. Renewing needs no memory (but
-- to put back a key that was lost), hence the flag in the first line. Other readers are not
-- touched: who is dead stays dead.
--
-- KEYS[2i-1]     lock       hash: "mode" -> read or write; owner -> read count;
--                           owner:write -> write count
-- KEYS[2i]       timeouts   what the keys of this owner's read holds begin with
-- ARGV[3i-2]     lease_ms   how long the hold lasts from now, in milliseconds
-- ARGV[3i-1]     owner      the hold to keep, "<uuid>:<id>"
-- ARGV[3i]       stands     what of it must be there: r, w or rw; empty: whatever is
--
-- Returns one integer for each entry, then one text for each entry that failed
--          0                renewed: what the owner holds stands for lease_ms more, or for longer
--         -1                gone: the owner has no hold here, or not all of it, or only reads and
--                           all its timeouts are gone; nothing was done
--         -2 + text         failed: no TTL is shorter than before; the text is the server's error
-- Resend  safe: a TTL is only ever raised, and never for a hold that is gone
local LONGEST_MS = 315576000000
local MOST = 5000
local codes, texts = {}, {}

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

local function count_of(text)
  local count = string.match(text, '^[1-9]%d*$') and tonumber(text)
  return count and count <= MOST and count or nil
end

-- How long the longest of the other readers has: for a lock that lost its own TTL.
local function longest_of_others(lock, timeouts, owner)
  local longest = 0
  local fields = redis.pcall('HGETALL', lock)
  if text_of(fields) then return nil, text_of(fields) end
  local own = ':' .. owner .. ':rwlock_timeout'
  local prefix = string.sub(timeouts, 1, -#own - 1)
  for at = 1, #fields, 2 do
    if fields[at] ~= 'mode' and fields[at] ~= owner then
      for i = 1, count_of(fields[at + 1]) or 1 do
        local key = prefix .. ':' .. fields[at] .. ':rwlock_timeout:' .. i
        local left = redis.pcall('PTTL', key)
        if text_of(left) then return nil, text_of(left) end
        longest = math.max(longest, left)
      end
    end
  end
  return longest
end

-- Raises the TTL of a key: what it was (-2: there is no such key), then an error's text if there
-- was one. GT takes a key without a TTL (somebody's PERSIST) for one that lives longest: -1 tells.

local function renew(lock, timeouts, lease_ms, owner, stands)
  lease_ms = tonumber(lease_ms)
  if not lease_ms or lease_ms % 1 ~= 0 or lease_ms < 1 or lease_ms > LONGEST_MS then
    return -2, 'ERR lease_ms is not a whole number from 1 to ' .. LONGEST_MS
  end
  local write = owner .. ':write'
  local fields = redis.pcall('HMGET', lock, owner, write)
  if text_of(fields) then return -2, text_of(fields) end
  local reads, writes = fields[1], fields[2]
  if not reads and (not writes or string.find(stands, 'r', 1, true)) then return -1 end
  if not writes and string.find(stands, 'w', 1, true) then return -1 end
  -- Read first: what may not be read, or is gone, changes nothing. A count that is none is read as
  -- 1: to renew, no count is needed.
  local ttl = redis.pcall('PTTL', lock)
  if text_of(ttl) then return -2, text_of(ttl) end
  local lives, lost, short = writes, {}, {}
  for i = 1, reads and (count_of(reads) or 1) or 0 do
    local key = timeouts .. ':' .. i
    local left = redis.pcall('PTTL', key)
    if text_of(left) then return -2, text_of(left) end
    if left == -2 then
      lost[#lost + 1] = key
    else
      lives = true
      if left < lease_ms then short[#short + 1] = key end
    end
  end
  if not lives then return -1 end
  local lock_ms = lease_ms
  if ttl == -1 and not writes then
    -- Give it its TTL back, or a dead holder would keep the lock for ever: but not one that ends
    -- before other readers do.
    local longest, text = longest_of_others(lock, timeouts, owner)
    if text then return -2, text end
    lock_ms = math.max(lease_ms, longest)
  end
  if ttl < lock_ms then short[#short + 1] = lock end

  for _, key in ipairs(lost) do
    local set = redis.pcall('SET', key, '1', 'PX', lease_ms)
    if text_of(set) then return -2, text_of(set) end
  end
  for _, key in ipairs(short) do
    local raised = redis.pcall('PEXPIRE', key, key == lock and lock_ms or lease_ms)
    if text_of(raised) then
      for _, new in ipairs(lost) do redis.pcall('DEL', new) end
      return -2, text_of(raised)
    end
  end
  return 0
end

local entries = #KEYS / 2
for i = 1, entries do
  local code, text =
    renew(KEYS[2 * i - 1], KEYS[2 * i], ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i])
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
