-- A fencing token above all before: the counter's next value, and no less than `least`. Digits are compared as text, since
-- Lua's numbers are exact up to 2^53 only.
local function next_token(counter, least)
  redis.call('INCR', counter)
  local token = redis.call('GET', counter)
  if #token < #least or (#token == #least and token < least) then
    redis.call('SET', counter, least)
    return least
  end
  return token
end

-- The token of a grant that stands: nobody else can have counted on meanwhile.
local function token_of_grant(counter, least)
  return redis.call('GET', counter) or next_token(counter, least)
end

-- Whether the key is a counter that can go on, or free to become one.
local function can_count(counter)
  local kind = redis.call('TYPE', counter).ok
  if kind == 'none' then
    return true
  end
  return kind == 'string' and redis.call('STRLEN', counter) < 19
    and string.find(redis.call('GET', counter), '^%d+$') ~= nil
end

