-- read_write_lock/read_acquire — take read holds to a given count, or say who writes
--
-- A list: entry i is KEYS[2i-1] and KEYS[2i] with its four arguments. Entries never disturb each
-- other. Readers share the lock; the owner of the write hold may read as well.
--
-- KEYS[2i-1]     lock       hash: "mode" -> read or write; owner -> read count;
--                           owner:write -> write count
-- KEYS[2i]       timeouts   what the keys of this owner's read holds begin with: timeouts:1 to
--                           timeouts:count stand as long as its lease
-- ARGV[4i-3]     lease_ms   how long the hold lasts unless renewed, in milliseconds
-- ARGV[4i-2]     owner      the hold that asks, "<uuid>:<id>"
-- ARGV[4i-1]     count      the read count to reach: 1 takes the lock, more re-enters it
-- ARGV[4i]       stands     what the owner must have already: r, w, rw, or empty for a new hold
--
-- Returns one integer for each entry, then one text for each entry that is refused or failed
--          0                acquired: the owner holds the lock for reading `count` times
--         -1                gone: a re-entry of a read hold that is no longer there, or whose
--                           timeouts are all gone, or by a writer that is none any more; nothing
--                           was done
--         -2 + text         failed: this entry could not be tried; the text is the server's error
--         -3 + text         refused: another owner (the text) writes, and it stands without a TTL
--          1 + ttl + text   refused: another owner (the text) writes for ttl more milliseconds
-- Resend  safe: the count to reach is part of the request, and a TTL only ever grows
local LONGEST_MS = 315576000000
local MOST = 5000
local codes, texts = {}, {}

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

local function count_of(text)
  local count = string.match(text, '^[1-9]%d*$') and tonumber(text)
  return count and count <= MOST and count or nil
end

local function refused(lock, ttl)
  -- Two of the fields, for one of them may be the mode.
  local fields = redis.pcall('HRANDFIELD', lock, 2)
  local holder = fields[1] == 'mode' and fields[2] or fields[1]
  holder = holder and holder ~= 'mode' and string.gsub(holder, ':write$', '') or ''
  if ttl < 0 then return -3, holder end
  return 1 + ttl, holder
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

local function acquire(lock, timeouts, lease_ms, owner, count, stands)
  lease_ms, count = tonumber(lease_ms), tonumber(count)
  if not lease_ms or lease_ms % 1 ~= 0 or lease_ms < 1 or lease_ms > LONGEST_MS then
    return -2, 'ERR lease_ms is not a whole number from 1 to ' .. LONGEST_MS
  end
  if not count or count % 1 ~= 0 or count < 1 or count > MOST then
    return -2, 'ERR count is not a whole number from 1 to ' .. MOST
  end
  if owner == 'mode' or string.sub(owner, -6) == ':write' then
    return -2, 'ERR owner is the name of another field'
  end
  local ttl = redis.pcall('PTTL', lock)
  if text_of(ttl) then return -2, text_of(ttl) end
  local mode, held, writes
  if ttl ~= -2 then
    local write = owner .. ':write'
    local fields = redis.pcall('HMGET', lock, 'mode', owner, write)
    if text_of(fields) then return -2, text_of(fields) end
    mode, held, writes = fields[1], fields[2], fields[3]
    if mode ~= 'read' and mode ~= 'write' then
      return -2, 'WRONGTYPE the hash is no read/write lock: its mode is neither read nor write'
    end
    if mode == 'write' and not writes then
      if count > 1 or stands ~= '' then return -1 end
      return refused(lock, ttl)
    end
  end
  if not held and (count > 1 or string.find(stands, 'r', 1, true)) then return -1 end
  -- Else the first read of a writer that lost its hold would become a hold of its own.
  if not writes and string.find(stands, 'w', 1, true) then return -1 end
  local now = held and count_of(held) or 0
  if held and now == 0 then
    return -2, 'ERR hold count is not an integer from 1 to ' .. MOST
  end

  -- Every one of its keys gets the whole lease: whichever a release removes, the rest say how long
  -- this reader lives. Redisson takes a reader without such a key for dead. One that also writes
  -- cannot be: nobody else can have come in.
  local missing, short, lives = {}, {}, mode == 'write' or count == 1
  for i = 1, count do
    local key = timeouts .. ':' .. i
    local left = held and redis.pcall('PTTL', key) or -2
    if text_of(left) then return -2, text_of(left) end
    lives = lives or i <= now and left ~= -2
    if left == -2 then
      missing[#missing + 1] = key
    elseif left < lease_ms then
      short[#short + 1] = key
    end
  end
  if not lives then return -1 end
  local lock_ms = lease_ms
  if ttl == -1 and mode == 'read' then
    local longest, text = longest_of_others(lock, timeouts, owner)
    if text then return -2, text end
    lock_ms = math.max(lease_ms, longest)
  end

  -- What can be put back is done first. A TTL cannot be; but who may raise one may raise all.
  local made = {}
  local function undo()
    for _, key in ipairs(made) do redis.pcall('DEL', key) end
    if not mode then
      redis.pcall('HDEL', lock, 'mode', owner)
    elseif held then
      redis.pcall('HSET', lock, owner, held)
    else
      redis.pcall('HDEL', lock, owner)
    end
  end
  for _, key in ipairs(short) do
    -- GET makes a key of another type an error.
    local looked = redis.pcall('SET', key, '1', 'KEEPTTL', 'GET')
    if text_of(looked) then return -2, text_of(looked) end
  end
  for _, key in ipairs(missing) do
    local set = redis.pcall('SET', key, '1', 'PX', lease_ms, 'GET')
    if text_of(set) then
      for _, new in ipairs(made) do redis.pcall('DEL', new) end
      return -2, text_of(set)
    end
    if not set then made[#made + 1] = key end
  end
  local counted = 0
  if not mode then
    counted = redis.pcall('HSET', lock, 'mode', 'read', owner, count)
  elseif now ~= count then
    counted = redis.pcall('HSET', lock, owner, count)
  end
  if not text_of(counted) and ttl < lock_ms then
    counted = redis.pcall('PEXPIRE', lock, lock_ms)
  end
  for _, key in ipairs(short) do
    if not text_of(counted) then counted = redis.pcall('PEXPIRE', key, lease_ms) end
  end
  if text_of(counted) then
    undo()
    return -2, text_of(counted)
  end
  for i = count + 1, now do
    local key = timeouts .. ':' .. i
    redis.pcall('DEL', key)
  end
  return 0
end

local entries = #KEYS / 2
for i = 1, entries do
  local lock, timeouts = KEYS[2 * i - 1], KEYS[2 * i]
  local lease_ms, owner = ARGV[4 * i - 3], ARGV[4 * i - 2]
  local code, text = acquire(lock, timeouts, lease_ms, owner, ARGV[4 * i - 1], ARGV[4 * i])
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
