#!lua flags=allow-oom
-- fair_lock/renew — keep holds alive, and places in the queue; a TTL only ever grows
--
-- A list: entry i is KEYS[5i-4] to KEYS[5i] with its four arguments. For a holder it is as
-- lock/renew. For a waiter it is its beat: send one a second, of all waiters in one list. Once for
-- each lock of the list, and at most twice a second for all clients, the queue is then put right:
--
-- * deadlines of living waiters of ours are raised to wait x (1 + waiters ahead) from now, and
--   those behind move along, so that Redisson never removes them while they wait;
-- * waiters of ours without a beat for 4 s are removed, wherever they are, and those behind get
--   the time back; so are heads of Java's past their deadline;
-- * a living waiter of ours that Redisson removed gets its place at the front back, behind ours of
--   earlier arrival; one that had been silent for 4 s queues anew, before ours of later arrival;
-- * if the lock is free, the first in the queue is told.
--
-- Renewing needs no memory and a beat next to none, hence the flag in the first line.
--
-- KEYS[5i-4]     lock       hash: owner -> hold count
-- KEYS[5i-3]     queue      list: waiters in order of arrival, Java's among them
-- KEYS[5i-2]     deadlines  zset: waiter -> when Redisson may remove it, in ms of the clock
-- KEYS[5i-1]     beats      hash: waiter of ours -> "arrival last_beat wait", in µs, ms and ms
-- KEYS[5i]       channel    what the channels of the waiters begin with: channel:<owner>
-- ARGV[4i-3]     lease_ms   how long a hold lasts from now, in milliseconds
-- ARGV[4i-2]     owner      the hold or the waiter to keep, "<uuid>:<id>"
-- ARGV[4i-1]     wait_ms    what a place in the queue adds to the deadlines behind it; 0:
--                           300 000, as Redisson does
-- ARGV[4i]       publish    PUBLISH or SPUBLISH, as the waiters listen; empty: tell nobody
--
-- Returns one integer for each entry, then one text for each entry that failed
--          0                renewed: the lock stands for lease_ms more, or for longer; or the
--                           owner still queues
--         -1                gone: the owner has no hold here and does not queue; nothing was done
--         -2 + text         failed: the hold was not renewed, or the queue not put right; the text
--                           is the server's error
-- Resend  safe: a TTL is only ever raised, and never for a hold that is gone; a beat is noted for
--         those only who queue
local LONGEST_MS, USUAL_WAIT_MS = 315576000000, 300000
local SILENT_MS, RECORD_TTL_MS = 4000, 60000
local PAUSE_MS = 500
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

local function write(arrival, beat, wait)
  return string.format('%.0f %.0f %.0f', arrival, beat, wait)
end

-- Ids of ours start at 1 000 000 000. Thread ids of Java are smaller, and what its callers draw
-- themselves (clocks, random numbers) is longer.
local function looks_like_ours(waiter)
  local id = string.match(waiter, ':([1-9]%d*)$')
  return id and #id >= 10 and #id <= 12
end

-- Sends a command with any number of words, so many at a time.
local function in_chunks(words, ...)
  local front = { ... }
  for from = 1, #words, CHUNK do
    local command = { unpack(front) }
    for at = from, math.min(#words, from + CHUNK - 1) do command[#command + 1] = words[at] end
    local failed = text_of(redis.pcall(unpack(command)))
    if failed then return failed end
  end
end

-- What was read of a queue, as it is to become.
local function look(group)
  local waiters = redis.pcall('LRANGE', group.queue, 0, -1)
  if text_of(waiters) then return nil, text_of(waiters) end
  local scored = redis.pcall('ZRANGE', group.deadlines, 0, -1, 'WITHSCORES')
  if text_of(scored) then return nil, text_of(scored) end
  local noted = redis.pcall('HGETALL', group.beats)
  if text_of(noted) then return nil, text_of(noted) end

  local now = now_ms()
  local seen = { order = {}, scores = {}, ours = {}, again = {}, news = {}, forgotten = {} }
  for j = 1, #scored, 2 do seen.scores[scored[j]] = tonumber(scored[j + 1]) end
  for j = 1, #noted, 2 do
    local arrival, beat, wait = read(noted[j + 1])
    if not arrival then
      seen.forgotten[#seen.forgotten + 1] = noted[j]
    else
      -- A beat in the future is of a clock that went back since.
      seen.ours[noted[j]] =
        { arrival = arrival, beat = math.min(beat, now), wait = wait, is_new = beat > now }
    end
  end
  local is_queued, latest = {}, 0
  for _, waiter in ipairs(waiters) do
    if is_queued[waiter] then
      seen.again[#seen.again + 1] = waiter
    else
      is_queued[waiter] = true
      seen.order[#seen.order + 1] = waiter
      local one = seen.ours[waiter]
      if not one and looks_like_ours(waiter) then
        -- Its record was lost: it has as long as any to show itself.
        one = { arrival = 0, beat = now, wait = group.wait_ms, is_new = true }
        seen.ours[waiter] = one
      end
      if one and one.arrival == 0 then
        one.arrival, one.is_new = math.max(1, latest), true
      end
      latest = one and math.max(latest, one.arrival) or latest
    end
  end
  seen.missing = {}
  for waiter, one in pairs(seen.ours) do
    if not is_queued[waiter] then
      local silent = now - one.beat
      if silent < SILENT_MS then
        seen.missing[#seen.missing + 1] = waiter
      elseif silent >= RECORD_TTL_MS then
        seen.forgotten[#seen.forgotten + 1] = waiter
        seen.ours[waiter] = nil
      end
    end
    if one.is_new then
      seen.news[#seen.news + 1] = waiter
      seen.news[#seen.news + 1] = write(one.arrival, one.beat, one.wait)
    end
  end
  return seen
end

-- Gives living waiters that are not in the queue a place.
local function restore(group, seen)
  local function is_earlier(a, b)
    local one, other = seen.ours[a].arrival, seen.ours[b].arrival
    if one ~= other then return one < other end
    return #a < #b or #a == #b and a < b
  end
  table.sort(seen.missing, is_earlier)
  for _, waiter in ipairs(seen.missing) do
    local place = #seen.order
    if group.late[waiter] then
      -- Those of Java's that it was behind of are not known any more: it must not pass them.
      for at, other in ipairs(seen.order) do
        if seen.ours[other] and is_earlier(waiter, other) then
          place = at - 1
          break
        end
      end
    else
      while place > 0 do
        local other = seen.order[place]
        if seen.ours[other] and is_earlier(other, waiter) then break end
        place = place - 1
      end
    end
    local put
    if place == 0 then
      put = redis.pcall('LPUSH', group.queue, waiter)
    else
      put = redis.pcall('LINSERT', group.queue, 'AFTER', seen.order[place], waiter)
    end
    if text_of(put) then return text_of(put) end
    table.insert(seen.order, place + 1, waiter)
    seen.ours[waiter].is_back = true
  end
end

-- Walks the queue from its head, with what those passed so far add to the deadlines behind them.
local function plan(group, seen)
  local now, added, ahead, last = now_ms(), 0, 0, now_ms()
  local dead, strays, moved, first, keep = {}, {}, {}, nil, {}
  for _, waiter in ipairs(seen.order) do
    local one, score = seen.ours[waiter], seen.scores[waiter]
    local due = score and score + added
    if one and now - one.beat >= SILENT_MS then
      dead[#dead + 1] = waiter
      added = added - math.min(one.wait, math.max(0, (due or now) - now))
    elseif not one and ahead == 0 and due and due <= now then
      dead[#dead + 1] = waiter
    else
      if one then
        local target = now + one.wait * (1 + ahead)
        if one.is_back then
          due, added = math.max(target, due or target), added + one.wait
        elseif not due then
          due = target
        elseif due < target then
          due, added = target, added + target - due
        end
      elseif not due then
        -- Redisson would wait for ever for one without a deadline.
        due = math.max(last, now) + group.wait_ms
      end
      if due ~= score then moved[#moved + 1], moved[#moved + 2] = due, waiter end
      first, last, ahead = first or waiter, due, ahead + 1
      keep[waiter] = true
    end
  end
  for waiter in pairs(seen.scores) do
    if not keep[waiter] then strays[#strays + 1] = waiter end
  end
  return dead, strays, moved, first
end

-- Puts the queue of a lock right. A part of it that fails is left to the next.
local function put_right(group)
  local seen, failed = look(group)
  if not seen then return failed end
  failed = restore(group, seen)
  if failed then return failed end
  local dead, strays, moved, first = plan(group, seen)
  for _, waiter in ipairs(seen.again) do
    local removed = redis.pcall('LREM', group.queue, -1, waiter)
    if text_of(removed) then return text_of(removed) end
  end
  for _, waiter in ipairs(dead) do
    local removed = redis.pcall('LREM', group.queue, 1, waiter)
    if text_of(removed) then return text_of(removed) end
  end
  failed = in_chunks(moved, 'ZADD', group.deadlines)
    or in_chunks(strays, 'ZREM', group.deadlines)
    or in_chunks(seen.news, 'HSET', group.beats)
    or in_chunks(seen.forgotten, 'HDEL', group.beats)
  if failed then return failed end
  if first and group.publish ~= '' and redis.pcall('EXISTS', group.lock) == 0 then
    -- Redisson derives the channel of a waiter from its field. Whether it hears changes nothing.
    local mailbox = group.channel .. ':' .. first
    redis.pcall(group.publish, mailbox, '0')
  end
end

local function renew(lock, lease_ms)
  local raised = redis.pcall('PEXPIRE', lock, lease_ms, 'GT')
  if text_of(raised) then return -2, text_of(raised) end
  -- GT takes a key without a TTL (somebody's PERSIST) for one that lives longest: give it its TTL
  -- back, or a dead holder would keep the lock for ever.
  if raised == 0 then
    local ttl = redis.pcall('PTTL', lock)
    if text_of(ttl) then return -2, text_of(ttl) end
    if ttl == -1 then
      raised = redis.pcall('PEXPIRE', lock, lease_ms)
      if text_of(raised) then return -2, text_of(raised) end
    end
  end
  return 0
end

-- Notes that these waiters of a lock live, and then, unless somebody just did, puts its queue
-- right. Answers for each: whether it queues.
local function beat(group, waiters)
  local records = redis.pcall('HMGET', group.beats, unpack(waiters))
  if text_of(records) then return nil, text_of(records) end
  local scores = redis.pcall('ZMSCORE', group.deadlines, unpack(waiters))
  if text_of(scores) then return nil, text_of(scores) end
  local now = now_ms()
  if text_of(clock) then return nil, text_of(clock) end
  local queues, news, is_odd = {}, {}, false
  for j, waiter in ipairs(waiters) do
    local arrival, last = read(records[j])
    if arrival then
      group.late[waiter] = now - last >= SILENT_MS
    else
      local place = redis.pcall('LPOS', group.queue, waiter)
      if text_of(place) then return nil, text_of(place) end
      arrival = place and 0
    end
    if arrival then
      queues[waiter] = true
      is_odd = is_odd or arrival == 0 or not scores[j]
      news[#news + 1] = waiter
      news[#news + 1] = write(arrival, now, group.waits[waiter])
    end
  end
  if #news == 0 then return queues end
  local ttl = redis.pcall('PTTL', group.beats)
  if text_of(ttl) then return nil, text_of(ttl) end
  local failed = in_chunks(news, 'HSET', group.beats)
  if failed then return nil, failed end
  -- The TTL tells when this was last done: joining sets a shorter one.
  if not is_odd and ttl > RECORD_TTL_MS - PAUSE_MS and ttl <= RECORD_TTL_MS then return queues end
  local kept = redis.pcall('PEXPIRE', group.beats, RECORD_TTL_MS)
  if text_of(kept) then
    if ttl < 0 then redis.pcall('HDEL', group.beats, unpack(waiters)) end
    return nil, text_of(kept)
  end
  failed = put_right(group)
  if failed then return nil, failed end
  return queues
end

-- The entries of one lock together, so that its queue is gone through once.
local function renew_all(group)
  local counts = redis.pcall('HMGET', group.lock, unpack(group.owners))
  local waiters = {}
  for j, owner in ipairs(group.owners) do
    local at = group.entries[j]
    if text_of(counts) then
      codes[at], texts[at] = -2, text_of(counts)
    elseif counts[j] then
      codes[at], texts[at] = renew(group.lock, group.leases[j])
    else
      waiters[#waiters + 1] = owner
    end
  end
  if #waiters == 0 then return end
  local queues, failed = beat(group, waiters)
  for j, owner in ipairs(group.owners) do
    local at = group.entries[j]
    if not codes[at] then
      if failed then
        codes[at], texts[at] = -2, failed
      else
        codes[at] = queues[owner] and 0 or -1
      end
    end
  end
end

local entries, groups, open = #KEYS / 5, {}, {}
for i = 1, entries do
  local lease_ms, owner = tonumber(ARGV[4 * i - 3]), ARGV[4 * i - 2]
  local wait_ms = tonumber(ARGV[4 * i - 1])
  local lock = KEYS[5 * i - 4]
  if not lease_ms or lease_ms % 1 ~= 0 or lease_ms < 1 or lease_ms > LONGEST_MS then
    codes[i], texts[i] = -2, 'ERR lease_ms is not a whole number from 1 to ' .. LONGEST_MS
  elseif not wait_ms or wait_ms % 1 ~= 0 or wait_ms < 0 or wait_ms > LONGEST_MS then
    codes[i], texts[i] = -2, 'ERR wait_ms is not a whole number from 0 to ' .. LONGEST_MS
  else
    if wait_ms == 0 then wait_ms = USUAL_WAIT_MS end
    local group = open[lock]
    if not group or #group.owners == CHUNK then
      group = {
        lock = lock, queue = KEYS[5 * i - 3], deadlines = KEYS[5 * i - 2], beats = KEYS[5 * i - 1],
        channel = KEYS[5 * i], publish = ARGV[4 * i], wait_ms = wait_ms,
        owners = {}, entries = {}, leases = {}, waits = {}, late = {},
      }
      groups[#groups + 1], open[lock] = group, group
    end
    local j = #group.owners + 1
    group.owners[j], group.entries[j], group.leases[j] = owner, i, lease_ms
    group.waits[owner] = wait_ms
  end
end
for _, group in ipairs(groups) do renew_all(group) end

-- A read-only server has changed nothing: say it as an error of the whole list, so that the client
-- looks for the primary.
if codes[1] == -2 and string.sub(texts[1], 1, 8) == 'READONLY' then
  return redis.error_reply(texts[1])
end
local place = entries
for i = 1, entries do
  if texts[i] then
    place = place + 1
    codes[place] = texts[i]
  end
end
return codes
