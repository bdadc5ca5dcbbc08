-- lock/inspect — say whether a lock is held, by whom and for how long; changes nothing
--
-- KEYS[1]        lock       hash: owner -> hold count
--
-- Returns one integer, then two texts if the lock is held (one text if the entry failed)
--         -1                nobody holds it
--         -2 + text         failed: the text is the server's error
--         -3 + owner + n    held by `owner`, n times, without a TTL
--          0 + ttl ...      held by `owner`, n times, for ttl more milliseconds: owner, n
-- Resend  safe: it only reads
local lock = KEYS[1]

local ttl = redis.pcall('PTTL', lock)
if type(ttl) == 'table' then return { -2, ttl.err } end
if ttl == -2 then return { -1 } end
local fields = redis.pcall('HGETALL', lock)
if fields.err then return { -2, fields.err } end
if ttl == -1 then ttl = -3 end
return { ttl, fields[1], fields[2] }
