#!lua flags=allow-oom
-- permit_semaphore/renew — put off the deadline of permits; it is never brought forward
--
-- A list: entry i is KEYS[3i-2] to KEYS[3i] with its three arguments. Renewing needs no memory,
-- hence the flag in the first line. Permits past their deadline are taken back on the way.
--
-- KEYS[3i-2]     semaphore  string: permits that can be taken, decimal; below 0 after an `add`
-- KEYS[3i-1]     deadlines  zset: permit id -> when it ends, milliseconds of the server's clock
-- KEYS[3i]       channel    where waiters of this semaphore listen
-- ARGV[3i-2]     lease_ms   how long the permits last from now, in milliseconds; 0: for ever
-- ARGV[3i-1]     ids        the permits: 16 bytes each, one behind the other
-- ARGV[3i]       publish    PUBLISH or SPUBLISH, as the waiters listen; empty: tell nobody
--
-- Returns one integer for each entry, then one text for each entry that failed
--          0                renewed: the permits stand for lease_ms more, or for longer
--         -1                gone: at least one has ended or was given back; none is renewed
--         -2 + text         failed: nothing was done; the text is the server's error
-- Resend  safe: a deadline is only ever put off, and never of a permit that is gone
local LONGEST_MS, NEVER = 315576000000, 922337203685477
local MOST_AT_ONCE = 1000
local codes, texts = {}, {}

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

local clock = redis.pcall('TIME')
local now = not clock.err and clock[1] * 1000 + math.floor(clock[2] / 1000)

local function each_of(ids)
  local found = {}
  for at = 1, #ids, 16 do
    local id = string.sub(ids, at, at + 15)
    if #id < 16 or #found == MOST_AT_ONCE then return nil end
    found[#found + 1] = id
  end
  return #found > 0 and found or nil
end

-- Takes back what has ended. A failure is no failure of the renewal: the next one to look does it.
local function reclaim(semaphore, deadlines, channel, publish)
  local ended = redis.pcall('ZCOUNT', deadlines, '-inf', now)
  if text_of(ended) or ended == 0 then return end
  local left = redis.pcall('INCRBY', semaphore, ended)
  if text_of(left) then return end
  if text_of(redis.pcall('ZREMRANGEBYSCORE', deadlines, '-inf', now)) then
    redis.pcall('DECRBY', semaphore, ended)
  elseif publish ~= '' and left > 0 then
    redis.pcall(publish, channel, left)
  end
end

local function renew(semaphore, deadlines, channel, lease_ms, ids, publish)
  lease_ms, ids = tonumber(lease_ms), each_of(ids)
  if not lease_ms or lease_ms % 1 ~= 0 or lease_ms < 0 or lease_ms > LONGEST_MS then
    return -2, 'ERR lease_ms is not a whole number from 0 to ' .. LONGEST_MS
  end
  if not ids then return -2, 'ERR ids is not 1 to ' .. MOST_AT_ONCE .. ' times 16 bytes' end
  if not now then return -2, clock.err end
  local scores = redis.pcall('ZMSCORE', deadlines, unpack(ids))
  if text_of(scores) then return -2, text_of(scores) end
  local stored = redis.pcall('GET', semaphore)
  if text_of(stored) then return -2, text_of(stored) end
  if not stored then return -1 end
  local score, members = lease_ms > 0 and now + lease_ms or NEVER, {}
  local standing = true
  for i, id in ipairs(ids) do
    members[#members + 1], members[#members + 2] = score, id
    standing = standing and scores[i] and tonumber(scores[i]) > now
  end
  if standing then
    local put_off = redis.pcall('ZADD', deadlines, 'XX', 'GT', unpack(members))
    if text_of(put_off) then return -2, text_of(put_off) end
  end
  reclaim(semaphore, deadlines, channel, publish)
  if standing then return 0 end
  return -1
end

local entries = #KEYS / 3
for i = 1, entries do
  local code, text = renew(
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
