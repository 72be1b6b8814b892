"""The parts that the synchronous and the asynchronous holds share."""

import os
import threading
from typing import Callable, Generic, Iterator, List, Optional, Sequence, TypeVar

from ._clock import boot
from ._errors import LockLost
from ._grant import Grant
from ._session import Session

DEFAULT_SOCKET = "/run/lockscope/agent.sock"


def socket_path(given: "Optional[str | os.PathLike[str]]") -> str:
    """Return the given path, else `LOCKSCOPE_SOCKET`, else the usual one."""
    if given is not None:
        return os.fspath(given)
    named = os.environ.get("LOCKSCOPE_SOCKET")
    if named:
        return named
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and not os.path.exists(DEFAULT_SOCKET):
        own = os.path.join(runtime, "lockscope", "agent.sock")
        if os.path.exists(own):
            return own
    return DEFAULT_SOCKET


def check_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"the name of a lock is a str, not {type(name).__name__}")


class BaseHold:
    """One acquisition of a lock."""

    def __init__(self, session: Session, grant: Grant) -> None:
        self._session = session
        self._grant = grant
        self._released = False
        self._key = object()

    def __repr__(self) -> str:
        return f"<Hold of {self.name!r} ({self.kind}), {'held' if self.held else 'not held'}>"

    @property
    def name(self) -> str:
        return self._grant.name

    @property
    def kind(self) -> str:
        return self._grant.kind

    @property
    def holder(self) -> str:
        """The holder's id in Redis, new with each grant."""
        return self._grant.holder

    @property
    def token(self) -> Optional[int]:
        """The fencing token of a lock of kind `fenced`; None for other kinds."""
        return self._grant.token

    @property
    def held(self) -> bool:
        """Return whether the hold is certain. After a loss, a release or the deadline, it never is again."""
        return not self._released and self._grant.held

    @property
    def at_risk(self) -> bool:
        """Return whether renewals are failing while the hold is still valid. Start no new work meanwhile."""
        return self.held and self._grant.at_risk

    @property
    def lost(self) -> threading.Event:
        """An event that is set once the hold is lost."""
        return self._grant.lost

    @property
    def lost_reason(self) -> Optional[str]:
        """The reason for the loss, None unless the hold was lost."""
        return self._grant.reason

    @property
    def deadline(self) -> float:
        """The instant until which the hold is certain, in seconds of `CLOCK_BOOTTIME`. Renewals move it."""
        return self._grant.deadline

    def remaining(self) -> float:
        """Return the number of seconds for which the hold is certain, 0 once it is uncertain."""
        return max(0.0, self._grant.deadline - boot()) if self.held else 0.0

    def check(self) -> None:
        """Raise `LockLost` unless the hold is certain. This costs no round trip."""
        if self._released:
            raise LockLost(self.name, "it was released")
        if not self._grant.held:
            raise LockLost(self.name, self._grant.reason or "")

    def on_lost(self, listener: Callable[[], None]) -> None:
        """Call `listener` once when the hold is lost, or at once if it is already lost. It must not block."""
        self._grant.when_lost(self._key, listener)

    def on_risk(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever the hold becomes at risk. It must not block."""
        self._grant.when_at_risk(self._key, listener)

    def _close(self) -> None:
        """Mark the hold as released."""
        self._released = True
        self._grant.forget(self._key)


AnyHold = TypeVar("AnyHold", bound=BaseHold)


class BaseHolds(Generic[AnyHold]):
    """Several locks that were acquired together: an iterable of holds, in the order in which their names were given."""

    def __init__(self, holds: Sequence[AnyHold]) -> None:
        self._holds: List[AnyHold] = list(holds)

    def __iter__(self) -> Iterator[AnyHold]:
        return iter(self._holds)

    def __len__(self) -> int:
        return len(self._holds)

    def __getitem__(self, at: int) -> AnyHold:
        return self._holds[at]

    @property
    def held(self) -> bool:
        """Return whether every hold is certain."""
        return all([hold.held for hold in self])

    def remaining(self) -> float:
        """Return the number of seconds for which all holds are certain, 0 once one is uncertain."""
        return min(hold.remaining() for hold in self)

    def check(self) -> None:
        """Raise `LockLost` unless every hold is certain. This costs no round trip."""
        for hold in self:
            hold.check()

    def on_lost(self, listener: Callable[[], None]) -> None:
        """Call `listener` for each hold that is lost. It must not block."""
        for hold in self:
            hold.on_lost(listener)
