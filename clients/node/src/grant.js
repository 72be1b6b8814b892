import { setMaxListeners } from "node:events";
import { uptime } from "node:os";

import { REPLY_LIMIT } from "./connection.js";
import { LockLostError } from "./errors.js";

/** The kernel shows the boot clock in hundredths of a second. */
const RESOLUTION = 10;

/** Returns the milliseconds since the host booted, including suspend (`CLOCK_BOOTTIME`), at most 10 ms late. */
export function boot() {
  return uptime() * 1000;
}

/** A granted lock, shared by the holds of an owner that reentered it. */
export class Grant {
  deadline = 0; // on the boot clock
  dated = 0; // when another command than HOLDS last set it, by performance.now(): the reply to an earlier HOLDS may be older
  ceiling = Infinity; // an earlier deadline, while a new lease is being set
  watched = REPLY_LIMIT; // the validity that the agent's renewal gives, as far as is known
  count = 0; // holds at the agent
  handles = 0; // open holds here
  releasing = false; // the last hold was certain when its release was sent
  atRisk = false;
  lost = null;
  watchers = new Set(); // of open holds

  constructor({ lock, kind, holder, token }, renewed) {
    this.name = lock;
    this.kind = kind;
    this.holder = holder;
    this.token = token;
    this.renewed = renewed;
  }

  /** Returns what a hold watches the grant with. */
  watcher() {
    const watcher = { abort: new AbortController(), riskListeners: [] };
    setMaxListeners(0, watcher.abort.signal); // Any number of operations may be aborted on a loss.
    this.watchers.add(watcher);
    if (this.lost !== null) watcher.abort.abort(this.lost);
    return watcher;
  }

  /** Ends the watch of a hold that is released. The grant may outlive it, if its owner reentered the lock. */
  forget(watcher) {
    if (this.held) this.watchers.delete(watcher);
  }

  /** Reports whether the hold is certain. Once it is uncertain, it remains so. */
  get held() {
    if (this.lost === null && this.remaining <= 0) this.lose("its deadline has passed");
    return this.lost === null;
  }

  get remaining() {
    return Math.min(this.deadline, this.ceiling) - boot() - RESOLUTION;
  }

  /** Reports whether renewals move the deadline, so that it must be read again. */
  get followed() {
    return this.renewed && this.ceiling === Infinity;
  }

  get surplus() {
    return this.count > this.handles;
  }

  /** Records that a command other than HOLDS has set the deadline. */
  date() {
    this.dated = performance.now();
  }

  /** Records an event that the agent reports. */
  apply([word, , , ...rest]) {
    if (word === "lock-lost") {
      this.count = 0;
      this.lose(rest[0]);
    } else if (word === "lock-jeopardy") this.warn(true);
    else if (word === "lock-safe") this.warn(false);
  }

  /** Ends a grant that the agent does not list, without a loss if only the reply to its release was lost. */
  endUnlisted() {
    this.count = 0;
    if (!this.releasing) this.lose("the agent does not hold it any more");
  }

  lose(reason) {
    if (this.lost !== null) return;
    this.lost = new LockLostError(this.name, reason);
    for (const { abort } of this.watchers) abort.abort(this.lost);
  }

  warn(atRisk) {
    const begins = atRisk && !this.atRisk && this.lost === null;
    this.atRisk = atRisk;
    // Listeners run after the current code. An error that one throws is a separate uncaught exception.
    if (!begins) return;
    for (const { riskListeners } of this.watchers) for (const listener of riskListeners) queueMicrotask(() => listener());
  }
}
