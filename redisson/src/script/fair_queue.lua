-- A fair lock's queue: a list of waiters, and each waiter's deadline (epoch ms by this server's clock), after which it counts
-- as dead.
local queue, deadlines = KEYS[2], KEYS[3]

-- Calls a command on one key. While a slot moves, its node refuses commands on a key that does not exist, since the other node may
-- have it; the reply is nil then. The node runs this script only if all of KEYS exist. So the script has just removed the key, or the
-- key is not one of them, as a reader's marker.
local function call(...)
  local reply = redis.pcall(...)
  local refusal = type(reply) == 'table' and reply.err
  if refusal and string.find(refusal, 'non local key', 1, true) then
    return nil
  end
  return refusal and redis.call(...) or reply
end

-- Returns the waiters in the queue from this index on.
local function waiters_from(index)
  return call('LRANGE', queue, index, -1) or {}
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Returns whether the waiter is an agent's, which refreshes its deadline. An agent's numbers begin at 2^30 times the second of its
-- start, since 2020 and, as the clock of a host may once have been wrong, until 17 years from now. Redisson's thread ids are far
-- below, but its callers may choose any number.
local function is_refreshed(waiter)
  local second = tonumber(string.match(waiter, ':(%d+)$') or 0) / 2^30
  return second >= 1.6e9 and second < now_ms() / 1000 + 2^29
end

-- Returns whether the waiter is of an earlier run of the agent whose numbers begin with that of `first`.
local function is_superseded(waiter, first)
  return #waiter == #first and waiter < first and string.sub(waiter, 1, 37) == string.sub(first, 1, 37)
end

-- Removes dead waiters from the head and returns the first living one, its deadline, and whether any was removed. `holder` counts
-- as alive, and `first`, if known, is the first holder id of its agent's run.
local function living_head(now, holder, first)
  local removed = false
  while true do
    local head = call('LINDEX', queue, 0)
    if not head or head == holder then
      return head
    end
    local score = call('ZSCORE', deadlines, head)
    if score and tonumber(score) > now and not (first and is_superseded(head, first)) then
      return head, tonumber(score), removed
    end
    call('LPOP', queue)
    call('ZREM', deadlines, head)
    removed = true
  end
end

-- Moves the deadlines from this index on earlier. Those that are refreshed keep at least `wait` from now.
local function lower_deadlines(index, by, wait)
  local kept = now_ms() + wait
  for _, waiter in ipairs(waiters_from(index)) do
    local score = tonumber(call('ZSCORE', deadlines, waiter))
    if score then
      local lowered = score - by
      if is_refreshed(waiter) then
        lowered = math.max(lowered, math.min(score, kept))
      end
      call('ZADD', deadlines, string.format('%.0f', lowered), waiter)
    end
  end
end

-- Removes a waiter. The deadlines behind it move earlier by its wait. Agents' waiters that follow one another share one wait,
-- which the last of them takes along.
local function leave_queue(waiter, wait)
  local index = call('LPOS', queue, waiter)
  if index then
    local around = call('LRANGE', queue, math.max(index - 1, 0), index + 1)
    local shares_wait = false
    for _, next_to_it in ipairs(around) do
      shares_wait = shares_wait or (next_to_it ~= waiter and is_refreshed(next_to_it))
    end
    if not shares_wait and wait > 0 then
      lower_deadlines(index + 1, wait, wait)
    end
    call('LREM', queue, 0, waiter)
  end
  call('ZREM', deadlines, waiter)
end

-- Removes the waiters that will never come: those of ARGV from `first` on, pairs of a waiter and its deadline (empty: none), if
-- the deadline is unchanged; agents' waiters past their deadline; and dead waiters at the head. Another client's waiter behind
-- a living one may be late and alive, so it stays. Returns how many left, and the first living waiter.
local function purge_waiters(now, first)
  local before = #waiters_from(0)
  for i = first, #ARGV, 2 do
    local deadline = call('ZSCORE', deadlines, ARGV[i])
    if tonumber(deadline or -1) == tonumber(ARGV[i + 1] ~= '' and ARGV[i + 1] or -1) then
      leave_queue(ARGV[i], 0)
    end
  end
  for _, waiter in ipairs(waiters_from(0)) do
    if is_refreshed(waiter) and tonumber(call('ZSCORE', deadlines, waiter) or 0) <= now then
      leave_queue(waiter, 0)
    end
  end
  local head = living_head(now)
  return before - #waiters_from(0), head
end

local function type_of(key)
  return (call('TYPE', key) or { ok = 'none' }).ok
end

-- Describes a companion key of the wrong type, if there is one.
local function companion_error()
  local list, set = type_of(queue), type_of(deadlines)
  if list ~= 'none' and list ~= 'list' then
    return 'lock whose queue key is a ' .. list
  elseif set ~= 'none' and set ~= 'zset' then
    return 'lock whose deadlines key is a ' .. set
  end
end

