-- A fair lock's queue: a list of waiters, and each waiter's deadline (epoch ms by this server's clock), after which it counts
-- as dead.
local queue, deadlines = KEYS[2], KEYS[3]

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Removes dead waiters from the head and returns the first living one and its deadline. `holder` counts as alive.
local function living_head(now, holder)
  while true do
    local head = redis.call('LINDEX', queue, 0)
    if not head or head == holder then
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

-- Removes a waiter. The deadlines behind it move earlier by its wait.
local function leave_queue(waiter, wait)
  local index = redis.call('LPOS', queue, waiter)
  if index then
    for _, behind in ipairs(redis.call('LRANGE', queue, index + 1, -1)) do
      if redis.call('ZSCORE', deadlines, behind) then
        redis.call('ZINCRBY', deadlines, -wait, behind)
      end
    end
    redis.call('LREM', queue, 0, waiter)
  end
  redis.call('ZREM', deadlines, waiter)
end

-- Describes a companion key of the wrong type, if there is one.
local function companion_error()
  local list, set = redis.call('TYPE', queue).ok, redis.call('TYPE', deadlines).ok
  if list ~= 'none' and list ~= 'list' then
    return 'lock whose queue key is a ' .. list
  elseif set ~= 'none' and set ~= 'zset' then
    return 'lock whose deadlines key is a ' .. set
  end
end

