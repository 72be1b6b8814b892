-- Passes a fair lock from the holder to a waiter of the same client, at count 1 with the waiter's lease, if the waiter is next.
-- Otherwise release_fair follows.
-- Appended to its ARGV: waiter, lease ms    Replies also {1, -1} passed.
local lease, waiter = table.remove(ARGV), table.remove(ARGV)
local function pass()
  local held = redis.pcall('HLEN', KEYS[1])
  if held ~= 1 or companion_error() then
    return false
  elseif redis.call('HEXISTS', KEYS[1], waiter) == 1 then
    -- An earlier copy has run. The sender of this one counts the lease from now.
    if redis.call('PTTL', KEYS[1]) < tonumber(lease) then
      redis.call('PEXPIRE', KEYS[1], lease)
    end
    return true
  elseif redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 or living_head(now_ms(), waiter, ARGV[3]) ~= waiter then
    return false
  end
  -- PEXPIRE first: a full Redis refuses HSET unless the script has already written. HSET before HDEL: the key must not disappear.
  redis.call('PEXPIRE', KEYS[1], lease)
  redis.call('HSET', KEYS[1], waiter, '1')
  redis.call('HDEL', KEYS[1], ARGV[1])
  leave_queue(waiter, tonumber(ARGV[2]))
  return true
end
if pass() then
  return {1, -1}
end
