-- Describes a lock, reading only what is known to be small. Writes nothing.
-- KEYS: lock, fair queue, fair deadlines, token, tagged name
-- ARGV: most fields, longest field, longest value, most queue entries, most markers per hold
-- Replies {type, pttl, number of fields, {field, value, ...}, queue length, {waiter, deadline, ...}, token or '',
-- {longest PTTL of its markers, for each field}}; the last is empty unless it is a read-write lock.
local lock, queue, deadlines, counter, tagged = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local kind = redis.call('TYPE', lock).ok
local pttl = redis.call('PTTL', lock)
local count, fields, markers = 0, {}, {}
if kind == 'hash' then
  count = redis.call('HLEN', lock)
  if count <= tonumber(ARGV[1]) then
    local has_mode = redis.call('HEXISTS', lock, 'mode') == 1
    for _, field in ipairs(redis.call('HKEYS', lock)) do
      local value = ''
      if #field <= tonumber(ARGV[2]) and redis.call('HSTRLEN', lock, field) <= tonumber(ARGV[3]) then
        value = redis.call('HGET', lock, field)
      end
      fields[#fields + 1] = string.sub(field, 1, tonumber(ARGV[2]) + 1)
      fields[#fields + 1] = value
      if has_mode then
        local longest = -2
        for n = 1, math.min(tonumber(value) or 0, tonumber(ARGV[5])) do
          longest = math.max(longest, redis.call('PTTL', tagged .. ':' .. field .. ':rwlock_timeout:' .. n))
        end
        markers[#markers + 1] = longest
      end
    end
  end
end
local length, entries = 0, {}
if redis.call('TYPE', queue).ok == 'list' then
  length = redis.call('LLEN', queue)
  for _, waiter in ipairs(redis.call('LRANGE', queue, 0, tonumber(ARGV[4]) - 1)) do
    local deadline = redis.pcall('ZSCORE', deadlines, waiter)
    entries[#entries + 1] = waiter
    entries[#entries + 1] = type(deadline) == 'string' and deadline or ''
  end
end
local token = ''
if redis.call('TYPE', counter).ok == 'string' and redis.call('STRLEN', counter) <= tonumber(ARGV[3]) then
  token = redis.call('GET', counter)
end
return {kind, pttl, count, fields, length, entries, token, markers}
