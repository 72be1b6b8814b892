-- Prefix of the scripts that release one holder by force. Continues only if the holder's count and the lock's mode are still
-- the expected ones, and notifies the holder's agent.
-- ARGV, at the end and removed before the script proper runs: count, value of `mode` (empty: absent), least and greatest PTTL
-- in ms (empty: any), the agent's channel
-- Replies {0} the lock is free; {2} it has changed; {3} not a lock.
local forced_channel = table.remove(ARGV)
local greatest, least = tonumber(table.remove(ARGV)), tonumber(table.remove(ARGV))
local expected_mode, expected_count = table.remove(ARGV), table.remove(ARGV)
local count_now = redis.pcall('HGET', KEYS[1], ARGV[1])
if type(count_now) == 'table' then
  return reply_to_failure(count_now)
elseif count_now ~= expected_count or (redis.call('HGET', KEYS[1], 'mode') or '') ~= expected_mode then
  return {redis.call('EXISTS', KEYS[1]) == 0 and 0 or 2}
end
local left = redis.call('PTTL', KEYS[1])
if least and (left < least or left > greatest) then
  return {2}
end
say('PUBLISH', forced_channel, ARGV[1] .. ' ' .. KEYS[1])
