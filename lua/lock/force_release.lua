#!lua flags=allow-oom
-- lock/force_release — free a lock whoever holds it, or only if a given owner does
--
-- KEYS[1]        lock       hash: owner -> hold count
-- KEYS[2]        channel    where waiters of this lock listen
-- ARGV[1]        holder     free it only from this owner; empty: from anyone
-- ARGV[2]        publish    PUBLISH or SPUBLISH, as the waiters listen; empty: tell nobody
--
-- Returns one integer, then a text if the entry failed or was not told
--          0 + told         released: the lock is free; `told` subscribers got the message "0"
--         -1                gone: nobody (or not that holder) holds it; nothing was done
--         -2 + text         failed: nothing was done; the text is the server's error
--         -4 + text         released, but the server refused to publish; the text is its error
-- Resend  not safe without a holder: it frees whoever holds the lock by then
local lock, channel = KEYS[1], KEYS[2]
local holder, publish = ARGV[1], ARGV[2]

-- HLEN tells a hash from a key of another type, which is not ours to delete.
local fields = redis.pcall('HLEN', lock)
if type(fields) == 'table' then return { -2, fields.err } end
if fields == 0 then return { -1 } end
if holder ~= '' then
  local there = redis.pcall('HEXISTS', lock, holder)
  if type(there) == 'table' then return { -2, there.err } end
  if there == 0 then return { -1 } end
end
local deleted = redis.pcall('DEL', lock)
if type(deleted) == 'table' then return { -2, deleted.err } end
if publish == '' then return { 0 } end
local told = redis.pcall(publish, channel, '0')
if type(told) == 'table' then return { -4, told.err } end
return { told }
