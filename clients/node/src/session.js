import { Connection, REPLY_LIMIT, callOnce } from "./connection.js";
import {
  Disconnected,
  ErrorReply,
  LockLostError,
  LockTimeoutError,
  LockscopeError,
  RejectedError,
  UnavailableError,
  fromReply,
} from "./errors.js";
import { Grant, boot } from "./grant.js";
import { LONGEST_TIMER, afterReading, interruptible, pause, whenAborted } from "./interrupt.js";

/** The options of a session. Its grace ends with this process, as nothing else knows its secret. */
const OPTIONS = ["PUSH", "on", "PROCESS", "on"];
const RETRY_PAUSE = 100;
/** The longest wait, in ms, that the agent limits: a year. */
const LONGEST_WAIT = 365 * 24 * 60 * 60 * 1000;
/** The longest wait for an agent that is not running. */
const CONNECT_LIMIT = 30_000;
/** The shortest time limit for opening a connection, however short the wait is: the agent may take this long to answer. */
const LEAST_LIMIT = 2000;
/**
 * The time after its limit within which the reply to a wait must arrive. Redis may leave the last attempt unanswered for two
 * seconds, and then the release of what it acquired for another two.
 */
const ANSWER_MARGIN = 5000;
/** Renewed deadlines are read again after this part of the remaining validity. */
const REFRESH_PART = 1 / 3;
const SHORTEST_PAUSE = 50;
/** The time for which a close waits for the agent. */
const CLOSE_LIMIT = 1000;

const key = (name, kind) => `${kind} ${name}`;
const isGone = (error) => error instanceof ErrorReply && ["LOST", "NOTHELD"].includes(error.code);
const isDisconnected = (error) => error instanceof Disconnected;

/**
 * One owner's connection to the agent, and the state that outlives it. Replies on a connection keep the order of its
 * commands, so owners that wait do not share a connection.
 */
export class Session {
  owner = null;
  #path;
  #grace;
  #onIdle;
  #connection = null;
  #id = null;
  #secret = "";
  #given = 0; // the grace that the agent gives this session
  #proven = 0; // the last instant at which the agent certainly had this session
  #uncertain = false; // a command went unanswered: the agent may have holds unknown here
  #recovering = false; // a recovery waits for the turn
  #grants = new Map();
  #unclaimed = new Map(); // the last event of each lock that has no grant here: its grant may be recorded only later
  #queue = Promise.resolve(); // commands run one after another
  #users = 0;
  #running = 0;
  #timer = null;
  #reading = false; // the deadlines are being read
  #closing = false;
  #waiting = false; // the command that has the turn waits for a lock

  constructor(path, grace, onIdle) {
    this.#path = path;
    this.#grace = grace;
    this.#onIdle = onIdle;
  }

  get idle() {
    return this.#users === 0 && !this.#holds;
  }

  /** Whether the agent gives this session the grace that it wants. */
  get graced() {
    return this.#given === this.#grace;
  }

  /** Reports whether the agent may have holds of this session. */
  get #holds() {
    return this.#grants.size > 0 || this.#uncertain;
  }

  /** Runs work once all work before it has ended. Fails if `arrival` fails. */
  async #turn(work, arrival = (before) => before) {
    this.#users += 1;
    this.#connection?.keepsProcess(true);
    const before = this.#queue;
    let done;
    this.#queue = new Promise((resolve) => (done = resolve));
    const leave = () => {
      done();
      this.#users -= 1;
      if (this.idle) this.#connection?.keepsProcess(false);
      if (this.idle && this.owner !== null) this.#onIdle(this);
    };
    try {
      await arrival(before);
    } catch (error) {
      before.then(leave);
      throw error;
    }
    this.#running += 1;
    const end = () => {
      this.#running -= 1;
      leave();
    };
    let rest;
    try {
      // Interrupted work may pass on a remainder, which keeps the turn.
      return await work((remainder) => (rest = remainder));
    } finally {
      if (rest === undefined) end();
      else rest.catch(() => {}).finally(end);
    }
  }

  #background(work) {
    this.#turn(work).catch(() => {}); // The grants report losses to callers.
  }

  /** Acquires or reenters one lock, or all of several locks. */
  lock(names, kind, { wait, lease, signal }, several = false) {
    if (wait > LONGEST_WAIT) wait = undefined;
    kind = kind.toLowerCase(); // As in the agent's replies.
    const end = wait === undefined ? Infinity : boot() + wait;
    const described = names.join(", ");
    let unanswered = false;
    const work = async (leaveRest) => {
      for (;;) {
        signal?.throwIfAborted();
        await this.#connect(Math.min(end, boot() + CONNECT_LIMIT), signal);
        const known = names.map((name) => this.#grants.get(key(name, kind))).filter(Boolean);
        const mayBeGranted = unanswered && !several; // By a command whose reply was lost.
        if (await this.#clear(known, !mayBeGranted)) continue;
        if (mayBeGranted && known[0]?.surplus) return this.#handOut(known, lease);
        const connection = this.#connection;
        if (connection === null) continue;
        const left = Math.max(0, end - boot());
        const words = [...(several ? ["MLOCK", names.length] : ["LOCK"]), ...names, "KIND", kind];
        if (wait !== undefined) words.push("WAIT", Math.floor(left));
        if (lease !== undefined) words.push("LEASE", Math.floor(lease));
        this.#unclaimed.clear(); // They tell of earlier grants.
        const sent = boot();
        const reply = connection.send(...words, "IN", this.#id);
        try {
          this.#waiting = true;
          const rows = await interruptible(reply, left + ANSWER_MARGIN, signal).finally(() => (this.#waiting = false));
          if (rows === null && this.#closing) continue;
          if (rows === null) throw new LockTimeoutError(`could not acquire ${described} within ${wait} ms`);
          const granted = this.#grantedAll(rows, lease, sent);
          if (granted.filter((grant) => grant.held).length === names.length) return this.#handOut(granted, lease);
        } catch (error) {
          if (signal?.aborted && error === signal.reason) {
            leaveRest(this.#withdraw(connection, reply, lease, sent));
            throw error;
          }
          if (isDisconnected(error)) {
            this.#doubt(connection);
            unanswered = true;
          } else if (error instanceof UnavailableError) {
            this.#doubt(connection);
            throw error;
          } else if (!(error instanceof ErrorReply)) throw error;
          else if (error.code === "DRAINING" && boot() < end) {
            await pause(RETRY_PAUSE, signal);
            await this.#refreshWhileDraining();
          } else if (error.code === "LOST") {
            // If the owner had no hold, the lock was granted and lost before the agent could report it: the wait continues.
            if (known.length > 0) throw new LockLostError(described, error.message);
          } else throw fromReply(error);
        }
      }
    };
    return this.#turn(work, (before) => this.#arrival(before, end, signal, described));
  }

  /**
   * Waits for the session's current command to end, until the signal or the instant `end`. A command that does not wait for
   * a lock is given at least `LEAST_LIMIT`.
   */
  async #arrival(before, end, signal, described) {
    signal?.throwIfAborted();
    const limit = Math.max(end - boot(), this.#waiting ? 0 : LEAST_LIMIT);
    try {
      await interruptible(before, limit, signal);
    } catch (error) {
      if (!(error instanceof UnavailableError)) throw error;
      if (this.#waiting) throw new LockTimeoutError(`could not acquire ${described}: its owner waits for another lock`);
      throw new UnavailableError(`could not acquire ${described}: no reply from the agent to an earlier command`);
    }
  }

  /**
   * Releases grants that arrived after their deadline and, if so requested, the `surplus` of earlier commands. Returns whether
   * there were any. Throws if an open hold was lost.
   */
  async #clear(known, surplus) {
    let cleared = false;
    for (const grant of known) {
      const { held } = grant;
      if (held && !(surplus && grant.surplus)) continue;
      await this.#settle(grant);
      if (!held && grant.handles > 0) throw new LockLostError(grant.name, grant.lost.reason);
      cleared = true;
    }
    return cleared;
  }

  /** Counts one more open hold of each grant. The agent may have granted it to a call whose reply was lost. */
  #handOut(grants, lease) {
    for (const grant of grants) {
      grant.renewed = lease === undefined || (grant.renewed && grant.handles > 0);
      grant.handles += 1;
    }
    this.#arm();
    return grants;
  }

  #grantedAll(rows, lease, sent) {
    return [rows].flat().map((row) => {
      this.#prove(sent + row.waited_ms);
      const grant = this.#granted(row, lease, sent);
      // A reentry may find a fixed lease.
      if (lease === undefined && row.holds === 1) grant.watched = grant.deadline - boot();
      return grant;
    });
  }

  /** Closes and releases a hold. */
  unlock(grant) {
    grant.handles -= 1;
    return this.#turn(() => this.#settle(grant));
  }

  /** Sets a fixed lease from now, or returns the hold to renewal. */
  async extend(grant, lease) {
    const millis = Math.floor(lease);
    // The agent would understand it as a return to renewal.
    if (millis === 0 && lease !== 0) throw new RejectedError("LIMIT", "LIMIT a lease must be at least 100 ms");
    return this.#turn(async () => {
      await this.#connect(boot() + REPLY_LIMIT);
      const sent = boot();
      grant.ceiling = sent + (millis > 0 ? millis : grant.watched); // The agent may end it then.
      this.#arm();
      try {
        const valid = await this.#call("EXTEND", grant.name, millis, "KIND", grant.kind, "IN", this.#id);
        grant.renewed = millis === 0;
        if (grant.held) grant.deadline = sent + valid; // A hold whose deadline has passed stays lost.
        else throw grant.lost;
      } catch (error) {
        // Redis may have set the lease although it has not answered.
        const unsure = isDisconnected(error) || error.code === "UNAVAILABLE";
        if (unsure) grant.deadline = Math.min(grant.deadline, grant.ceiling);
        if (isDisconnected(error)) throw new UnavailableError(`could not extend ${grant.name}: ${error.message}`);
        if (!(error instanceof ErrorReply)) throw error;
        if (!isGone(error)) throw fromReply(error);
        grant.lose(error.message);
        throw grant.lost;
      } finally {
        grant.ceiling = Infinity;
        grant.date();
        this.#arm();
      }
    });
  }

  /** Ends the session and all its holds. */
  async close() {
    this.#closing = true;
    clearTimeout(this.#timer);
    const held = this.#holds;
    for (const grant of this.#grants.values()) grant.lose("the agent object was closed");
    this.#grants.clear();
    const connection = this.#connection;
    if (connection === null) {
      // A connection that is being made ends the session. Otherwise another one does, if it can be made soon.
      const quitting = () => (this.#id === null ? undefined : this.#open(boot()));
      if (held) await interruptible(this.#turn(quitting), CLOSE_LIMIT).catch(() => {});
      return;
    }
    // The agent reads QUIT only after a wait in progress has ended.
    if (this.#running > 0) callOnce(this.#path, "CANCEL", this.#id, this.#secret).catch(() => {});
    await connection.quit();
  }

  #granted(fields, lease, sent) {
    const place = key(fields.lock, fields.kind);
    let grant = this.#grants.get(place);
    if (grant?.holder !== fields.holder) {
      grant?.lose("it was granted again");
      grant = new Grant(fields, lease === undefined);
      this.#grants.set(place, grant);
    }
    grant.count = fields.holds;
    grant.renewed ||= lease === undefined;
    grant.deadline = Math.max(grant.deadline, deadline(fields, sent));
    grant.date();
    const event = this.#unclaimed.get(place);
    this.#unclaimed.delete(place);
    if (event !== undefined) grant.apply(event);
    if (this.#closing) grant.lose("the agent object was closed");
    return grant;
  }

  /** Releases the holds that the agent has beyond those open here. */
  async #settle(grant) {
    try {
      while (grant.surplus) {
        if (this.#connection === null) {
          if (!grant.held) return;
          await this.#connect(grant.deadline);
          continue;
        }
        try {
          grant.releasing = grant.held && grant.handles === 0;
          grant.count = await this.#call("UNLOCK", grant.name, "KIND", grant.kind, "IN", this.#id);
          if (grant.count > 0 && grant.kind === "read" && !grant.renewed) {
            await this.#refresh(); // The lease of a reader's entry ends with it.
            this.#arm();
          }
        } catch (error) {
          if (isDisconnected(error)) continue;
          if (isGone(error)) {
            grant.count = 0;
            grant.lose(error.message);
          } else if (error.code === "UNAVAILABLE") {
            grant.count -= 1; // This owner no longer holds it: the agent keeps trying to release it.
          } else throw fromReply(error);
        }
      }
    } finally {
      const place = key(grant.name, grant.kind);
      if (grant.handles === 0 && this.#grants.get(place) === grant) this.#grants.delete(place);
    }
  }

  #settleLater(grant) {
    if (grant.surplus) this.#background(() => this.#settle(grant));
  }

  /** Ends an abandoned wait, and releases what it was granted. */
  async #withdraw(connection, reply, lease, sent) {
    try {
      await callOnce(this.#path, "CANCEL", this.#id, this.#secret);
      const rows = await interruptible(reply, REPLY_LIMIT);
      if (rows === null) return;
      for (const grant of this.#grantedAll(rows, lease, sent)) await this.#settle(grant);
    } catch (error) {
      if (!(error instanceof ErrorReply)) this.#doubt(connection);
    }
  }

  /** Notes that a command went unanswered, and closes its connection. */
  #doubt(connection) {
    this.#uncertain = true;
    connection.abort();
    this.#closed(connection);
    if (this.#connection === null) this.#recover();
  }

  #prove(sent) {
    this.#proven = Math.max(this.#proven, sent);
  }

  /** Runs a command that does not wait for a lock. */
  async #call(...words) {
    const connection = this.#connection;
    if (connection === null) throw new Disconnected("not connected");
    const sent = boot();
    try {
      const reply = await connection.call(...words);
      this.#prove(sent);
      return reply;
    } catch (error) {
      if (isDisconnected(error)) this.#doubt(connection);
      throw error;
    }
  }

  /** Connects, or resumes the session, and retries until the instant `end`. */
  async #connect(end, signal) {
    for (;;) {
      if (this.#closing) throw new UnavailableError("this Agent is closed");
      if (this.#connection !== null) return;
      try {
        await this.#open(end, signal);
        continue;
      } catch (error) {
        signal?.throwIfAborted();
        let cause = new UnavailableError(`no agent at ${this.#path}: ${error.message}`, { cause: error });
        if (error instanceof ErrorReply) {
          if (error.code === "GONE") {
            this.#giveUp("the agent has ended the session");
            continue;
          }
          cause = fromReply(error);
          if (!["SESSION", "UNAVAILABLE", "DRAINING"].includes(error.code)) throw cause;
        }
        if (!this.#closing && boot() >= end) throw cause;
      }
      await pause(RETRY_PAUSE, signal);
    }
  }

  /** Tries once to connect, until the signal or the instant `end`, but for at least `LEAST_LIMIT`. */
  async #open(end, signal) {
    const connection = await Connection.open(
      this.#path,
      (words) => this.#pushed(words),
      (closed) => this.#closed(closed),
    );
    this.#unclaimed.clear();
    const abort = () => connection.abort();
    const ignoreSignal = whenAborted(signal, abort);
    let late = false;
    let ended = false;
    const overdue = () => {
      if (ended) return;
      late = true;
      abort();
    };
    const limit = setTimeout(() => afterReading(overdue), Math.min(REPLY_LIMIT, Math.max(end - boot(), LEAST_LIMIT)));
    try {
      signal?.throwIfAborted();
      const sent = boot();
      let listed = sent;
      let ticket;
      if (this.#id === null) {
        try {
          ticket = await connection.call(...this.#gracedSession());
          this.#given = this.#grace;
        } catch (error) {
          if (error.code !== "UNAVAILABLE") throw error;
          // An agent without a journal grants locks but no grace.
          ticket = await connection.call("SESSION", ...OPTIONS);
          this.#given = 0;
        }
      } else {
        ticket = await connection.call("RESUME", this.#id, this.#secret);
        this.#secret = ticket.secret; // The next command voids the old secret.
        this.#warn(false); // After it, the agent reports the holds that are at risk.
        await connection.call("SESSION", ...OPTIONS);
        listed = boot();
        ticket.holds = await connection.call("HOLDS"); // A loss before PUSH on is never reported.
      }
      if (connection.closed) throw new Disconnected("closed");
      if (this.#closing) {
        this.#id = null;
        await connection.quit();
        throw new Disconnected("closed");
      }
      this.#id = ticket.id;
      this.#secret = ticket.secret;
      this.#connection = connection;
      this.#proven = sent;
      this.#uncertain = false;
      this.#takeOver(ticket.holds ?? [], listed);
    } catch (error) {
      connection.abort();
      this.#warn(true);
      throw late ? new Disconnected("no reply in time") : error;
    } finally {
      ended = true;
      clearTimeout(limit);
      ignoreSignal();
    }
  }

  #gracedSession() {
    return ["SESSION", "GRACE", Math.floor(this.#grace), ...OPTIONS];
  }

  /** Compares the grants with the agent's list of this session's holds. */
  #takeOver(rows, sent) {
    const listed = new Map(rows.map((row) => [row.holder, row]));
    for (const grant of this.#grants.values()) {
      const row = listed.get(grant.holder);
      listed.delete(grant.holder);
      if (row === undefined) {
        grant.endUnlisted();
        continue;
      }
      grant.count = row.holds;
      if (grant.held) grant.deadline = deadline(row, sent); // A hold whose deadline has passed stays lost.
      grant.date();
    }
    // These were granted by a LOCK whose reply was lost. If that call continues, it finds them here; otherwise they are released.
    for (const row of listed.values()) this.#granted(row, undefined, sent);
    for (const grant of this.#grants.values()) this.#settleLater(grant);
    this.#arm();
  }

  #warn(atRisk) {
    for (const grant of this.#grants.values()) grant.warn(atRisk);
  }

  #pushed(event) {
    const [word, name, kind] = event;
    const place = key(name, kind);
    const grant = this.#grants.get(place);
    if (grant === undefined || grant.lost !== null) this.#unclaimed.set(place, event);
    grant?.apply(event);
    // The deadline may have changed, even to an earlier one.
    if (word === "lock-jeopardy" || word === "lock-safe") this.#tend();
  }

  #closed(connection) {
    if (connection !== this.#connection) return;
    this.#connection = null;
    const limit = this.#proven + this.#given;
    for (const grant of this.#grants.values()) grant.deadline = Math.min(grant.deadline, limit);
    this.#warn(true);
    if (this.idle) this.#id = null;
    this.#recover();
  }

  /** Resumes the session in the background for as long as the agent may have holds of it. */
  #recover() {
    if (!this.#holds || this.#closing || this.#recovering) return;
    this.#recovering = true;
    this.#background(async () => {
      this.#recovering = false;
      if (this.#connection !== null || !this.#holds) return;
      // A call may have failed since, and left the session uncertain.
      const deadlines = [...this.#grants.values()].map((grant) => grant.deadline);
      const end = Math.max(this.#uncertain ? boot() + this.#given : 0, ...deadlines);
      try {
        await this.#connect(end);
      } catch (error) {
        if (!(error instanceof LockscopeError)) throw error;
        if (!this.#closing) this.#giveUp(error.message);
      }
    });
  }

  /** Ends a session that cannot be resumed. */
  #giveUp(reason) {
    this.#id = null;
    this.#uncertain = false;
    for (const grant of this.#grants.values()) {
      grant.count = 0;
      grant.lose(reason);
    }
  }

  /**
   * Sets the timer for the next deadline, or for the next reading of renewed ones unless one is in progress. The reading also
   * proves that the agent has the session, from which its grace would count, or requests a grace that the agent could not give
   * before.
   */
  #arm() {
    clearTimeout(this.#timer);
    const live = [...this.#grants.values()].filter((grant) => grant.lost === null);
    if (live.length === 0 || this.#closing) return;
    const reads = !this.#reading;
    const pauses = live.map((grant) => grant.remaining * (grant.followed && reads ? REFRESH_PART : 1));
    const next = Math.min(...pauses, this.#grace > 0 && reads ? this.#grace * REFRESH_PART : Infinity);
    this.#timer = setTimeout(() => this.#tend(), Math.min(Math.max(next, SHORTEST_PAUSE), LONGEST_TIMER));
    this.#timer.unref(); // The connection keeps the process from ending for as long as a lock is held.
  }

  /** Ends holds whose deadline has passed, and reads the deadlines of the others. */
  async #tend() {
    const live = [...this.#grants.values()].filter((grant) => grant.held);
    if (live.length > 0 && this.#connection !== null && !this.#reading) {
      this.#reading = true;
      this.#arm(); // A deadline may pass before the agent answers.
      try {
        if (this.#running === 0) await this.#turn(() => this.#refreshWithGrace());
        else await this.#refreshFromOutside(); // The owner waits for another lock, and replies keep their order.
      } catch {
        // The call that finds the connection lost reconnects.
      }
      this.#reading = false;
    }
    this.#arm();
  }

  /**
   * Reads the deadlines on the session's connection. Only what has the turn records grants, so a grant that is not listed was
   * recorded before.
   */
  async #refresh() {
    const sent = boot();
    const asked = performance.now();
    const rows = await this.#call("HOLDS");
    for (const row of rows) this.#renewed(row, sent, asked);
    const listed = new Set(rows.map((row) => row.holder));
    for (const grant of this.#grants.values()) if (!listed.has(grant.holder)) grant.endUnlisted();
  }

  async #refreshWithGrace() {
    await this.#refresh();
    if (this.graced) return;
    await this.#call(...this.#gracedSession());
    this.#given = this.#grace;
  }

  /** Reads the deadlines between two attempts. A draining agent accepts no other connection for this. */
  async #refreshWhileDraining() {
    if (this.#grants.size > 0) await this.#refresh().catch(() => {}); // The next attempt reconnects.
  }

  async #refreshFromOutside() {
    const sent = boot();
    const asked = performance.now();
    const rows = await callOnce(this.#path, "HOLDS", this.#id, this.#secret);
    this.#prove(sent);
    for (const row of rows) this.#renewed(row, sent, asked);
  }

  #renewed(row, sent, asked) {
    const grant = this.#grants.get(key(row.lock, row.kind));
    if (grant?.holder !== row.holder || asked < grant.dated || this.#connection === null) return;
    const until = deadline(row, sent);
    // A hold whose deadline has passed stays lost. Redis may have set a shorter fixed lease than the agent knows.
    if (grant.held && (grant.renewed || until < grant.deadline)) grant.deadline = until;
  }
}

/**
 * Returns the milliseconds of the boot clock until which the agent guarantees a hold, according to the reply to a command
 * sent at the instant `sent`. Where /proc/uptime is not the host's, as under lxcfs, an instant of the agent's clock means
 * nothing here, but the validity in the reply does.
 */
function deadline(row, sent) {
  return Math.min(row.valid_until_ns / 1e6, sent + (row.waited_ms ?? 0) + row.valid_ms);
}
