-- fair_lock/acquire — take locks to a given hold count in order of arrival, or queue for them
--
-- A list: entry i is KEYS[4i-3] to KEYS[4i] with its four arguments. Entries never disturb each
-- other. Heads of the queue that are gone are removed first: Java's past their deadline, ours that
-- have been silent for 4 s. One owner serves from joining to winning.
--
-- KEYS[4i-3]     lock       hash: owner -> hold count
-- KEYS[4i-2]     queue      list: waiters in order of arrival, Java's among them
-- KEYS[4i-1]     deadlines  zset: waiter -> when Redisson may remove it, in ms of the clock
-- KEYS[4i]       beats      hash: waiter of ours -> "arrival last_beat wait", in µs, ms and ms
-- ARGV[4i-3]     lease_ms   how long the hold lasts unless renewed, in milliseconds
-- ARGV[4i-2]     owner      the hold that asks, "<uuid>:<id>"
-- ARGV[4i-1]     count      the hold count to reach: 1 takes the lock, more re-enters it
-- ARGV[4i]       wait_ms    what a place in the queue adds to the deadlines behind it; 0: try
--                           once, and do not join the queue
--
-- Returns one integer for each entry, then one text for each entry that is refused or failed
--          0                acquired: the owner holds the lock `count` times, and queues no more
--         -1                gone: a re-entry of a hold that is no longer there; nothing was done
--         -2 + text         failed: this entry could not be tried; the text is the server's error
--         -3 + text         refused: another owner (the text) has it and it stands without a TTL,
--                           or it is free (no text) and the first of the queue has no deadline
--          1 + ms + text    refused: another owner (the text) has it for ms more milliseconds, or
--                           it is free (no text) and the first of the queue may stay for ms more
-- Resend  safe: the count to reach is part of the request, a TTL only ever grows, and who queues
--         keeps its place; none may follow the release of its owner
local LONGEST_MS, USUAL_WAIT_MS = 315576000000, 300000
local SILENT_MS = 4000
-- Less than fair_lock/renew sets, which tells from the TTL when it last looked after the queue.
local JOINED_TTL_MS = 59000
local CHUNK = 1000
local codes, texts = {}, {}

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

local clock
local function micros()
  clock = clock or redis.pcall('TIME')
  return clock.err and 0 or clock[1] * 1000000 + clock[2]
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

-- Writes that somebody is alive. The hash never stands without a TTL.
local function note(beats, waiter, arrival, wait)
  local beat = math.floor(micros() / 1000)
  local record = string.format('%.0f %.0f %.0f', arrival, beat, wait)
  local before = redis.pcall('HGET', beats, waiter)
  local noted = redis.pcall('HSET', beats, waiter, record)
  if text_of(noted) then return text_of(noted) end
  local ttl = redis.pcall('PTTL', beats)
  local kept = ttl
  if not text_of(ttl) and ttl < JOINED_TTL_MS - SILENT_MS then
    kept = redis.pcall('PEXPIRE', beats, JOINED_TTL_MS)
  end
  if not text_of(kept) then return end
  if before then
    redis.pcall('HSET', beats, waiter, before)
  else
    redis.pcall('HDEL', beats, waiter)
  end
  return text_of(kept)
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

-- Removes heads that are gone. Answers the first that stays (false: nobody) and how long it may
-- stay (nil: it has no deadline), or nil and an error.
local function first(queue, deadlines, beats, owner, wait_ms)
  local owed = 0
  while true do
    local head = redis.pcall('LINDEX', queue, 0)
    if text_of(head) then return nil, text_of(head) end
    local stays, left = not head or head == owner, nil
    if not stays then
      local record = redis.pcall('HGET', beats, head)
      if text_of(record) then return nil, text_of(record) end
      local score = redis.pcall('ZSCORE', deadlines, head)
      if text_of(score) then return nil, text_of(score) end
      local now = math.floor(micros() / 1000)
      if text_of(clock) then return nil, text_of(clock) end
      local arrival, beat, wait = read(record)
      if arrival or looks_like_ours(head) then
        -- Its record was lost, or the clock went back: it has as long as any to show itself.
        if not arrival or beat > now then
          local failed = note(beats, head, arrival or 0, wait or wait_ms)
          if failed then return nil, failed end
          beat = now
        end
        left = beat + SILENT_MS - now
        if left <= 0 then owed = owed + share(score, wait or wait_ms, now + owed) end
      elseif score then
        left = math.ceil(tonumber(score) - owed - now)
      end
      stays = not left or left > 0
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
      return head, left and math.min(left, LONGEST_MS)
    end
  end
end

-- Puts an owner at the end of the queue, or notes that it is still there.
local function join(queue, deadlines, beats, owner, wait_ms, ttl, nth)
  local now = math.floor(micros() / 1000)
  if text_of(clock) then return text_of(clock) end
  local record = redis.pcall('HGET', beats, owner)
  if text_of(record) then return text_of(record) end
  local arrival, beat = read(record)
  -- Out of the queue, it gets a place by its next beat, which looks when the last one was.
  if arrival and now - beat < SILENT_MS then return note(beats, owner, arrival, wait_ms) end
  local place = redis.pcall('LPOS', queue, owner)
  if text_of(place) then return text_of(place) end
  if place and arrival then return note(beats, owner, arrival, wait_ms) end
  if place or arrival then return end

  local length = redis.pcall('LLEN', queue)
  if text_of(length) then return text_of(length) end
  local last = redis.pcall('LINDEX', queue, -1)
  if text_of(last) then return text_of(last) end
  local score = last and redis.pcall('ZSCORE', deadlines, last)
  if text_of(score) then return text_of(score) end
  score = (tonumber(score) or now + math.max(0, ttl)) + wait_ms
  -- Never so early that those ahead, who take their waits off it as they go, take it all.
  score = math.max(score, now + wait_ms * (1 + length))
  -- Entries of one list arrive one after the other.
  local failed = note(beats, owner, micros() + nth, wait_ms)
  if failed then return failed end
  local added = redis.pcall('ZADD', deadlines, score, owner)
  if not text_of(added) then
    local pushed = redis.pcall('RPUSH', queue, owner)
    if not text_of(pushed) then return end
    redis.pcall('ZREM', deadlines, owner)
    added = pushed
  end
  redis.pcall('HDEL', beats, owner)
  return text_of(added)
end

-- Raises the count. Whoever takes the lock from the queue leaves the queue.
local function take(lock, queue, deadlines, beats, lease_ms, owner, wait_ms, ttl, step, held, head)
  local undo = {}
  local function failed(reply, ...)
    if not text_of(reply) then
      if ... then undo[#undo + 1] = { ... } end
      return false
    end
    for j = #undo, 1, -1 do
      if type(undo[j]) == 'function' then undo[j]() else redis.pcall(unpack(undo[j])) end
    end
    return true
  end

  if step ~= 0 then
    local moved = redis.pcall('HINCRBY', lock, owner, step)
    if held and failed(moved, 'HINCRBY', lock, owner, -step) then return -2, text_of(moved) end
    if not held and failed(moved, 'DEL', lock) then return -2, text_of(moved) end
  end
  if ttl < lease_ms then
    -- Without its TTL the lock would stand for ever: what was changed is put back.
    local kept = redis.pcall('PEXPIRE', lock, lease_ms)
    if failed(kept) then return -2, text_of(kept) end
  end
  if held or not head and wait_ms == 0 then return 0 end

  local record = redis.pcall('HGET', beats, owner)
  if failed(record) then return -2, text_of(record) end
  if head then
    local score = redis.pcall('ZSCORE', deadlines, owner)
    if failed(score) then return -2, text_of(score) end
    local _, _, wait = read(record)
    local by = share(score, wait or wait_ms, math.floor(micros() / 1000))
    local unmoved = bring_forward(queue, deadlines, 1, by)
    if unmoved and failed({ err = unmoved }) then return -2, unmoved end
    undo[#undo + 1] = function() bring_forward(queue, deadlines, 1, -by) end
    if score then
      local removed = redis.pcall('ZREM', deadlines, owner)
      if failed(removed, 'ZADD', deadlines, score, owner) then return -2, text_of(removed) end
    end
    local popped = redis.pcall('LPOP', queue)
    if failed(popped, 'LPUSH', queue, owner) then return -2, text_of(popped) end
  end
  if record then
    local forgotten = redis.pcall('HDEL', beats, owner)
    if failed(forgotten) then return -2, text_of(forgotten) end
  end
  return 0
end

local function acquire(lock, queue, deadlines, beats, lease_ms, owner, count, wait_ms, nth)
  lease_ms, count, wait_ms = tonumber(lease_ms), tonumber(count), tonumber(wait_ms)
  if not lease_ms or lease_ms % 1 ~= 0 or lease_ms < 1 or lease_ms > LONGEST_MS then
    return -2, 'ERR lease_ms is not a whole number from 1 to ' .. LONGEST_MS
  end
  if not count or count % 1 ~= 0 or count < 1 then
    return -2, 'ERR count is not a whole number above 0'
  end
  if not wait_ms or wait_ms % 1 ~= 0 or wait_ms < 0 or wait_ms > LONGEST_MS then
    return -2, 'ERR wait_ms is not a whole number from 0 to ' .. LONGEST_MS
  end
  local ttl = redis.pcall('PTTL', lock)
  if text_of(ttl) then return -2, text_of(ttl) end
  local held
  if ttl ~= -2 then
    held = redis.pcall('HGET', lock, owner)
    if text_of(held) then return -2, text_of(held) end
  end
  if held then
    local now = tonumber(held)
    if not now or now % 1 ~= 0 or math.abs(now) > 2 ^ 53 then
      return -2, 'ERR hold count is not an integer'
    end
    return take(lock, queue, deadlines, beats, lease_ms, owner, wait_ms, ttl, count - now, true)
  end
  if count > 1 then return -1 end

  local usual = wait_ms > 0 and wait_ms or USUAL_WAIT_MS
  local head, left = first(queue, deadlines, beats, owner, usual)
  if head == nil then return -2, left end
  if ttl == -2 and (not head or head == owner) then
    return take(lock, queue, deadlines, beats, lease_ms, owner, wait_ms, ttl, 1, false, head)
  end
  if wait_ms > 0 then
    local failed = join(queue, deadlines, beats, owner, wait_ms, ttl, nth)
    if failed then return -2, failed end
  end
  if ttl == -2 then
    if not left then return -3, '' end
    return 1 + left, ''
  end
  local holder = redis.pcall('HRANDFIELD', lock)
  if type(holder) ~= 'string' then holder = '' end
  if ttl < 0 then return -3, holder end
  return 1 + ttl, holder
end

local entries = #KEYS / 4
for i = 1, entries do
  local code, text = acquire(
    KEYS[4 * i - 3], KEYS[4 * i - 2], KEYS[4 * i - 1], KEYS[4 * i],
    ARGV[4 * i - 3], ARGV[4 * i - 2], ARGV[4 * i - 1], ARGV[4 * i], i
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
