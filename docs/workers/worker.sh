#!/usr/bin/env bash
# A worker under lockctl, which acquires and renews the lock. If the lock is lost, lockctl sends TERM in time and exits with
# status 76; the script traps TERM to clean up. It reads orders line by line.
# LOCKSCOPE_SOCKET is the agent's socket, LOCKCTL the program.
set -euo pipefail

LOCK=orders:42
LOCKCTL=${LOCKCTL:-lockctl}

# Restarts itself under the lock, with an argument that says so. LOCKSCOPE_LOCK alone would not do: a tmux server that was started
# under the lock passes it on to programs that run there later. Status 75: the lock could not be acquired within a minute.
if [[ ${1:-} != --locked || ${LOCKSCOPE_LOCK:-} != "$LOCK" ]]; then
  exec "$LOCKCTL" exec --wait 1m "$LOCK" -- "$0" --locked "$@"
fi
shift

trap 'echo "ended in the middle"; exit 1' TERM

# Needs the lock, which this process has: another `lockctl exec` would wait for it.
check_stock() { [[ $LOCKSCOPE_LOCK == "$LOCK" ]]; }

echo "working on $LOCK"
# Short reads let the trap run. A read that times out returns the beginning of a line, and one at the end of the input returns a
# last line that no newline ends.
order=
while true; do
  status=0
  IFS= read -r -t 1 part || status=$?
  order+=$part
  if ((status > 128)); then continue; fi
  if ((status == 0)) || [[ -n $order ]]; then
    check_stock
    echo "did $order"
  fi
  if ((status != 0)); then break; fi
  order=
done
echo 'done'
