/// <reference lib="esnext.disposable" />

export type Kind = "lock" | "fair" | "read" | "write" | "fenced" | "red";

export interface LockOptions {
  /** The kind of lock, `lock` by default. */
  kind?: Kind;
  /** The limit for the wait in milliseconds; by default, and above a year, the wait has no limit. */
  wait?: number;
  /** A fixed lease in milliseconds, at least 100, which nothing renews. */
  lease?: number;
  /** Ends the wait. `lock` then rejects with the signal's reason. */
  signal?: AbortSignal;
}

export interface AgentOptions {
  /** The agent's socket. Default: `LOCKSCOPE_SOCKET`, else `/run/lockscope/agent.sock`, else the one in `$XDG_RUNTIME_DIR`. */
  socket?: string;
  /** The time for which holds outlive a lost connection or a restart of the agent, in milliseconds; 0 disables this. */
  grace?: number;
}

interface Locks {
  /**
   * Acquires a lock. Rejects with `LockTimeoutError` when the wait is over, `UnavailableError` when the agent or Redis
   * cannot be reached, and `RejectedError` when the agent refuses.
   */
  lock(name: string, options?: LockOptions): Promise<Hold>;
  /**
   * Acquires all or none of up to 64 locks, each named once. Calls of `lockAll` never deadlock with each other,
   * whatever the order of the names.
   */
  lockAll(names: Iterable<string>, options?: LockOptions): Promise<Holds>;
  /** Acquires a lock if it is free, otherwise returns null. */
  tryLock(name: string, options?: Omit<LockOptions, "wait">): Promise<Hold | null>;
  /** Runs `work` under the lock and releases it. Rejects with `LockLostError` if the lock was lost meanwhile. */
  withLock<T>(name: string, options: LockOptions, work: (hold: Hold) => T | Promise<T>): Promise<T>;
  withLock<T>(name: string, work: (hold: Hold) => T | Promise<T>): Promise<T>;
}

/** The agent of this host. Each of its calls is made by a new owner. It connects when it acquires the first lock. */
export class Agent implements Locks, AsyncDisposable {
  constructor(options?: AgentOptions);
  /** Returns a new owner. Owners exclude each other, and each can reenter its own locks. */
  owner(): Owner;
  lock(name: string, options?: LockOptions): Promise<Hold>;
  lockAll(names: Iterable<string>, options?: LockOptions): Promise<Holds>;
  tryLock(name: string, options?: Omit<LockOptions, "wait">): Promise<Hold | null>;
  withLock<T>(name: string, options: LockOptions, work: (hold: Hold) => T | Promise<T>): Promise<T>;
  withLock<T>(name: string, work: (hold: Hold) => T | Promise<T>): Promise<T>;
  /** Releases everything and closes the connections. */
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** One of several tasks that share an agent. */
export class Owner implements Locks {
  private constructor();
  lock(name: string, options?: LockOptions): Promise<Hold>;
  lockAll(names: Iterable<string>, options?: LockOptions): Promise<Holds>;
  tryLock(name: string, options?: Omit<LockOptions, "wait">): Promise<Hold | null>;
  withLock<T>(name: string, options: LockOptions, work: (hold: Hold) => T | Promise<T>): Promise<T>;
  withLock<T>(name: string, work: (hold: Hold) => T | Promise<T>): Promise<T>;
}

/** One acquisition of a lock. */
export class Hold implements AsyncDisposable {
  private constructor();
  readonly owner: Owner;
  readonly name: string;
  readonly kind: Kind;
  /** The holder's id in Redis, new with each grant. */
  readonly holder: string;
  /** The fencing token of a lock of kind `fenced`, null for other kinds. */
  readonly token: number | null;
  /** Aborted when the hold is lost; its reason is the `LockLostError`. */
  readonly signal: AbortSignal;
  /** True while the hold is certain. After a loss, a release or the deadline, it stays false. */
  readonly held: boolean;
  /** True while renewals are failing but the hold is still valid. Start no new work meanwhile. */
  readonly atRisk: boolean;
  /** The milliseconds for which the hold is certain, 0 once it is uncertain. */
  readonly remaining: number;
  /** Throws `LockLostError` unless the hold is certain. This costs no round trip. */
  check(): void;
  /** Calls the listener whenever the hold becomes at risk. */
  onRisk(listener: () => void): void;
  /** Sets a fixed lease of this many milliseconds from now and ends renewal; 0 returns to renewal. */
  extend(lease: number): Promise<void>;
  /** Releases the hold. Rejects with `LockLostError` if it was lost before. Further calls return the same promise. */
  release(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** Several locks that were acquired together. */
export class Holds implements AsyncDisposable, Iterable<Hold> {
  private constructor();
  /** The holds in the order in which their names were given. */
  readonly all: readonly Hold[];
  /** Aborted when the first of the holds is lost; its reason is the `LockLostError`. */
  readonly signal: AbortSignal;
  /** True while every hold is certain. */
  readonly held: boolean;
  /** The milliseconds for which all holds are certain, 0 once one is uncertain. */
  readonly remaining: number;
  /** Throws `LockLostError` unless every hold is certain. This costs no round trip. */
  check(): void;
  /** Releases all holds, and afterwards rejects with the first error. */
  release(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
  [Symbol.iterator](): Iterator<Hold>;
}

/** The base class of every error of this library. */
export class LockscopeError extends Error {}
/** The lock could not be acquired in time. */
export class LockTimeoutError extends LockscopeError {}
/** The hold has ended although its owner did not release it. */
export class LockLostError extends LockscopeError {
  readonly lock: string;
  readonly reason: string;
}
/** The agent cannot be reached, or it cannot reach Redis. */
export class UnavailableError extends LockscopeError {}
/** The agent is shutting down and grants no more locks. */
export class DrainingError extends UnavailableError {}
/** The agent rejected the command: `code` is, for example, `WRONGKIND`, `DENIED` or `DEADLOCK`. */
export class RejectedError extends LockscopeError {
  readonly code: string;
}
