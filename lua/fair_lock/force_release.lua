#!lua flags=allow-oom
-- fair_lock/force_release — free a lock whoever holds it, or only if a given owner does
--
-- The queue stays, and its first is told. Heads that are gone are removed before: Java's past
-- their deadline, ours that have been silent for 4 s.
--
-- KEYS[1]        lock       hash: owner -> hold count
-- KEYS[2]        queue      list: waiters in order of arrival, Java's among them
-- KEYS[3]        deadlines  zset: waiter -> when Redisson may remove it, in ms of the clock
-- KEYS[4]        beats      hash: waiter of ours -> "arrival last_beat wait", in µs, ms and ms
-- KEYS[5]        channel    what the channels of the waiters begin with: channel:<owner>
-- ARGV[1]        holder     free it only from this owner; empty: from anyone
-- ARGV[2]        publish    PUBLISH or SPUBLISH, as the waiters listen; empty: tell nobody
--
-- Returns one integer, then a text if the entry failed or was not told
--          0 + told         released: the lock is free; `told` subscribers of the first in the
--                           queue got the message "0"
--         -1                gone: nobody (or not that holder) holds it; nothing was done
--         -2 + text         failed: nothing was done; the text is the server's error
--         -4 + text         released, but the first in the queue could not be found or told; the
--                           text is the server's error
-- Resend  not safe without a holder: it frees whoever holds the lock by then
local SILENT_MS = 4000
local CHUNK = 1000
local lock, queue, deadlines, beats, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local holder, publish = ARGV[1], ARGV[2]

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

local clock
local function now_ms()
  clock = clock or redis.pcall('TIME')
  return clock.err and 0 or clock[1] * 1000 + math.floor(clock[2] / 1000)
end

local function read(record)
  local arrival, beat, wait = string.match(record or '', '^(%d+) (%d+) (%d+)$')
  return tonumber(arrival), tonumber(beat), tonumber(wait)
end

-- Ids of ours start at 1 000 000 000. Thread ids of Java are smaller, and what its callers draw
-- themselves (clocks, random numbers) is longer.
local function looks_like_ours(waiter)
  local id = string.match(waiter, ':([1-9]%d*)$')
  return id and #id >= 10 and #id <= 12
end

-- Brings the deadlines of all from a place of the queue on forward.
local function bring_forward(queue, deadlines, start, by)
  if by == 0 then return end
  while true do
    local waiters = redis.pcall('LRANGE', queue, start, start + CHUNK - 1)
    if text_of(waiters) then return text_of(waiters) end
    if #waiters == 0 then return end
    local scores = redis.pcall('ZMSCORE', deadlines, unpack(waiters))
    if text_of(scores) then return text_of(scores) end
    local moved = {}
    for j, score in ipairs(scores) do
      if score then moved[#moved + 1], moved[#moved + 2] = score - by, waiters[j] end
    end
    if #moved > 0 then
      local set = redis.pcall('ZADD', deadlines, 'XX', unpack(moved))
      if text_of(set) then return text_of(set) end
    end
    start = start + CHUNK
  end
end

-- What a waiter that leaves had added to the deadlines behind it, as far as it is still to come.
local function share(score, wait, now)
  return math.min(wait, math.max(0, (tonumber(score) or now) - now))
end

-- Removes heads that are gone. Answers the first that stays (false: nobody), or nil and an error.
local function first(queue, deadlines, beats)
  local owed = 0
  while true do
    local head = redis.pcall('LINDEX', queue, 0)
    if text_of(head) then return nil, text_of(head) end
    local stays = not head
    if head then
      local record = redis.pcall('HGET', beats, head)
      if text_of(record) then return nil, text_of(record) end
      local score = redis.pcall('ZSCORE', deadlines, head)
      if text_of(score) then return nil, text_of(score) end
      local now = now_ms()
      if text_of(clock) then return nil, text_of(clock) end
      local arrival, beat, wait = read(record)
      if arrival then
        stays = now - beat < SILENT_MS
        if not stays then owed = owed + share(score, wait, now + owed) end
      else
        -- One that looks like ours but has no record may have lost it: `acquire` sees to that.
        stays = looks_like_ours(head) or not score or tonumber(score) - owed > now
      end
      if not stays then
        local removed = redis.pcall('ZREM', deadlines, head)
        if text_of(removed) then return nil, text_of(removed) end
        local popped = redis.pcall('LPOP', queue)
        if text_of(popped) then
          if score then redis.pcall('ZADD', deadlines, score, head) end
          return nil, text_of(popped)
        end
      end
    end
    if stays then
      local failed = bring_forward(queue, deadlines, 0, owed)
      if failed then return nil, failed end
      return head
    end
  end
end

-- Tells the first of the queue, on a channel of its own that Redisson derives from its field.
local function tell(queue, deadlines, beats, channel, publish)
  if publish == '' then return 0 end
  local head, failed = first(queue, deadlines, beats)
  if head == nil then return -4, failed end
  if not head then
    -- Deadlines of nobody, left by an evicted queue or the like: they have no TTL.
    redis.pcall('ZREMRANGEBYRANK', deadlines, 0, -1)
    return 0
  end
  local mailbox = channel .. ':' .. head
  local told = redis.pcall(publish, mailbox, '0')
  if text_of(told) then return -4, text_of(told) end
  return told
end

-- HLEN tells a hash from a key of another type, which is not ours to delete.
local fields = redis.pcall('HLEN', lock)
if text_of(fields) then return { -2, text_of(fields) } end
if fields == 0 then return { -1 } end
if holder ~= '' then
  local there = redis.pcall('HEXISTS', lock, holder)
  if text_of(there) then return { -2, text_of(there) } end
  if there == 0 then return { -1 } end
end
local deleted = redis.pcall('DEL', lock)
if text_of(deleted) then return { -2, text_of(deleted) } end
return { tell(queue, deadlines, beats, channel, publish) }
