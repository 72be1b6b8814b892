"""Locks for asyncio. Each task is a separate owner: tasks exclude each other and can reenter their own locks."""

import asyncio
import os
import weakref
from typing import Any, Coroutine, Generator, Generic, Iterable, List, Optional, TypeVar, Union

from ._errors import LockLost, LockTimeout, LockscopeError, Unavailable
from ._hold import BaseHold, BaseHolds, check_name, socket_path
from ._session import CLOSED, Session

#: The number of connections without a hold that are kept for the next owner.
SPARE_SESSIONS = 8
#: The time for which a session outlives its connection, in seconds.
GRACE = 60.0

_agents: "weakref.WeakSet[Agent]" = weakref.WeakSet()


class Hold(BaseHold):
    """A hold of a lock: an asynchronous context manager that releases it."""

    async def extend(self, lease: Optional[float]) -> None:
        """Set a fixed lease of this many seconds from now and end renewal; None returns to renewal."""
        self.check()
        await self._session.extend(self._grant, lease)

    async def release(self) -> None:
        """Release the hold. Raise `LockLost` if it was lost before. Further calls do nothing.

        In a forked child, this does nothing: the hold belongs to the parent.
        """
        if self._released or self._session.abandoned:
            return
        usable = self._session.usable()
        self._close()
        if usable:
            await self._session.unlock(self._grant)
        if self._grant.reason is not None:
            raise LockLost(self.name, self._grant.reason)

    async def __aenter__(self) -> "Hold":
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            await self.release()
        except LockscopeError:
            if error is None:
                raise


class Holds(BaseHolds[Hold]):
    """Several locks that were acquired together: an asynchronous context manager that releases them."""

    async def release(self) -> None:
        """Release all holds, then raise the first error; a cancellation takes precedence."""
        failures: List[BaseException] = []
        for hold in self:
            try:
                await hold.release()
            except LockscopeError as error:
                failures.append(error)
            except asyncio.CancelledError as error:
                failures.insert(0, error)
        if failures:
            raise failures[0]

    async def __aenter__(self) -> "Holds":
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            await self.release()
        except LockscopeError:
            if error is None:
                raise


Acquired = TypeVar("Acquired", Hold, Holds)


class _Acquisition(Generic[Acquired]):
    """The result of `Agent.lock`: `await` returns the hold, and `async with` acquires and releases it."""

    def __init__(self, work: "Coroutine[Any, Any, Acquired]") -> None:
        self._work: "Coroutine[Any, Any, Acquired]" = work
        self._acquired: Optional[Acquired] = None

    def __await__(self) -> Generator[Any, None, Acquired]:
        return self._work.__await__()

    async def __aenter__(self) -> Acquired:
        self._acquired = await self._work
        return self._acquired

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        assert self._acquired is not None
        await self._acquired.__aexit__(kind, error, trace)


class Agent:
    """The agent of this host, as seen from one event loop at a time."""

    def __init__(self, socket: "Optional[Union[str, os.PathLike[str]]]" = None, *, grace: float = GRACE) -> None:
        """Create an agent object. `socket` defaults to `LOCKSCOPE_SOCKET`, else `/run/lockscope/agent.sock`, else the one in
        `$XDG_RUNTIME_DIR`.

        `grace` is the number of seconds for which holds outlive a lost connection or a restart of the agent; 0 disables
        this.
        """
        self._path = socket_path(socket)
        self._grace = grace
        self._owners: "weakref.WeakKeyDictionary[Any, Session]" = weakref.WeakKeyDictionary()
        self._sessions: "set[Session]" = set()
        self._spare: List[Session] = []
        self._closed = False
        #: The event loop of the sessions.
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        _agents.add(self)

    def lock(
        self, name: str, *, wait: Optional[float] = None, kind: str = "lock", lease: Optional[float] = None
    ) -> _Acquisition[Hold]:
        """Acquire or reenter a lock: `async with agent.lock("orders:42", wait=60) as hold`.

        `wait` is in seconds; None, or more than a year, sets no limit. `kind` is `lock`, `fair`, `read`, `write`,
        `fenced` or `red`. With `lease`, in seconds, nothing renews the hold. Raise `LockTimeout` when the wait is over,
        `Unavailable` when the agent or Redis cannot be reached, and `Rejected` when the agent refuses.
        """
        return _Acquisition(self.acquire(asyncio.current_task(), name, wait, kind, lease))

    async def try_lock(self, name: str, *, kind: str = "lock", lease: Optional[float] = None) -> Optional[Hold]:
        """Acquire a lock if it is free, otherwise return None."""
        try:
            return await self.lock(name, wait=0, kind=kind, lease=lease)
        except LockTimeout:
            return None

    def lock_all(
        self, names: Iterable[str], *, wait: Optional[float] = None, kind: str = "lock", lease: Optional[float] = None
    ) -> _Acquisition[Holds]:
        """Acquire all or none of several locks: `async with agent.lock_all(["a", "b"], wait=60) as holds`.

        There may be up to 64 names, each given once. Such calls never deadlock with each other, whatever the order of
        the names.
        """
        return _Acquisition(self.acquire_all(asyncio.current_task(), names, wait, kind, lease))

    async def acquire(
        self, owner: object, name: str, wait: Optional[float], kind: str, lease: Optional[float]
    ) -> Hold:
        """Acquire a lock for an owner other than the current task."""
        check_name(name)
        session = self._session(owner)
        return Hold(session, await session.lock(name, kind, wait, lease))

    async def acquire_all(
        self, owner: object, names: Iterable[str], wait: Optional[float], kind: str, lease: Optional[float]
    ) -> Holds:
        """Acquire several locks for an owner other than the current task."""
        if isinstance(names, (str, bytes)):
            raise TypeError(f"lock_all takes several names, not the one name {names!r}")
        names = list(names)
        for name in names:
            check_name(name)
        session = self._session(owner)
        return Holds([Hold(session, grant) for grant in await session.lock_all(names, kind, wait, lease)])

    @property
    def holding(self) -> bool:
        """Return whether any hold is open."""
        return any(grant.handles for session in self._sessions for grant in session.grants.values())

    def _session(self, owner: object) -> Session:
        if self._closed:
            raise Unavailable(CLOSED)
        self._enter()
        if owner is None:
            raise RuntimeError("a lock belongs to a task: call this in a coroutine that a task runs")
        session = self._owners.get(owner)
        if session is None or session.owner is not owner:
            session = self._spare.pop() if self._spare else Session(self._path, self._grace, self._on_idle)
            session.owner = owner
            self._sessions.add(session)
            self._owners[owner] = session
        return session

    def _enter(self) -> None:
        """Serve the running event loop. Drop the sessions of a closed one, which nothing can use any more."""
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop:
            if not self._loop.is_closed():
                raise RuntimeError("this Agent is bound to a different event loop: create one for each event loop")
            for session in self._sessions:
                session.drop()
            self._clear()
        self._loop = loop

    def _clear(self) -> None:
        self._owners.clear()
        self._sessions.clear()
        self._spare.clear()

    def _on_idle(self, session: Session) -> None:
        session.owner = None
        if len(self._spare) < SPARE_SESSIONS and session.graced and not self._closed:
            self._spare.append(session)
        else:
            self._sessions.discard(session)
            session.close_soon()

    async def close(self) -> None:
        """Release everything and close the connections. Waits and later calls fail with `Unavailable`.

        If the agent does not answer, this returns after a second and continues in the background.
        """
        self._enter()
        self._closed = True
        sessions = list(self._sessions)
        self._clear()
        await asyncio.gather(*(session.close() for session in sessions))

    async def __aenter__(self) -> "Agent":
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        await self.close()

    def _abandon(self) -> None:
        for session in self._sessions:
            session.abandon()
        self._clear()
        self._loop = None


def _after_fork_in_child() -> None:
    for agent in _agents:
        agent._abandon()


os.register_at_fork(after_in_child=_after_fork_in_child)
