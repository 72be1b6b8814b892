"""Locks for threads. Each thread is a separate owner: threads exclude each other and can reenter their own locks."""

import asyncio
import atexit
import contextlib
import os
import selectors
import threading
import weakref
from typing import Any, Awaitable, Callable, Coroutine, Generic, Iterable, List, Optional, TypeVar, Union

from . import aio
from ._connection import REPLY_LIMIT
from ._errors import LockLost, LockTimeout, LockscopeError, Unavailable
from ._grant import Grant
from ._hold import BaseHold, BaseHolds, socket_path
from ._session import CLOSED, Session

T = TypeVar("T")
U = TypeVar("U")

#: The time for which a close waits for the end of the sessions. Those of a slow agent end in the background.
CLOSE_LIMIT = 5.0
#: The time for which the event loop runs after a close: a session may be resumed with three commands.
ENDING_LIMIT = 3 * REPLY_LIMIT

_agents: "weakref.WeakSet[Agent]" = weakref.WeakSet()
#: Event loops of the parent process. A forked child must neither use nor collect them.
_abandoned: List["_Engine"] = []


class _Owner:
    """The owner that represents a thread."""


class _Call(Generic[T]):
    """Work on an event loop for which a thread waits."""

    def __init__(self, work: "Coroutine[Any, Any, T]") -> None:
        self._work = work
        self._task: "Optional[asyncio.Task[T]]" = None
        #: The result, once there is one.
        self._results: List[T] = []
        self.error: Optional[BaseException] = None
        self.done = False
        # A lock that is released when the work ends. Unlike a wait for a condition, a wait for it can be interrupted
        # anywhere.
        self._ended = threading.Lock()
        self._ended.acquire()

    def result(self) -> T:
        """Wait for the end of the work."""
        self._ended.acquire()
        if self.error is not None:
            raise self.error
        return self._results[0]

    def start(self) -> None:
        if self._task is not None:
            return
        self._task = asyncio.get_running_loop().create_task(self._work)
        self._task.add_done_callback(self._finish)

    def _finish(self, task: "asyncio.Task[T]") -> None:
        self.error = Unavailable(CLOSED) if task.cancelled() else task.exception()
        if self.error is None:
            self._results.append(task.result())
        self.done = True
        self._ended.release()

    def drop(self) -> None:
        """End work that was not started."""
        self._work.close()

    def abandon(self, undo: Callable[[T], Awaitable[None]]) -> None:
        """Cancel the work, and undo it if it finished nonetheless."""

        def ended(task: "asyncio.Task[T]") -> None:
            if not task.cancelled() and task.exception() is None:
                asyncio.ensure_future(undo(task.result()))

        if self._task is None:
            self.drop()
        else:
            self._task.cancel()
            self._task.add_done_callback(ended)


async def _release(acquired: "Union[aio.Hold, aio.Holds]") -> None:
    """Release a hold that no caller received."""
    try:
        await acquired.release()
    except LockscopeError:
        pass


class _Engine:
    """An event loop in a separate thread, and its agent."""

    def __init__(self, path: str, grace: float) -> None:
        self.pid = os.getpid()
        # A poll selector has no state in the kernel that a forked child could disturb. Eventlet removes it.
        selector = getattr(selectors, "PollSelector", selectors.SelectSelector)()
        self._loop = asyncio.SelectorEventLoop(selector)
        self.agent = aio.Agent(path, grace=grace)
        self._thread = threading.Thread(target=_serve, args=(self._loop,), name="lockscope", daemon=True)
        self.closed = False
        #: Reentrant, since a signal's handler may use the library too.
        self._submitting = threading.RLock()
        self._thread.start()
        # Neither the thread nor the event loop refers to this object: it ends with its last agent object or hold.
        self._forgetting = weakref.finalize(self, _forget, self._loop, self.agent, self.pid)
        self._forgetting.atexit = False

    def run(self, work: "Coroutine[Any, Any, T]") -> T:
        """Wait for the work, which continues if the wait is interrupted."""
        call = _Call(work)
        self.submit(call)
        return call.result()

    def collect(
        self, work: "Coroutine[Any, Any, T]", to: Callable[[T], U], undo: Callable[[T], Awaitable[None]]
    ) -> U:
        """Wait for the work and pass its result on.

        An exception from a signal, such as Ctrl-C, may arrive at any moment meanwhile, even after the work has ended.
        """
        call = _Call(work)
        try:
            self.submit(call)
            return to(call.result())
        except BaseException:
            if call.error is None:
                with self._submitting:
                    if not self.closed:
                        self._loop.call_soon_threadsafe(call.abandon, undo)
            raise

    def close(self) -> None:
        """Close the agent. Calls in progress and later ones fail."""
        with self._submitting:
            if not self.closed:
                self.closed = True
                self._forgetting.detach()
                self._loop.call_soon_threadsafe(_close, self.agent)
        self._thread.join(CLOSE_LIMIT)

    def check_thread(self) -> None:
        """Raise `RuntimeError` in the event loop's thread, which would wait for itself."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a listener of a hold cannot acquire or release locks: let another thread do it")

    def submit(self, call: "_Call[T]") -> None:
        """Start the work, unless it was started before."""
        try:
            self.check_thread()
        except RuntimeError:
            call.drop()
            raise
        with self._submitting:
            if self.closed:
                call.drop()
                raise Unavailable(CLOSED)
            self._loop.call_soon_threadsafe(call.start)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run an event loop until it is stopped and its tasks have ended."""
    try:
        loop.run_forever()
        loop.run_until_complete(_end_others())
    finally:
        loop.close()


async def _end_others() -> None:
    """Wait for the tasks that a close leaves: they end by themselves, and some end a session at the agent."""
    while True:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if not others:
            return
        await asyncio.wait(others, timeout=ENDING_LIMIT)
        for task in others:
            task.cancel()


def _close(agent: aio.Agent) -> None:
    """Close the agent, then stop the event loop, on which this function is called."""
    loop = asyncio.get_running_loop()
    loop.create_task(agent.close()).add_done_callback(lambda _: loop.stop())


def _forget(loop: asyncio.AbstractEventLoop, agent: aio.Agent, pid: int) -> None:
    """Close an agent that is no longer referenced, unless it still holds a lock."""
    try:
        if os.getpid() == pid:
            loop.call_soon_threadsafe(_close_unless_held, agent)
    except RuntimeError:
        pass  # It was closed before.


def _close_unless_held(agent: aio.Agent) -> None:
    if not agent.holding:
        _close(agent)


class Hold(BaseHold):
    """A hold of a lock: a context manager that releases it."""

    def __init__(self, engine: _Engine, session: Session, grant: Grant) -> None:
        super().__init__(session, grant)
        self._engine = engine

    def extend(self, lease: Optional[float]) -> None:
        """Set a fixed lease of this many seconds from now and end renewal; None returns to renewal."""
        self.check()
        self._engine.run(self._session.extend(self._grant, lease))

    def release(self) -> None:
        """Release the hold. Raise `LockLost` if it was lost before. Further calls do nothing.

        In a forked child, this does nothing: the hold belongs to the parent.
        """
        if self._released or self._engine.pid != os.getpid():
            return
        if not self._engine.closed:
            self._engine.check_thread()
            call = _Call(self._session.unlock(self._grant))
            try:
                self._close()
                self._engine.submit(call)
                call.result()
            except BaseException:
                if not call.done:  # A signal may have arrived before the work was submitted.
                    self._engine.submit(call)
                raise
        self._close()
        if self._grant.reason is not None:
            raise LockLost(self.name, self._grant.reason)

    def __enter__(self) -> "Hold":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            self.release()
        except LockscopeError:
            if error is None:
                raise
        except BaseException:  # From a signal, perhaps before the release began. A second release does nothing.
            with contextlib.suppress(LockscopeError):
                self.release()
            raise


class Holds(BaseHolds[Hold]):
    """Several locks that were acquired together: a context manager that releases them."""

    def release(self) -> None:
        """Release all holds, then raise the first error; one from a signal takes precedence."""
        failures: List[BaseException] = []
        for hold in self:
            try:
                hold.release()
            except LockscopeError as error:
                failures.append(error)
            except BaseException as error:
                failures.insert(0, error)
        if failures:
            raise failures[0]

    def __enter__(self) -> "Holds":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            self.release()
        except LockscopeError:
            if error is None:
                raise
        except BaseException:  # From a signal, perhaps before the release began. A second release does nothing.
            with contextlib.suppress(LockscopeError):
                self.release()
            raise


class Agent:
    """The agent of this host. One object serves all threads of a process."""

    def __init__(self, socket: "Optional[Union[str, os.PathLike[str]]]" = None, *, grace: float = aio.GRACE) -> None:
        """Create an agent object. `socket` defaults to `LOCKSCOPE_SOCKET`, else `/run/lockscope/agent.sock`, else the one in
        `$XDG_RUNTIME_DIR`.

        `grace` is the number of seconds for which holds outlive a lost connection or a restart of the agent; 0 disables
        this.
        """
        self._path = socket_path(socket)
        self._grace = grace
        self._engine: Optional[_Engine] = None
        self._closed = False
        #: Reentrant, since a signal's handler may use the library too.
        self._starting = threading.RLock()
        self._thread = threading.local()
        _agents.add(self)

    def lock(
        self, name: str, *, wait: Optional[float] = None, kind: str = "lock", lease: Optional[float] = None
    ) -> Hold:
        """Acquire or reenter a lock: `with agent.lock("orders:42", wait=60) as hold`.

        `wait` is in seconds; None, or more than a year, sets no limit. `kind` is `lock`, `fair`, `read`, `write`,
        `fenced` or `red`. With `lease`, in seconds, nothing renews the hold. Raise `LockTimeout` when the wait is over,
        `Unavailable` when the agent or Redis cannot be reached, and `Rejected` when the agent refuses.
        """
        engine = self._running()
        return engine.collect(
            engine.agent.acquire(self._owner(), name, wait, kind, lease),
            lambda hold: Hold(engine, hold._session, hold._grant),
            undo=_release,
        )

    def lock_all(
        self, names: Iterable[str], *, wait: Optional[float] = None, kind: str = "lock", lease: Optional[float] = None
    ) -> Holds:
        """Acquire all or none of several locks: `with agent.lock_all(["a", "b"], wait=60) as holds`.

        There may be up to 64 names, each given once. Such calls never deadlock with each other, whatever the order of
        the names.
        """
        engine = self._running()
        return engine.collect(
            engine.agent.acquire_all(self._owner(), names, wait, kind, lease),
            lambda holds: Holds([Hold(engine, hold._session, hold._grant) for hold in holds]),
            undo=_release,
        )

    def try_lock(self, name: str, *, kind: str = "lock", lease: Optional[float] = None) -> Optional[Hold]:
        """Acquire a lock if it is free, otherwise return None."""
        try:
            return self.lock(name, wait=0, kind=kind, lease=lease)
        except LockTimeout:
            return None

    def close(self) -> None:
        """Release everything and close the connections. Waits and later calls fail with `Unavailable`.

        If the agent does not answer, this returns after five seconds at most and continues in the background.
        """
        with self._starting:
            self._closed = True
        if self._engine is not None:
            self._engine.close()

    def __enter__(self) -> "Agent":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close()

    def _owner(self) -> _Owner:
        owner: Optional[_Owner] = getattr(self._thread, "owner", None)
        if owner is None:
            owner = self._thread.owner = _Owner()
        return owner

    def _running(self) -> _Engine:
        while self._engine is None:
            with self._starting:
                if self._closed:
                    raise Unavailable(CLOSED)
                if self._engine is None:
                    engine = _Engine(self._path, self._grace)
                    # A signal's handler may have started one meanwhile, or closed this object.
                    if self._engine is None and not self._closed:
                        self._engine = engine
        return self._engine

    def _abandon(self) -> None:
        if self._engine is not None:
            _abandoned.append(self._engine)
        self._engine = None
        self._starting = threading.RLock()
        self._thread = threading.local()


def _after_fork_in_child() -> None:
    for agent in _agents:
        agent._abandon()


def _at_exit() -> None:
    # Only daemon threads can still use locks. Their calls fail now, which is no reason for a traceback.
    report = threading.excepthook
    threading.excepthook = lambda failure: None if isinstance(failure.exc_value, LockscopeError) else report(failure)
    for agent in list(_agents):
        try:
            agent.close()
        except LockscopeError:
            pass


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
