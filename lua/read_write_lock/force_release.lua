#!lua flags=allow-oom
-- read_write_lock/force_release — take the lock from its readers or its writer
--
-- A named writer loses what it reads with as well: a hold goes as a whole, or its renewal would
-- find the rest and hide the loss from its owner.
--
-- KEYS[1]        lock       hash: "mode" -> read or write; owner -> read count;
--                           owner:write -> write count
-- KEYS[2]        channel    where waiters of this lock listen
-- KEYS[3]        prefix     what the keys of read holds begin with: prefix:owner:rwlock_timeout:i
-- ARGV[1]        holder     take it only from this owner, "<uuid>:<id>"; empty: from all
-- ARGV[2]        mode       read or write: do nothing if it is held in the other one
-- ARGV[3]        publish    PUBLISH or SPUBLISH, as the waiters listen; empty: tell nobody
--
-- Returns one integer, then a text if the entry failed or was not told
--          0 + told         released: if the lock is free now, `told` subscribers got the message
--                           "0" (read) or "1" (write); if others read on, 0
--         -1                gone: nobody (or not that holder) holds it in this mode; nothing was
--                           done
--         -2 + text         failed: nothing was done; the text is the server's error
--         -4 + text         released, but the server refused to publish; the text is its error
-- Resend  not safe without a holder: it frees whoever holds the lock by then
local MOST = 5000
local lock, channel, prefix = KEYS[1], KEYS[2], KEYS[3]
local holder, mode, publish = ARGV[1], ARGV[2], ARGV[3]

local function text_of(reply) return type(reply) == 'table' and reply.err or nil end

local function count_of(text)
  local count = string.match(text, '^[1-9]%d*$') and tonumber(text)
  return count and count <= MOST and count or nil
end

if mode ~= 'read' and mode ~= 'write' then return { -2, 'ERR mode is neither read nor write' } end
if holder == 'mode' or string.sub(holder, -6) == ':write' then
  return { -2, 'ERR holder is the name of another field' }
end
local pairs_of = redis.pcall('HGETALL', lock)
if text_of(pairs_of) then return { -2, text_of(pairs_of) } end
if #pairs_of == 0 then return { -1 } end
local held = {}
for at = 1, #pairs_of, 2 do held[pairs_of[at]] = pairs_of[at + 1] end
local stands = held.mode
if stands ~= 'read' and stands ~= 'write' then
  return { -2, 'WRONGTYPE the hash is no read/write lock: its mode is neither read nor write' }
end
held.mode = nil
if stands ~= mode then return { -1 } end

-- Whose fields go, and how long the longest of those that stay has (huge: it has no end). Names of
-- keys are built here as Redisson builds them: who reads stands in the hash only. A count that is
-- none, or too large to look at, is read as 1.
local gone, keys, longest = {}, {}, 0
if holder ~= '' and not held[mode == 'write' and holder .. ':write' or holder] then
  return { -1 }
end
for field, count in pairs(held) do
  local goes = holder == '' or field == holder or field == holder .. ':write'
  if goes then gone[#gone + 1] = field end
  local reads = string.sub(field, -6) ~= ':write'
  for i = 1, reads and count_of(count) or 1 do
    local key = prefix .. ':' .. field .. ':rwlock_timeout:' .. i
    if goes then
      keys[#keys + 1] = key
    elseif mode == 'read' then
      local left = redis.pcall('PTTL', key)
      if text_of(left) then return { -2, text_of(left) } end
      if left == -1 then left = math.huge end
      longest = math.max(longest, left)
    else
      longest = math.huge
    end
  end
end

if longest == 0 then
  local deleted = redis.pcall('DEL', lock)
  if text_of(deleted) then return { -2, text_of(deleted) } end
else
  if mode == 'write' then
    local turned = redis.pcall('HSET', lock, 'mode', 'read')
    if text_of(turned) then return { -2, text_of(turned) } end
  end
  local deleted = redis.pcall('HDEL', lock, unpack(gone))
  if text_of(deleted) then
    if mode == 'write' then redis.pcall('HSET', lock, 'mode', 'write') end
    return { -2, text_of(deleted) }
  end
  local kept = longest < math.huge and redis.pcall('PEXPIRE', lock, longest)
  if text_of(kept) then
    local back = {}
    for _, field in ipairs(gone) do
      back[#back + 1], back[#back + 2] = field, held[field]
    end
    redis.pcall('HSET', lock, unpack(back))
    return { -2, text_of(kept) }
  end
end
-- Without their field nobody looks at them: a server that refuses to delete them harms nobody.
for _, key in ipairs(keys) do redis.pcall('DEL', key) end
if publish == '' or longest > 0 and mode == 'read' then return { 0 } end
local told = redis.pcall(publish, channel, mode == 'read' and '0' or '1')
if text_of(told) then return { -4, text_of(told) } end
return { told }
