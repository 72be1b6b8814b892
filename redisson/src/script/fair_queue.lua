-- A fair lock's queue: a list of waiters, and when each counts as dead (epoch ms, by this server's clock).
local queue, deadlines = KEYS[2], KEYS[3]

local function milliseconds()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The first waiter that is not dead; dead ones in front of it are removed, but not `me`, who is alive.
local function living_head(now, me)
  while true do
    local head = redis.call('LINDEX', queue, 0)
    if not head or head == me then
      return head
    end
    local score = redis.call('ZSCORE', deadlines, head)
    if score and tonumber(score) > now then
      return head, tonumber(score)
    end
    redis.call('LPOP', queue)
    redis.call('ZREM', deadlines, head)
  end
end

-- Takes a waiter out. Those behind it have one wait less before them.
local function take_out(waiter, wait)
  local place = redis.call('LPOS', queue, waiter)
  if place then
    for _, behind in ipairs(redis.call('LRANGE', queue, place + 1, -1)) do
      if redis.call('ZSCORE', deadlines, behind) then
        redis.call('ZINCRBY', deadlines, -wait, behind)
      end
    end
    redis.call('LREM', queue, 0, waiter)
  end
  redis.call('ZREM', deadlines, waiter)
end

-- Why the companions are no queue, if they are none.
local function odd_companion()
  local list, set = redis.call('TYPE', queue).ok, redis.call('TYPE', deadlines).ok
  if list ~= 'none' and list ~= 'list' then
    return 'lock whose queue key is a ' .. list
  elseif set ~= 'none' and set ~= 'zset' then
    return 'lock whose deadlines key is a ' .. set
  end
end

