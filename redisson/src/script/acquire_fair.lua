-- Grants the lock once to ARGV[1], with a lease, if it is free and no living waiter is ahead. Otherwise, if asked to,
-- joins the end of the queue, or extends the deadline of the waiter's existing position.
-- KEYS: lock, fair queue, fair deadlines
-- ARGV: holder, lease ms, own wait ms, ms since its position was last refreshed (0: it has none yet; empty: do not queue), the first
--       holder id of this run of the agent, prefix of the waiters' channels, publishing commands...
-- Replies like acquire. On refusal, the milliseconds are the time until the next attempt is worthwhile, and the head of the
-- queue, if it is another waiter, follows the holders.
local lock, holder, lease, wait, waited = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local kind, holders = lock_state(lock, 0)
if not kind then
  return {3, holders}
elseif kind == 'read' or kind == 'write' then
  return {2, kind}
end
local problem = companion_error()
if problem then
  return {3, problem}
end

if kind == 'lock' and redis.call('HEXISTS', lock, holder) == 1 then
  -- An earlier copy of this script has run.
  ensure_lease(lock, lease)
  redis.call('HSET', lock, holder, 1)
  leave_queue(holder, wait)
  return {1}
end

local now = now_ms()
local head, head_deadline, removed = living_head(now, holder, ARGV[5])
if kind == 'none' and (not head or head == holder) then
  redis.call('HSET', lock, holder, 1)
  local refused = begin_lease(lock, lease)
  if refused then
    return refused
  end
  leave_queue(holder, wait)
  return {1}
end

local pttl = redis.call('PTTL', lock)
if waited then
  local index = call('LPOS', queue, holder)
  local ahead
  if not index then
    ahead = call('LINDEX', queue, -1)
  elseif index > 0 then
    ahead = call('LINDEX', queue, index - 1)
  end
  local score = ahead and call('ZSCORE', deadlines, ahead)
  local current = tonumber(call('ZSCORE', deadlines, holder) or 0)
  local deadline
  if score and is_refreshed(ahead) and is_refreshed(holder) then
    -- The same deadline as the waiter ahead, so that any number of dead agents' waiters expire together.
    deadline = math.max(now + wait, tonumber(score))
    if index and current > deadline then
      -- Whoever stood between the two has left.
      lower_deadlines(index + 1, current - deadline, wait)
    end
  else
    -- Own wait after the deadline of the waiter ahead, or else after the holder's lease.
    deadline = math.max(now, tonumber(score or now + pttl)) + wait
    if index then
      if score then
        -- When Redisson grants the lock to a waiter, it moves all deadlines earlier by that waiter's whole wait, however long the
        -- wait was. The time waited here makes up for it.
        deadline = math.max(deadline, current + waited)
      end
      -- A living waiter's deadline only grows, and never passes that of a next waiter which does not refresh its own.
      local behind = call('LINDEX', queue, index + 1)
      local limit = behind and not is_refreshed(behind) and call('ZSCORE', deadlines, behind)
      deadline = math.max(math.min(deadline, tonumber(limit or deadline)), current)
    end
  end
  if not index then
    call('RPUSH', queue, holder)
  end
  call('ZADD', deadlines, string.format('%.0f', deadline), holder)
  -- Redisson gives these keys no expiry, and its waiters may use them for long after the last agent's has left.
  call('PEXPIRE', queue, 31536000000)
  call('PEXPIRE', deadlines, 31536000000)
end
if kind == 'none' then
  pttl = head_deadline - now
  if removed then
    -- Its turn has come without a release.
    announce(7, #ARGV, ARGV[6] .. head, '0')
  end
end
if head ~= holder then
  holders[#holders + 1] = head or nil
end
return {0, pttl, unpack(holders)}
