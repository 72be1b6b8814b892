-- Stands before a script that releases one holder: lets it go on only if that holder's count and the lock's mode are as
-- the operator saw them, and tells the holder's agent.
-- ARGV, behind those of the script and taken off: count, the value of `mode` (empty: none), most milliseconds to live
-- (-1: any), the agent's channel
-- Replies {0} the lock is free; {2} it has changed; {3} no lock.
local forced_channel, most_ms = table.remove(ARGV), tonumber(table.remove(ARGV))
local seen_mode, seen_count = table.remove(ARGV), table.remove(ARGV)
local count_now = redis.pcall('HGET', KEYS[1], ARGV[1])
if type(count_now) == 'table' then
  return {3}
elseif count_now ~= seen_count or (redis.call('HGET', KEYS[1], 'mode') or '') ~= seen_mode then
  return {redis.call('EXISTS', KEYS[1]) == 0 and 0 or 2}
elseif most_ms >= 0 and redis.call('PTTL', KEYS[1]) > most_ms then
  return {2}
end
redis.call('PUBLISH', forced_channel, ARGV[1] .. ' ' .. KEYS[1])
