#!/usr/bin/env bash
# A worker under lockctl, which takes the lock, minds it, and ends this script in time when it is lost: with a status of 76,
# after TERM, which is caught here to leave things in order. Orders come line by line.
# LOCKSCOPE_SOCKET is the agent's socket, LOCKCTL the program.
set -euo pipefail

LOCK=orders:42
LOCKCTL=${LOCKCTL:-lockctl}

# Begins anew under the lock. Status 75: not to be had within a minute.
if [[ ${LOCKSCOPE_LOCK:-} != "$LOCK" ]]; then
  exec "$LOCKCTL" exec --wait 1m --kill-after 3s "$LOCK" -- "$0" "$@"
fi

trap 'echo "ended in the middle"; exit 1' TERM

# Called under the lock, and elsewhere without.
check_stock() {
  if [[ ${LOCKSCOPE_LOCK:-} == "$LOCK" ]]; then return; fi
  "$LOCKCTL" exec --wait 1m "$LOCK" -- true
}

echo "working on $LOCK"
# A read that is waited for in pieces lets the trap run.
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
