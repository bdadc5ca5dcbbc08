#!lua flags=allow-oom
-- fair_lock/release — give holds back down to a given count, or a place in the queue
--
-- A list: entry i is KEYS[5i-4] to KEYS[5i] with its three arguments. Who is first in the queue of
-- a lock that is free is told so, after heads that are gone were removed: Java's past their
-- deadline, ours that have been silent for 4 s. Releasing needs no memory, hence the flag in the
-- first line.
--
-- KEYS[5i-4]     lock       hash: owner -> hold count
-- KEYS[5i-3]     queue      list: waiters in order of arrival, Java's among them
-- KEYS[5i-2]     deadlines  zset: waiter -> when Redisson may remove it, in ms of the clock
-- KEYS[5i-1]     beats      hash: waiter of ours -> "arrival last_beat wait", in µs, ms and ms
-- KEYS[5i]       channel    what the channels of the waiters begin with: channel:<owner>
-- ARGV[3i-2]     owner      the hold that gives back or the waiter that gives up, "<uuid>:<id>"
-- ARGV[3i-1]     count      the hold count to keep: 0 gives the lock back, whatever was held
-- ARGV[3i]       publish    PUBLISH or SPUBLISH, as the waiters listen; empty: tell nobody
--
-- Returns one integer for each entry, then one text for each entry that failed or was not told
--          0 + told         released: the owner has neither the lock nor a place in its queue now;
--                           `told` subscribers of the first in the queue got the message "0"
--         -1                gone: the owner has no hold here and does not queue; nothing was done
--         -2 + text         failed: nothing was done; the text is the server's error
--         -3                kept: the owner now holds the lock `count` times
--         -4 + text         released, but the first in the queue could not be found or told; the
--                           text is the server's error
-- Resend  safe: the count to keep is part of the request; the resend of a release to 0 says gone
local SILENT_MS, USUAL_WAIT_MS, JOINED_TTL_MS = 4000, 300000, 59000
local CHUNK = 1000
local codes, texts = {}, {}

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

-- Takes an owner out of the queue. Answers whether it was the first, nil if it did not queue.
local function leave(queue, deadlines, beats, owner)
  local record = redis.pcall('HGET', beats, owner)
  if text_of(record) then return nil, text_of(record) end
  local place = redis.pcall('LPOS', queue, owner)
  if text_of(place) then return nil, text_of(place) end
  if not record and not place then return nil end

  if not place then
    local forgotten = redis.pcall('HDEL', beats, owner)
    return false, text_of(forgotten)
  end
  local score = redis.pcall('ZSCORE', deadlines, owner)
  if text_of(score) then return nil, text_of(score) end
  local _, _, wait = read(record)
  local by = share(score, wait or USUAL_WAIT_MS, now_ms())
  local failed = bring_forward(queue, deadlines, place + 1, by)
  if failed then return nil, failed end
  local undo = { function() bring_forward(queue, deadlines, place + 1, -by) end }
  if score then
    failed = text_of(redis.pcall('ZREM', deadlines, owner))
    undo[2] = function() redis.pcall('ZADD', deadlines, score, owner) end
  end
  if not failed and record then
    failed = text_of(redis.pcall('HDEL', beats, owner))
    undo[#undo + 1] = function()
      redis.pcall('HSET', beats, owner, record)
      redis.pcall('PEXPIRE', beats, JOINED_TTL_MS)
    end
  end
  failed = failed or text_of(redis.pcall('LREM', queue, 0, owner))
  if failed then
    for j = #undo, 1, -1 do undo[j]() end
    return nil, failed
  end
  return place == 0
end

local function release(lock, queue, deadlines, beats, channel, owner, count, publish)
  count = tonumber(count)
  if not count or count % 1 ~= 0 or count < 0 then
    return -2, 'ERR count is not a whole number'
  end
  if count > 0 then
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
  local deleted = redis.pcall('HDEL', lock, owner)
  if text_of(deleted) then return -2, text_of(deleted) end
  if deleted == 0 then
    local was_first, failed = leave(queue, deadlines, beats, owner)
    if failed then return -2, failed end
    if was_first == nil then return -1 end
    if not was_first or redis.pcall('EXISTS', lock) ~= 0 then return 0 end
  end
  return tell(queue, deadlines, beats, channel, publish)
end

local entries = #KEYS / 5
for i = 1, entries do
  local code, text = release(
    KEYS[5 * i - 4], KEYS[5 * i - 3], KEYS[5 * i - 2], KEYS[5 * i - 1], KEYS[5 * i],
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
