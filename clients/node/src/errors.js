/** The base class of every error of this library. */
export class LockscopeError extends Error {
  constructor(message, options) {
    super(message, options);
    this.name = new.target.name;
  }
}

export class LockTimeoutError extends LockscopeError {}

export class LockLostError extends LockscopeError {
  constructor(lock, reason) {
    super(`lost ${lock}: ${reason}`);
    this.lock = lock;
    this.reason = reason;
  }
}

export class UnavailableError extends LockscopeError {}

export class DrainingError extends UnavailableError {}

export class RejectedError extends LockscopeError {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

/** The connection ended before the reply. Callers of the library never see it. */
export class Disconnected extends Error {}

/** An error reply as the agent sent it. */
export class ErrorReply extends Error {
  get code() {
    return this.message.split(" ", 1)[0];
  }
}

/** Returns the error that callers see. */
export function fromReply(reply) {
  if (reply.code === "UNAVAILABLE") return new UnavailableError(reply.message);
  if (reply.code === "DRAINING") return new DrainingError(reply.message);
  return new RejectedError(reply.code, reply.message);
}
