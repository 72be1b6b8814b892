#!/usr/bin/env bash
# A worker under lockctl, which acquires and renews the lock. If the lock is lost, lockctl sends TERM in time and exits with
# status 76; the script traps TERM to clean up. It reads orders line by line.
# LOCKSCOPE_SOCKET is the agent's socket, LOCKCTL the program.
set -euo pipefail

LOCK=orders:42
LOCKCTL=${LOCKCTL:-lockctl}

# Restarts itself under the lock. Status 75: the lock could not be acquired within a minute.
if [[ ${LOCKSCOPE_LOCK:-} != "$LOCK" ]]; then
  exec "$LOCKCTL" exec --wait 1m --kill-after 3s "$LOCK" -- "$0" "$@"
fi

trap 'echo "ended in the middle"; exit 1' TERM

# Called with and without the lock.
check_stock() {
  if [[ ${LOCKSCOPE_LOCK:-} == "$LOCK" ]]; then return; fi
  "$LOCKCTL" exec --wait 1m "$LOCK" -- true
}

echo "working on $LOCK"
# Short reads let the trap run.
while true; do
  status=0
  read -r -t 1 order || status=$?
  if ((status == 0)); then
    check_stock
    echo "did $order"
  elif ((status <= 128)); then
    break
  fi
done
echo 'done'
