"""Exceptions of this library."""

from typing import Optional


class LockscopeError(Exception):
    """The base class of every exception of this library."""


class LockTimeout(LockscopeError, TimeoutError):
    """The lock could not be acquired in time."""


class LockLost(LockscopeError):
    """The hold has ended although its owner did not release it: write nothing more under it."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"lost {name}: {reason}")
        self.name = name
        self.reason = reason


class Unavailable(LockscopeError):
    """The agent cannot be reached, or it cannot reach Redis. Retrying later may succeed."""


class Draining(Unavailable):
    """The agent is shutting down and grants no more locks."""


class Rejected(LockscopeError):
    """The agent rejected the command. `code` is the first word of its reply, such as `WRONGKIND` or `DENIED`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Deadlock(Rejected):
    """This owner would wait forever for itself, or it and other owners for each other."""


class Disconnected(Exception):
    """The connection ended before the reply. Internal: callers reconnect."""

    def __init__(self, cause: Optional[BaseException] = None) -> None:
        super().__init__(f"connection to the agent lost: {cause or 'closed'}")


def from_reply(message: str) -> LockscopeError:
    """Return the exception for an error reply."""
    code = message.split(" ", 1)[0]
    if code == "UNAVAILABLE":
        return Unavailable(message)
    if code == "DRAINING":
        return Draining(message)
    if code == "DEADLOCK":
        return Deadlock(code, message)
    return Rejected(code, message)
