-- Describes a holder by what its agent publishes. Writes nothing.
-- KEYS: the agent's entry, its holders
-- ARGV: the holder's number, the longest text
-- Replies {host, the holder's entry}; '' for what is not published or too long.
local function text(key, field)
  if redis.call('TYPE', key).ok ~= 'hash' or redis.call('HSTRLEN', key, field) > tonumber(ARGV[2]) then
    return ''
  end
  return redis.call('HGET', key, field) or ''
end
return {text(KEYS[1], 'host'), text(KEYS[2], ARGV[1])}
