-- Returns the larger of two numbers in decimal. They are compared as text, since Lua's numbers are exact up to 2^53 only.
local function larger(a, b)
  if #a < #b or (#a == #b and a < b) then
    return b
  end
  return a
end

-- Returns a fencing token above all earlier ones, at least `least` and at least this server's time in epoch microseconds. The time
-- keeps tokens growing after the counter was lost or fell back: it is above any token issued before, unless the clock was set back.
-- It is below 2^53 until the year 2255.
local function next_token(counter, least)
  redis.call('INCR', counter)
  local counted, time = redis.call('GET', counter), redis.call('TIME')
  local now = string.format('%.0f', time[1] * 1000000 + time[2])
  local token = larger(larger(counted, least), now)
  if token ~= counted then
    redis.call('SET', counter, token)
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

