-- read_write_lock/inspect — say who reads or who writes, and for how long; changes nothing
--
-- KEYS[1]        lock       hash: "mode" -> read or write; owner -> read count;
--                           owner:write -> write count
-- ARGV[1]        mode       read or write: of whom to tell
--
-- Returns one integer, then two texts for each holder (one text if the entry failed)
--         -1                nobody holds it in this mode
--         -2 + text         failed: the text is the server's error
--         -3 + owner + n    held without a TTL: owner, n, and so on for each holder
--          0 + ttl ...      held for ttl more milliseconds: owner, n, and so on for each holder
-- Resend  safe: it only reads
local lock, mode = KEYS[1], ARGV[1]

if mode ~= 'read' and mode ~= 'write' then return { -2, 'ERR mode is neither read nor write' } end
local ttl = redis.pcall('PTTL', lock)
if type(ttl) == 'table' then return { -2, ttl.err } end
if ttl == -2 then return { -1 } end
local fields = redis.pcall('HGETALL', lock)
if fields.err then return { -2, fields.err } end
if ttl == -1 then ttl = -3 end
local reply, stands = { ttl }, nil
for at = 1, #fields, 2 do
  local field, count = fields[at], fields[at + 1]
  if field == 'mode' then
    stands = count
  else
    local owner, writes = string.gsub(field, ':write$', '')
    if (writes == 1) == (mode == 'write') then
      reply[#reply + 1] = owner
      reply[#reply + 1] = count
    end
  end
end
if stands ~= 'read' and stands ~= 'write' then
  return { -2, 'WRONGTYPE the hash is no read/write lock: its mode is neither read nor write' }
end
if #reply == 1 or mode == 'write' and stands == 'read' then return { -1 } end
return reply
