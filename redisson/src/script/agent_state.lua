-- Describes an agent by what it publishes. The entry expires a minute after the agent has gone; the trace of it lasts for a day.
-- KEYS: the agent's entry, its trace
-- Replies {1} present; {0} vanished; {2} never seen: it may not publish.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return {1}
end
return {redis.call('EXISTS', KEYS[2]) == 1 and 0 or 2}
