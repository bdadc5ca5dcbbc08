-- fenced_lock/acquire — take locks to a given hold count, each with a token that only ever rises
--
-- A list: entry i is KEYS[2i-1] and KEYS[2i] with its four arguments. Entries never disturb each
-- other.
--
-- KEYS[2i-1]     lock            hash: owner -> hold count
-- KEYS[2i]       token           string: the last token that was drawn
-- ARGV[4i-3]     lease_ms        how long the hold lasts unless renewed, in milliseconds
-- ARGV[4i-2]     owner           the hold that asks, "<uuid>:<id>"
-- ARGV[4i-1]     count           the hold count to reach: 1 takes the lock, more re-enters it
-- ARGV[4i]       token_ttl_ms    how long the token key stays after a grant; 0: for ever
--
-- Returns one integer for each entry, then one text for each entry but those that are gone
--          0 + token        acquired: the owner holds the lock `count` times, with this token
--         -1                gone: a re-entry of a hold that is no longer there; nothing was done
--         -2 + text         failed: this entry could not be tried; the text is the server's error
--         -3 + text         refused: another owner (the text) has it, and it stands without a TTL
--          1 + ttl + text   refused: another owner (the text) has it for ttl more milliseconds
-- Resend  safe: a hold that is there answers the token it has, and draws none
--
-- A grant draws max(last token + 1, the server's clock in microseconds). So tokens rise by the key
-- while it stands, and by the clock where it was lost. That is why the key may expire: it lives
-- until the clock has passed its token, so what is drawn later is higher. A token can repeat only
-- where the key is gone and the clock is behind the token: set back since, or another server's.
local LONGEST_MS = 315576000000
local FIRST_INEXACT = 2 ^ 53
local codes, texts = {}, {}

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

-- A value above 2^53 or in another form than INCR writes would not survive Lua's arithmetic.
local function token_of(value)
  if not value then return 0 end
  if value ~= '0' and not string.find(value, '^[1-9]%d*$') then return nil end
  local number = tonumber(value)
  return number < FIRST_INEXACT and number or nil
end

-- Draws the next token and writes it, before the hold: no grant is without a token.
local function draw(token, last, lease_ms, token_ttl_ms)
  local time = redis.pcall('TIME')
  if text_of(time) then return nil, text_of(time) end
  local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local drawn = math.max(token_of(last) + 1, now)
  if drawn >= FIRST_INEXACT then
    return nil, 'ERR fencing token is not an integer below 2^53'
  end
  -- Not tostring, which rounds to 14 digits.
  local text = string.format('%.0f', drawn)
  local left = -1
  if token_ttl_ms > 0 then
    left = last and redis.pcall('PTTL', token) or 0
    if text_of(left) then return nil, text_of(left) end
  end
  local written
  if left == -1 then
    written = redis.pcall('SET', token, text)
  else
    local ttl = math.max(left, lease_ms, token_ttl_ms)
    -- Ahead of the clock (it was set back, or somebody else wrote the token): the key stays until
    -- the clock has caught up, and a second more.
    if drawn > now then ttl = math.max(ttl, math.ceil((drawn - now) / 1000) + 1000) end
    written = redis.pcall('SET', token, text, 'PX', ttl)
  end
  if text_of(written) then return nil, text_of(written) end
  return text
end

-- A TTL that was raised stays raised, which does no harm.
local function put_back(token, last)
  if last then
    redis.pcall('SET', token, last, 'KEEPTTL')
  else
    redis.pcall('DEL', token)
  end
end

local function acquire(lock, token, lease_ms, owner, count, token_ttl_ms)
  lease_ms, count, token_ttl_ms = tonumber(lease_ms), tonumber(count), tonumber(token_ttl_ms)
  if not lease_ms or lease_ms % 1 ~= 0 or lease_ms < 1 or lease_ms > LONGEST_MS then
    return -2, 'ERR lease_ms is not a whole number from 1 to ' .. LONGEST_MS
  end
  if not count or count % 1 ~= 0 or count < 1 then
    return -2, 'ERR count is not a whole number above 0'
  end
  if not token_ttl_ms or token_ttl_ms % 1 ~= 0 or token_ttl_ms < 0 or token_ttl_ms > LONGEST_MS then
    return -2, 'ERR token_ttl_ms is not a whole number from 0 to ' .. LONGEST_MS
  end
  local ttl = redis.pcall('PTTL', lock)
  if text_of(ttl) then return -2, text_of(ttl) end
  local held
  if ttl ~= -2 then
    held = redis.pcall('HGET', lock, owner)
    if text_of(held) then return -2, text_of(held) end
    if not held and count == 1 then
      local holder = redis.pcall('HRANDFIELD', lock)
      if type(holder) ~= 'string' then holder = '' end
      if ttl < 0 then return -3, holder end
      return 1 + ttl, holder
    end
  end
  if not held and count > 1 then return -1 end
  local step = count
  if held then
    local now = tonumber(held)
    if not now or now % 1 ~= 0 or math.abs(now) > 2 ^ 53 then
      return -2, 'ERR hold count is not an integer'
    end
    step = count - now
  end
  local last = redis.pcall('GET', token)
  if text_of(last) then return -2, text_of(last) end
  if not token_of(last) then return -2, 'ERR fencing token is not an integer below 2^53' end
  -- A hold that is there keeps its token. Should that be gone (deleted, evicted, expired while the
  -- hold was renewed), it gets a higher one.
  local answer, drawn = last, not held or token_of(last) == 0
  if drawn then
    local err
    answer, err = draw(token, last, lease_ms, token_ttl_ms)
    if err then return -2, err end
  end
  if step ~= 0 then
    local moved = redis.pcall('HINCRBY', lock, owner, step)
    if text_of(moved) then
      if drawn then put_back(token, last) end
      return -2, text_of(moved)
    end
  end
  if ttl < lease_ms then
    local kept = redis.pcall('PEXPIRE', lock, lease_ms)
    if text_of(kept) then
      -- Without its TTL the lock would stand for ever: put back what this entry changed.
      if not held then
        redis.pcall('HDEL', lock, owner)
      elseif step ~= 0 then
        redis.pcall('HINCRBY', lock, owner, -step)
      end
      if drawn then put_back(token, last) end
      return -2, text_of(kept)
    end
  end
  return 0, answer
end

local entries = #KEYS / 2
for i = 1, entries do
  local lock, token = KEYS[2 * i - 1], KEYS[2 * i]
  local lease_ms, owner, count, token_ttl_ms =
    ARGV[4 * i - 3], ARGV[4 * i - 2], ARGV[4 * i - 1], ARGV[4 * i]
  local code, text = acquire(lock, token, lease_ms, owner, count, token_ttl_ms)
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
