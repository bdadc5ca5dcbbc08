#!lua flags=allow-oom
-- count_down_latch/delete — remove a latch, which opens it, and tell the waiters to look again
--
-- Deleting needs no memory, hence the flag in the first line.
--
-- KEYS[1]        latch      string: how many count-downs are left, decimal
-- KEYS[2]        channel    where waiters of this latch listen
-- ARGV[1]        publish    PUBLISH or SPUBLISH, as the waiters listen; empty: tell nobody
--
-- Returns one integer, then a text if it failed or was not told
--          0 + told         deleted; `told` subscribers got the message "1"
--         -1                there was none; nothing was done
--         -2 + text         failed: nothing was done; the text is the server's error
--         -4 + text         deleted, but the server refused to publish; the text is its error
-- Resend  not safe once somebody may have set the latch anew: it deletes what stands by then
local latch, channel = KEYS[1], KEYS[2]
local publish = ARGV[1]

-- GET tells a count from a key of another type, which is not ours to delete.
local stored = redis.pcall('GET', latch)
if type(stored) == 'table' then return { -2, stored.err } end
if not stored then return { -1 } end
local deleted = redis.pcall('DEL', latch)
if type(deleted) == 'table' then return { -2, deleted.err } end
if publish == '' then return { 0 } end
local told = redis.pcall(publish, channel, '1')
if type(told) == 'table' then return { -4, told.err } end
return { told }
