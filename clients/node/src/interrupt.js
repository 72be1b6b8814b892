import { setTimeout as sleep } from "node:timers/promises";

import { UnavailableError } from "./errors.js";

/** The longest time, in ms, for which a timer can be set: 24.8 days. */
export const LONGEST_TIMER = 2 ** 31 - 1;

/** The callbacks of one signal. They share a listener, because Node.js prints a warning when a signal has more than ten. */
class Callbacks extends Set {
  handleEvent() {
    for (const callback of this) callback();
  }
}

const callbacksOf = new WeakMap();

/** Calls `callback` when the signal is aborted, at once if it already is. Returns a function that ends this. */
export function whenAborted(signal, callback) {
  if (!signal) return () => {};
  if (signal.aborted) callback();
  const callbacks = callbacksOf.get(signal) ?? new Callbacks();
  callbacksOf.set(signal, callbacks);
  if (callbacks.size === 0) signal.addEventListener("abort", callbacks);
  callbacks.add(callback);
  return () => {
    callbacks.delete(callback);
    if (callbacks.size === 0) signal.removeEventListener("abort", callbacks);
  };
}

/**
 * Calls `callback` once the event loop has read what has arrived. After code that blocked it, timers run before that.
 */
export function afterReading(callback) {
  setImmediate(callback);
}

/** Waits for a reply until the limit in ms, or until the signal is aborted. */
export async function interruptible(reply, limit, signal) {
  reply.catch(() => {});
  let timer;
  let ignoreSignal;
  const interrupted = new Promise((_, reject) => {
    const overdue = () => afterReading(() => reject(new UnavailableError("no reply from the agent")));
    const arm = (left) => {
      const next = left > LONGEST_TIMER ? () => arm(left - LONGEST_TIMER) : overdue;
      timer = setTimeout(next, Math.min(left, LONGEST_TIMER));
    };
    if (Number.isFinite(limit)) arm(limit);
    ignoreSignal = whenAborted(signal, () => reject(signal.reason));
  });
  try {
    return await Promise.race([reply, interrupted]);
  } finally {
    clearTimeout(timer);
    ignoreSignal();
  }
}

/** Waits for `ms`, or until the signal is aborted. */
export function pause(ms, signal) {
  return interruptible(sleep(ms), Infinity, signal);
}
