-- Acquires free locks and releases holds, in the given order, each independently. Whatever takes more than that is left to the lock's
-- own script.
-- KEYS: of each acquire the lock and its fair queue, of each release the lock
-- ARGV: a letter for each, 'a' or 'r', as one word; then of each acquire holder, lease ms; of each release holder, channel
-- Replies the places of those for which nothing was done: the lock was not free, or not held; and {place, error} for each release
-- whose message was refused. With an error nothing was done at all: Redis refuses a script's first write or none of its writes.
local call, pcall, letters = redis.call, redis.pcall, ARGV[1]
local left, key = {}, 1
for place = 1, #letters do
  local lock, holder, last = KEYS[key], ARGV[2 * place], ARGV[2 * place + 1]
  local done
  if string.byte(letters, place) == 97 then
    done = pcall('EXISTS', lock, KEYS[key + 1]) == 0
    if done then
      call('HSET', lock, holder, '1')
      if type(pcall('PEXPIRE', lock, last)) == 'table' then
        -- The lock would never end.
        call('DEL', lock)
        done = false
      end
    end
    key = key + 2
  else
    done = pcall('HDEL', lock, holder) == 1
    if done and pcall('EXISTS', lock) ~= 1 then
      local said = pcall('PUBLISH', last, '0')
      if type(said) == 'table' then
        left[#left + 1] = {place, said.err}
      end
    end
    key = key + 1
  end
  if not done then
    left[#left + 1] = place
  end
end
return left
