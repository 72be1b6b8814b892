"""Grants of locks."""

import logging
import math
import threading
from typing import Callable, List, Optional, Tuple

from ._clock import boot
from ._connection import REPLY_LIMIT, Push

_log = logging.getLogger("lockscope")

Listener = Callable[[], None]


class Grant:
    """A granted lock, shared by the handles of an owner that reentered it."""

    def __init__(self, name: str, kind: str, holder: str, token: Optional[int], renewed: bool) -> None:
        self.name = name
        self.kind = kind
        self.holder = holder
        self.token = token
        self.renewed = renewed
        #: The instant on the boot clock at which the hold ends unless it is renewed.
        self.deadline = 0.0
        #: The instant at which another command than HOLDS last set it: the reply to an earlier HOLDS may be older.
        self.dated = 0.0
        #: The latest deadline that counts while a new, perhaps shorter lease is being set.
        self.latest = math.inf
        #: The time for which the agent's own lease is valid, as far as is known.
        self.watched = REPLY_LIMIT
        #: The number of holds at the agent, and the number of open handles here.
        self.count = 0
        self.handles = 0
        #: True if the last hold was certain when its release was sent.
        self.releasing = False
        self.at_risk = False
        self.reason: Optional[str] = None
        self.lost = threading.Event()
        #: The listeners, each with the key of its hold.
        self.on_lost: List[Tuple[object, Listener]] = []
        self.on_risk: List[Tuple[object, Listener]] = []
        #: Reentrant, since a signal's handler may find the loss too.
        self._losing = threading.RLock()

    @property
    def held(self) -> bool:
        """Return whether the hold is certain. Once it is uncertain, it remains so."""
        if self.reason is None and boot() >= self.deadline:
            self.lose("its deadline has passed")
        return self.reason is None

    def lose(self, reason: str) -> None:
        with self._losing:
            if self.reason is not None:
                return
            self.reason = reason
            listeners, self.on_lost = self.on_lost, []
        self.lost.set()
        self._tell(listeners)

    def apply(self, push: Push) -> None:
        """Record an event that the agent reports."""
        event, _, _, *rest = push
        if event == "lock-lost":
            self.count = 0
            self.lose(rest[0])
        elif event == "lock-jeopardy":
            self.warn(True)
        elif event == "lock-safe":
            self.warn(False)

    def end_unlisted(self) -> None:
        """End a grant that the agent does not list, without a loss if only the reply to its release was lost."""
        self.count = 0
        if not self.releasing:
            self.lose("the agent does not hold it any more")

    def lose_in_child(self) -> None:
        """End the grant in a forked child, which cannot rely on locks and threads of the parent."""
        self._losing = threading.RLock()
        self.reason = "this process is a fork of the holder"
        self.lost = threading.Event()
        self.lost.set()

    def when_lost(self, key: object, listener: Listener) -> None:
        """Call the listener once when the grant is lost, or at once if it is already lost."""
        with self._losing:
            lost = self.reason is not None
            if not lost:
                self.on_lost.append((key, listener))
        if lost:
            listener()

    def when_at_risk(self, key: object, listener: Listener) -> None:
        """Call the listener whenever the grant becomes at risk."""
        with self._losing:
            self.on_risk.append((key, listener))

    def forget(self, key: object) -> None:
        """Drop the listeners of a hold that is released. The grant may outlive it, if its owner reentered the lock."""
        if not self.held:
            return
        with self._losing:
            self.on_lost = [each for each in self.on_lost if each[0] is not key]
            self.on_risk = [each for each in self.on_risk if each[0] is not key]

    def warn(self, at_risk: bool) -> None:
        changed, self.at_risk = at_risk and not self.at_risk, at_risk
        if changed and self.held:
            self._tell(self.on_risk)

    def _tell(self, listeners: List[Tuple[object, Listener]]) -> None:
        """Call each listener. Log their exceptions, because no caller here could handle them."""
        for _, listener in list(listeners):
            try:
                listener()
            except Exception:
                _log.exception("a listener of %r failed", self.name)
