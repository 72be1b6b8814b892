-- Returns a fencing token above all earlier ones and at least `least`. Digits are compared as text, since Lua's numbers are
-- exact up to 2^53 only.
local function next_token(counter, least)
  redis.call('INCR', counter)
  local token = redis.call('GET', counter)
  if #token < #least or (#token == #least and token < least) then
    redis.call('SET', counter, least)
    return least
  end
  return token
end

-- Returns the token of an existing grant: nothing else can have advanced the counter since.
local function token_of_grant(counter, least)
  return redis.call('GET', counter) or next_token(counter, least)
end

-- Returns whether the key is a counter with room to grow, or absent.
local function is_counter(counter)
  local kind = redis.call('TYPE', counter).ok
  if kind == 'none' then
    return true
  end
  return kind == 'string' and redis.call('STRLEN', counter) < 19
    and string.find(redis.call('GET', counter), '^%d+$') ~= nil
end

