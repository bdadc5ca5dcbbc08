-- token_lock/inspect — say whether a lock is held, by which token and for how long; changes nothing
--
-- KEYS[1]        lock       string: the token of its holder
--
-- Returns one integer, then two texts if the lock is held (one text if the entry failed)
--         -1                nobody holds it
--         -2 + text         failed: the text is the server's error
--         -3 + owner + n    held by the token `owner`, without a TTL; n is "1"
--          0 + ttl ...      held by the token `owner` for ttl more milliseconds: owner, "1"
-- Resend  safe: it only reads
local lock = KEYS[1]

local token = redis.pcall('GET', lock)
if type(token) == 'table' then return { -2, token.err } end
if not token then return { -1 } end
local ttl = redis.pcall('PTTL', lock)
if type(ttl) == 'table' then return { -2, ttl.err } end
if ttl == -1 then ttl = -3 end
return { ttl, token, '1' }
