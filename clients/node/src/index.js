import { setMaxListeners } from "node:events";
import { existsSync } from "node:fs";
import path from "node:path";

import { LockLostError, LockTimeoutError, UnavailableError } from "./errors.js";
import { Session } from "./session.js";

export {
  DrainingError,
  LockLostError,
  LockTimeoutError,
  LockscopeError,
  RejectedError,
  UnavailableError,
} from "./errors.js";

const DEFAULT_SOCKET = "/run/lockscope/agent.sock";
const DEFAULT_GRACE = 60_000;
/** The number of connections without a hold that are kept for the next owner. */
const SPARE_SESSIONS = 8;

// Node.js 20 has the symbol; older runtimes of TypeScript's helpers look it up by this name.
Symbol.asyncDispose ??= Symbol.for("Symbol.asyncDispose");

function usualSocket() {
  if (process.env.LOCKSCOPE_SOCKET) return process.env.LOCKSCOPE_SOCKET;
  const own = process.env.XDG_RUNTIME_DIR && path.join(process.env.XDG_RUNTIME_DIR, "lockscope", "agent.sock");
  return own && !existsSync(DEFAULT_SOCKET) && existsSync(own) ? own : DEFAULT_SOCKET;
}

function checkName(name) {
  if (typeof name !== "string") throw new TypeError(`the name of a lock is a string, not ${name}`);
  // Different names must not become the same bytes.
  if (!name.isWellFormed()) throw new TypeError(`not a valid Unicode string: ${JSON.stringify(name)}`);
}

function checkTimes(times) {
  for (const [option, ms] of Object.entries(times)) {
    if (ms !== undefined && (typeof ms !== "number" || Number.isNaN(ms))) {
      throw new TypeError(`${option} is a number of milliseconds, not ${ms}`);
    }
  }
}

export class Hold {
  #session;
  #grant;
  #watcher;
  #released = null;

  constructor(owner, session, grant) {
    this.owner = owner;
    this.#session = session;
    this.#grant = grant;
    this.#watcher = grant.watcher();
  }

  get name() {
    return this.#grant.name;
  }

  get kind() {
    return this.#grant.kind;
  }

  get holder() {
    return this.#grant.holder;
  }

  get token() {
    return this.#grant.token;
  }

  get signal() {
    return this.#watcher.abort.signal;
  }

  get held() {
    return this.#released === null && this.#grant.held;
  }

  get atRisk() {
    return this.held && this.#grant.atRisk;
  }

  get remaining() {
    return this.held ? Math.max(0, this.#grant.remaining) : 0;
  }

  check() {
    if (this.#released !== null) throw new LockLostError(this.name, "it was released");
    if (!this.#grant.held) throw this.#grant.lost;
  }

  onRisk(listener) {
    this.#watcher.riskListeners.push(listener);
  }

  async extend(lease) {
    this.check();
    await this.#session.extend(this.#grant, lease);
  }

  release() {
    void this.#grant.held; // A listener of a loss that this finds may release, too.
    this.#released ??= (async () => {
      this.#grant.forget(this.#watcher);
      await this.#session.unlock(this.#grant);
      if (this.#grant.lost !== null) throw this.#grant.lost;
    })();
    return this.#released;
  }

  [Symbol.asyncDispose]() {
    return this.release();
  }
}

export class Holds {
  constructor(holds) {
    this.all = holds;
    this.signal = AbortSignal.any(holds.map((hold) => hold.signal));
    setMaxListeners(0, this.signal);
  }

  get held() {
    return this.all.filter((hold) => hold.held).length === this.all.length;
  }

  get remaining() {
    return Math.min(...this.all.map((hold) => hold.remaining));
  }

  check() {
    for (const hold of this.all) hold.check();
  }

  async release() {
    const ended = await Promise.allSettled(this.all.map((hold) => hold.release()));
    const failed = ended.find(({ status }) => status === "rejected");
    if (failed) throw failed.reason;
  }

  [Symbol.asyncDispose]() {
    return this.release();
  }

  [Symbol.iterator]() {
    return this.all[Symbol.iterator]();
  }
}

export class Owner {
  #agent;

  constructor(agent) {
    this.#agent = agent;
  }

  async lock(name, { kind = "lock", wait, lease, signal } = {}) {
    checkName(name);
    checkTimes({ wait, lease });
    const session = this.#agent._sessionOf(this);
    const [grant] = await session.lock([name], kind, { wait, lease, signal });
    return new Hold(this, session, grant);
  }

  async lockAll(names, { kind = "lock", wait, lease, signal } = {}) {
    if (typeof names === "string") throw new TypeError(`lockAll takes several names, not the one name ${names}`);
    const all = [...names];
    all.forEach(checkName);
    checkTimes({ wait, lease });
    const session = this.#agent._sessionOf(this);
    const grants = await session.lock(all, kind, { wait, lease, signal }, true);
    return new Holds(grants.map((grant) => new Hold(this, session, grant)));
  }

  async tryLock(name, options = {}) {
    try {
      return await this.lock(name, { ...options, wait: 0 });
    } catch (error) {
      if (error instanceof LockTimeoutError) return null;
      throw error;
    }
  }

  async withLock(name, ...rest) {
    const [options, work] = rest.length > 1 ? rest : [{}, ...rest];
    if (typeof work !== "function") throw new TypeError("expected withLock(name, options, work) or withLock(name, work)");
    const hold = await this.lock(name, options);
    let result;
    try {
      result = await work(hold);
    } catch (error) {
      await hold.release().catch(() => {}); // The error of the work matters more.
      throw error;
    }
    await hold.release();
    return result;
  }
}

export class Agent {
  #path;
  #grace;
  #closed = false;
  #sessions = new Set();
  #spare = [];
  #owned = new WeakMap();

  constructor(options = {}) {
    if (typeof options === "string") throw new TypeError("expected new Agent({ socket, grace }), not a string");
    const { socket = usualSocket(), grace = DEFAULT_GRACE } = options;
    this.#path = socket;
    this.#grace = grace;
  }

  owner() {
    return new Owner(this);
  }

  lock(name, options) {
    return this.owner().lock(name, options);
  }

  lockAll(names, options) {
    return this.owner().lockAll(names, options);
  }

  tryLock(name, options) {
    return this.owner().tryLock(name, options);
  }

  withLock(name, ...rest) {
    return this.owner().withLock(name, ...rest);
  }

  async close() {
    this.#closed = true;
    const sessions = [...this.#sessions];
    this.#sessions.clear();
    this.#spare = [];
    await Promise.all(sessions.map((session) => session.close()));
  }

  [Symbol.asyncDispose]() {
    return this.close();
  }

  /** @internal */
  _sessionOf(owner) {
    if (this.#closed) throw new UnavailableError("this Agent is closed");
    let session = this.#owned.get(owner);
    if (session === undefined || session.owner !== owner) {
      session = this.#spare.pop() ?? new Session(this.#path, this.#grace, (idle) => this.#onIdle(idle));
      session.owner = owner;
      this.#sessions.add(session);
      this.#owned.set(owner, session);
    }
    return session;
  }

  #onIdle(session) {
    session.owner = null;
    if (this.#spare.length < SPARE_SESSIONS && session.graced && !this.#closed) {
      this.#spare.push(session);
    } else {
      this.#sessions.delete(session);
      session.close();
    }
  }
}
