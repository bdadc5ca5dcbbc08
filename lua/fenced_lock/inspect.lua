-- fenced_lock/inspect — say whether a lock is held, by whom, for how long, and the last token;
-- changes nothing
--
-- KEYS[1]        lock       hash: owner -> hold count
-- KEYS[2]        token      string: the last token that was drawn
--
-- Returns one integer, then texts; the token is the last that was drawn, empty if none is known
--         -1 + token            nobody holds it: token
--         -2 + text             failed: the text is the server's error
--         -3 + owner + n ...    held by `owner`, n times, without a TTL: owner, n, token
--          0 + ttl ...          held by `owner`, n times, for ttl more milliseconds: owner, n, token
-- Resend  safe: it only reads
local lock, token = KEYS[1], KEYS[2]

local last = redis.pcall('GET', token)
if type(last) == 'table' then return { -2, last.err } end
last = last or ''
local ttl = redis.pcall('PTTL', lock)
if type(ttl) == 'table' then return { -2, ttl.err } end
if ttl == -2 then return { -1, last } end
local fields = redis.pcall('HGETALL', lock)
if fields.err then return { -2, fields.err } end
if ttl == -1 then ttl = -3 end
return { ttl, fields[1], fields[2], last }
