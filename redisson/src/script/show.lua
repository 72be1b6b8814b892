-- Tells what a lock looks like, reading no more than is sure to be small. Writes nothing.
-- KEYS: lock, fair queue, fair deadlines    ARGV: most fields, longest field, longest value, most places in the queue
-- Replies {type, pttl, fields in all, {field, value, ...}, queue length, {waiter, deadline, ...}}.
local lock, queue, deadlines = KEYS[1], KEYS[2], KEYS[3]
local kind = redis.call('TYPE', lock).ok
local pttl = redis.call('PTTL', lock)
local count, fields = 0, {}
if kind == 'hash' then
  count = redis.call('HLEN', lock)
  if count <= tonumber(ARGV[1]) then
    for _, field in ipairs(redis.call('HKEYS', lock)) do
      local value = ''
      if #field <= tonumber(ARGV[2]) and redis.call('HSTRLEN', lock, field) <= tonumber(ARGV[3]) then
        value = redis.call('HGET', lock, field)
      end
      fields[#fields + 1] = string.sub(field, 1, tonumber(ARGV[2]) + 1)
      fields[#fields + 1] = value
    end
  end
end
local length, places = 0, {}
if redis.call('TYPE', queue).ok == 'list' then
  length = redis.call('LLEN', queue)
  for _, waiter in ipairs(redis.call('LRANGE', queue, 0, tonumber(ARGV[4]) - 1)) do
    local deadline = redis.pcall('ZSCORE', deadlines, waiter)
    places[#places + 1] = waiter
    places[#places + 1] = type(deadline) == 'string' and deadline or ''
  end
end
return {kind, pttl, count, fields, length, places}
