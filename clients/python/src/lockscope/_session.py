"""One owner's session with the agent, and its grants.

A session serves one owner (a thread or a task) at a time. Replies on a connection keep the order of its commands, so a
shared connection would report one owner's grant only after another owner's wait has ended.
"""

import asyncio
import contextlib
import math
from typing import Any, Callable, Coroutine, Dict, Iterator, List, Optional, Tuple

from ._clock import boot
from ._connection import REPLY_LIMIT, Connection, ErrorReply, Push, Word, one_call
from ._errors import Disconnected, LockLost, LockTimeout, LockscopeError, Unavailable, from_reply
from ._grant import Grant
from ._turn import Turn
from ._words import lock_words, ms, session_words

#: The longest wait, in seconds, that the agent limits: a year.
LONGEST_WAIT = 365 * 24 * 60 * 60.0
#: The longest wait for an agent that is not running.
CONNECT_LIMIT = 30.0
#: The time that the agent has to answer even if the wait ends sooner.
ANSWER_TIME = 3.0
#: The time after its limit within which the reply to a wait must arrive. Redis may leave the last attempt unanswered
#: for two seconds, and then the release of what it acquired for another two.
ANSWER_MARGIN = 5.0
RETRY_PAUSE = 0.1
#: Renewed deadlines are read again after this part of the remaining validity.
REFRESH_PART = 1 / 3
SHORTEST_PAUSE = 0.05
#: The time for which a close waits for the agent.
CLOSE_LIMIT = 1.0
CLOSED = "this Agent is closed"

Key = Tuple[str, str]


class Session:
    """A connection to the agent, and the state that outlives it."""

    def __init__(self, path: str, grace: float, on_idle: "Callable[[Session], None]") -> None:
        self._path = path
        self._grace = grace
        self._id: Optional[str] = None
        self._secret = ""
        self._connection: Optional[Connection] = None
        self._loop = asyncio.get_running_loop()
        self._mutex = Turn()
        self._timer: Optional[asyncio.TimerHandle] = None
        #: True while the deadlines are being read.
        self._reading = False
        self._tasks: "set[asyncio.Task[None]]" = set()
        self._closing = False
        #: True while the command in progress waits for a lock.
        self._waiting = False
        #: The grace that the agent gives this session.
        self._given = 0.0
        #: The last instant at which the agent certainly had this session, on the boot clock.
        self._proven = 0.0
        #: True after a command went unanswered, so that the agent may have holds unknown here.
        self._uncertain = False
        #: True while a recovery waits for the current command to end.
        self._recovering = False
        self.grants: Dict[Key, Grant] = {}
        #: The last event of each lock that has no grant here: its grant may be recorded only later.
        self._unclaimed: Dict[Key, Push] = {}
        #: The owner that this session serves, and the callback for a session that is free for another owner.
        self.owner: Optional[object] = None
        self._on_idle = on_idle
        #: The number of calls in progress. A session with neither calls nor grants may serve another owner.
        self._users = 0
        #: True in a fork of the session's process.
        self.abandoned = False

    @property
    def idle(self) -> bool:
        return not (self._users or self._holds or self._mutex.locked())

    @property
    def graced(self) -> bool:
        """Return whether the agent gives this session the grace that it wants."""
        return self._given == self._grace

    @property
    def _holds(self) -> bool:
        """Return whether the agent may have holds of this session."""
        return bool(self.grants) or self._uncertain

    # Locks

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._check_idle()

    def _check_idle(self) -> None:
        if self.owner is not None and self.idle:
            self._on_idle(self)

    async def lock(self, name: str, kind: str, wait: Optional[float], lease: Optional[float]) -> Grant:
        """Acquire or reenter the lock."""
        with self._used():
            (grant,) = await self._lock([name], False, kind, wait, lease)
            return grant

    async def lock_all(
        self, names: List[str], kind: str, wait: Optional[float], lease: Optional[float]
    ) -> List[Grant]:
        """Acquire or reenter all of the locks or none."""
        with self._used():
            return await self._lock(names, True, kind, wait, lease)

    async def _lock(
        self, names: List[str], several: bool, kind: str, wait: Optional[float], lease: Optional[float]
    ) -> List[Grant]:
        if wait is not None and math.isnan(wait):
            raise ValueError("wait is a number of seconds, not nan")
        if wait is not None and wait > LONGEST_WAIT:
            wait = None
        kind = kind.lower()  # As in the agent's replies.
        end = None if wait is None else boot() + wait
        described = ", ".join(names)
        await self._turn(end, described)
        withdrawal: Optional["asyncio.Task[None]"] = None
        unanswered = False
        try:
            while True:
                patience = boot() + CONNECT_LIMIT
                await self._connect(patience if end is None else min(end, patience))
                known = [self.grants[name, kind] for name in names if (name, kind) in self.grants]
                may_be_granted = unanswered and not several  # By a command whose reply was lost.
                if await self._clear(known, surplus=not may_be_granted):
                    continue
                if may_be_granted and known and known[0].count > known[0].handles:
                    granted = known
                    break
                connection = self._connection
                assert connection is not None
                left = None if end is None else max(0.0, end - boot())
                self._unclaimed.clear()  # They tell of earlier grants.
                sent = boot()
                reply = connection.send(*lock_words(names, several, kind, left, lease, self._id))
                try:
                    limit = None if left is None else left + ANSWER_MARGIN
                    self._waiting = True
                    answered, _ = await asyncio.wait({reply}, timeout=limit)
                except asyncio.CancelledError:
                    withdrawal = self._spawn(self._withdraw(connection, reply, lease, sent))
                    raise
                finally:
                    self._waiting = False
                if not answered:
                    self._doubt(connection)
                    raise Unavailable(f"could not acquire {described}: no reply from the agent within {limit:.0f} s")
                try:
                    rows = reply.result()
                except Disconnected:
                    self._doubt(connection)
                    unanswered = True
                    continue
                except ErrorReply as error:
                    if error.code == "DRAINING" and (end is None or boot() < end):
                        await asyncio.sleep(RETRY_PAUSE)
                        await self._refresh_while_draining()
                        continue
                    if error.code == "LOST":
                        if known:
                            raise LockLost(described, str(error)) from None
                        continue  # The lock was granted and lost before the agent could report it: the wait continues.
                    raise from_reply(str(error)) from None
                if self._closing:
                    raise Unavailable(CLOSED)
                if rows is None:
                    raise LockTimeout(f"could not acquire {described} within {wait:g} s")
                if self._connection is not connection:
                    # It ended together with this reply, as before uvloop 0.23: resuming the session settles the grants.
                    self._doubt(connection)
                    unanswered = True
                    continue
                granted = self._granted_all(rows, lease, sent)
                if all([grant.held for grant in granted]):
                    break
            for grant in granted:
                # The agent may have granted it to a call whose reply was lost.
                grant.renewed = lease is None or (grant.renewed and grant.handles > 0)
                grant.handles += 1
            self._arm()
            return granted
        finally:
            if withdrawal is None:
                self._mutex.release()
            else:
                withdrawal.add_done_callback(self._withdrawn)

    async def _turn(self, end: Optional[float], described: str) -> None:
        """Wait for the session's current command to end."""
        if end is None or not (self._mutex.locked() or self._mutex.queued):
            await self._mutex.acquire()
            return
        limit = max(end - boot(), 0.0 if self._waiting else ANSWER_TIME)
        try:
            await asyncio.wait_for(self._mutex.acquire(), limit)
        except asyncio.TimeoutError:
            if self._waiting:
                raise LockTimeout(f"could not acquire {described}: this owner still waits for another lock") from None
            raise Unavailable(f"could not acquire {described}: no reply from the agent to an earlier command") from None

    async def _clear(self, known: List[Grant], surplus: bool) -> bool:
        """Release grants that arrived after their deadline and, if so requested, the `surplus` of earlier commands.

        Return whether there were any. Raise `LockLost` if an open hold was lost.
        """
        cleared = False
        for grant in known:
            held = grant.held
            if not held or (surplus and grant.count > grant.handles):
                await self._settle(grant)
                cleared = True
            if not held and grant.handles:
                raise LockLost(grant.name, grant.reason or "")
        return cleared

    async def unlock(self, grant: Grant) -> None:
        """Close a handle and release its hold, even when cancelled."""
        grant.handles -= 1
        await self._finish(self._release(grant), grant)

    async def _release(self, grant: Grant) -> None:
        with self._used():
            async with self._mutex:
                await self._settle(grant)

    async def _finish(self, work: "Coroutine[Any, Any, None]", grant: Grant) -> None:
        """Run work that continues if its caller is cancelled, which would leave a command without a reply."""
        task = self._spawn(work)
        # This keeps asyncio from reporting an error that a cancelled caller does not see.
        task.add_done_callback(lambda _: task.cancelled() or task.exception())
        await asyncio.wait({task})
        if task.cancelled():  # By the close of the agent object, which has lost the hold.
            raise LockLost(grant.name, grant.reason or CLOSED)
        task.result()

    async def extend(self, grant: Grant, lease: Optional[float]) -> None:
        """Set a fixed lease from now, or return the hold to the watchdog, even when cancelled."""
        if lease is not None and ms(lease) == 0:  # The agent would understand it as a return to renewal.
            raise from_reply("LIMIT a lease must be at least 0.1 s")
        if not self.usable():
            raise LockLost(grant.name, grant.reason or "")
        await self._finish(self._extend(grant, lease), grant)

    async def _extend(self, grant: Grant, lease: Optional[float]) -> None:
        async with self._mutex:
            await self._connect(boot() + REPLY_LIMIT)
            sent, before = boot(), grant.deadline
            grant.latest = sent + (lease or grant.watched)
            grant.deadline = min(before, grant.latest)
            self._arm()
            try:
                valid = await self._call("EXTEND", grant.name, ms(lease or 0), "KIND", grant.kind, "IN", self._id or "")
            except Disconnected as error:
                raise Unavailable(f"could not extend {grant.name}: {error}") from None
            except ErrorReply as error:
                if error.code in ("LOST", "NOTHELD"):
                    grant.lose(str(error))
                    raise LockLost(grant.name, str(error)) from None
                if error.code != "UNAVAILABLE":
                    grant.deadline = before  # The agent refused, so the old lease continues.
                raise from_reply(str(error)) from None
            else:
                if not grant.held:  # A hold whose deadline has passed stays lost.
                    raise LockLost(grant.name, grant.reason or "")
                grant.renewed = not lease
                grant.deadline = sent + valid / 1000
                if self._connection is None:  # It ended together with this reply.
                    self._limit(grant)
            finally:
                grant.latest, grant.dated = math.inf, boot()
                self._arm()

    async def close(self) -> None:
        """End the session and all its holds."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        held = self._holds
        for grant in self.grants.values():
            grant.lose("the agent object was closed")
        self.grants.clear()
        connection = self._connection
        if connection is None:
            if held or self._mutex.locked():
                # With a slow agent this continues in the background, as does the work that has the mutex. That work ends
                # by itself, and it ends the session if it makes a connection.
                await asyncio.wait({self._spawn(self._end_at_agent())}, timeout=CLOSE_LIMIT)
            return
        with contextlib.suppress(Disconnected, ErrorReply, asyncio.TimeoutError):
            await asyncio.wait_for(self._quit(connection), CLOSE_LIMIT)
        connection.abort()
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()

    async def _quit(self, connection: Connection) -> None:
        ended = connection.send("QUIT")
        if self._mutex.locked():  # The owner may wait for a lock; `QUIT` is answered only afterwards.
            with contextlib.suppress(OSError, Disconnected, ErrorReply):
                await one_call(self._path, "CANCEL", self._id or "", self._secret)
        await ended

    async def _end_at_agent(self) -> None:
        """End a session without a connection at the agent, on a new one."""
        async with self._mutex:
            if self._id is not None:  # A connection that was being made would have ended the session.
                with contextlib.suppress(OSError, Disconnected, ErrorReply, LockscopeError):
                    await self._open(boot() + ANSWER_TIME)

    def close_soon(self) -> None:
        """End a session that has no holds, in the background."""
        self._spawn(self.close())

    def abandon(self) -> None:
        """Drop the session in a forked child: it remains the parent's."""
        self.abandoned = True
        for grant in self.grants.values():
            grant.lose_in_child()
        if self._connection is not None:
            self._connection.abandon()

    def usable(self) -> bool:
        """Return whether this is the session's event loop. Drop the session if its event loop is closed."""
        if asyncio.get_running_loop() is self._loop:
            return True
        if not self._loop.is_closed():
            raise RuntimeError("this hold is bound to a different event loop")
        self.drop()
        return False

    def drop(self) -> None:
        """End the session without its event loop, which is closed."""
        for grant in self.grants.values():
            grant.lose("its event loop was closed")
        if self._connection is not None:
            self._connection.quit_at_once()

    def _granted(self, fields: Dict[str, Any], lease: Optional[float]) -> Grant:
        key = (fields["lock"], fields["kind"])
        grant = self.grants.get(key)
        if grant is None or grant.holder != fields["holder"]:
            if grant is not None:
                grant.lose("it was granted again")
            grant = self.grants[key] = Grant(*key, fields["holder"], fields["token"], lease is None)
        grant.count = fields["holds"]
        grant.renewed = grant.renewed or lease is None
        grant.deadline, grant.dated = max(grant.deadline, _deadline(fields)), boot()
        if key in self._unclaimed:
            grant.apply(self._unclaimed.pop(key))
        return grant

    def _granted_all(self, rows: Any, lease: Optional[float], sent: float) -> List[Grant]:
        granted = []
        for row in rows if isinstance(rows, list) else [rows]:
            self._prove(sent + row["waited_ms"] / 1000)
            grant = self._granted(row, lease)
            if lease is None and row["holds"] == 1:  # A reentry may find a fixed lease.
                grant.watched = grant.deadline - boot()
            granted.append(grant)
        return granted

    async def _settle(self, grant: Grant) -> None:
        """Release the holds that the agent has beyond the open handles."""
        try:
            while grant.count > grant.handles:
                if self._closing or (not grant.held and self._connection is None):
                    break
                await self._connect(grant.deadline)
                if grant.count <= grant.handles:
                    break
                try:
                    grant.releasing = grant.held and not grant.handles
                    grant.count = await self._call("UNLOCK", grant.name, "KIND", grant.kind, "IN", self._id or "")
                    if grant.count and grant.kind == "read" and not grant.renewed:
                        await self._refresh()  # The lease of a reader's entry ends with it.
                        self._arm()
                except Disconnected:
                    continue
                except ErrorReply as error:
                    if error.code in ("LOST", "NOTHELD"):
                        grant.count = 0
                        grant.lose(str(error))
                    elif error.code == "UNAVAILABLE":
                        grant.count -= 1  # This owner no longer holds it: the agent keeps trying to release it.
                    else:
                        raise from_reply(str(error)) from None
        finally:
            if grant.handles == 0:
                self._forget(grant)

    def _forget(self, grant: Grant) -> None:
        if self.grants.get((grant.name, grant.kind)) is grant:
            del self.grants[grant.name, grant.kind]

    async def _withdraw(
        self, connection: Connection, reply: "asyncio.Future[Any]", lease: Optional[float], sent: float
    ) -> None:
        """End an abandoned wait, and release what it was granted."""
        try:
            await one_call(self._path, "CANCEL", self._id or "", self._secret)
            answered, _ = await asyncio.wait({reply}, timeout=REPLY_LIMIT)
            if not answered:
                raise Disconnected
            if isinstance(reply.exception(), ErrorReply) or reply.result() is None:
                return
            for grant in self._granted_all(reply.result(), lease, sent):
                await self._settle(grant)
        except (OSError, Disconnected, ErrorReply, LockscopeError):
            self._doubt(connection)

    def _withdrawn(self, withdrawal: "asyncio.Task[None]") -> None:
        if withdrawal.cancelled() and self._connection is not None:
            # Its event loop will probably be closed, and nothing else would end the wait.
            self._end("the withdrawal of its owner's wait was cancelled")
            self._connection.quit_at_once()
        self._mutex.release()
        self._check_idle()

    # The connection

    async def _call(self, *words: Word) -> Any:
        """Run a command that does not wait for a lock."""
        connection = self._connection
        assert connection is not None
        sent = boot()
        try:
            reply = await connection.call(*words, limit=REPLY_LIMIT)
        except (Disconnected, asyncio.CancelledError):
            self._doubt(connection)
            raise
        self._prove(sent)
        return reply

    def _prove(self, sent: float) -> None:
        self._proven = max(self._proven, sent)

    async def _connect(self, end: Optional[float]) -> None:
        """Connect, or resume the session, and retry until the instant `end`. Fail if the session is closed."""
        while self._closing or self._connection is None:
            if self._closing:
                raise Unavailable(CLOSED)
            try:
                await self._open(None if end is None else max(end, boot() + ANSWER_TIME))
                return
            except (OSError, Disconnected) as error:
                cause: Exception = Unavailable(f"no agent at {self._path}: {error}")
            except ErrorReply as error:
                cause = from_reply(str(error))
                if error.code == "GONE":
                    self._end("the agent has ended the session")
                    continue
                if error.code not in ("SESSION", "UNAVAILABLE", "DRAINING"):
                    raise cause from None
            if end is not None and boot() >= end:
                raise cause
            await asyncio.sleep(RETRY_PAUSE)

    async def _open(self, end: Optional[float]) -> None:
        def limit() -> float:
            return REPLY_LIMIT if end is None else min(REPLY_LIMIT, max(0.0, end - boot()))

        connection = await Connection.open(self._path, self._on_push, self._on_close)
        self._unclaimed.clear()
        try:
            sent = boot()
            if self._id is None:
                try:
                    ticket = await connection.call(*session_words(self._grace), limit=limit())
                    self._given = self._grace
                except ErrorReply as error:
                    if error.code != "UNAVAILABLE" or not self._grace:
                        raise
                    # An agent without a journal grants locks but no grace.
                    ticket = await connection.call(*session_words(0), limit=limit())
                    self._given = 0.0
            else:
                ticket = await connection.call("RESUME", self._id, self._secret, limit=limit())
                self._secret = ticket["secret"]  # The next command voids the old secret.
                self._warn(False)  # After it, the agent reports the holds that are at risk.
                await connection.call(*session_words(0), limit=limit())
                # A loss before PUSH on is never reported.
                ticket["holds"] = await connection.call("HOLDS", limit=limit())
            if connection.refusal is not None:
                raise connection.refusal
            if self._closing:
                self._id = None
                await connection.call("QUIT", limit=CLOSE_LIMIT)
                raise Unavailable(CLOSED)
            if connection.closed:
                raise Disconnected
        except BaseException as error:
            connection.abort()
            self._warn(True)
            if isinstance(error, Disconnected) and connection.refusal is not None:
                raise Disconnected(connection.refusal) from None
            raise
        self._id, self._secret = ticket["id"], ticket["secret"]
        self._connection, self._proven, self._uncertain = connection, sent, False
        self._take_over(ticket.get("holds", []))

    def _take_over(self, rows: List[Dict[str, Any]]) -> None:
        """Compare the grants with the agent's list of this session's holds."""
        listed = {row["holder"]: row for row in rows}
        for grant in list(self.grants.values()):
            row = listed.pop(grant.holder, None)
            if row is None:
                grant.end_unlisted()
            elif grant.held:  # A hold whose deadline has passed stays lost.
                grant.count = row["holds"]
                grant.deadline, grant.dated = _deadline(row), boot()
        for row in listed.values():
            # It was granted by a LOCK whose reply was lost. If that call continues, it finds it here; otherwise it is released.
            self._granted(row, None)
        for grant in self.grants.values():
            if grant.count > grant.handles:
                self._spawn(self._settle_later(grant))
        self._arm()

    async def _settle_later(self, grant: Grant) -> None:
        async with self._mutex:
            try:
                await self._settle(grant)
            except (LockscopeError, Disconnected):
                pass
        self._check_idle()

    def _warn(self, at_risk: bool) -> None:
        for grant in self.grants.values():
            grant.warn(at_risk)

    def _on_push(self, push: Push) -> None:
        event, name, kind, *_ = push
        grant = self.grants.get((name, kind))
        if grant is None or grant.reason is not None:
            self._unclaimed[name, kind] = push
        if grant is not None:
            grant.apply(push)
        if event in ("lock-jeopardy", "lock-safe"):  # The deadline may have changed, even to an earlier one.
            self._spawn(self._tend())

    def _on_close(self, connection: Connection) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        for grant in self.grants.values():
            self._limit(grant)
        self._warn(True)
        if not self._holds and not self._users:
            self._id = None
        self._recover()

    def _limit(self, grant: Grant) -> None:
        """Limit a hold to the time for which the session certainly outlives its connection."""
        grant.deadline = min(grant.deadline, self._proven + self._given)

    def _doubt(self, connection: Connection) -> None:
        """Note that a command went unanswered, and close its connection."""
        self._uncertain = True
        connection.abort()
        self._on_close(connection)
        if self._connection is None:
            self._recover()

    def _recover(self) -> None:
        """Resume the session in the background for as long as the agent may have holds of it."""
        if self._holds and not self._closing and not self._recovering:
            self._recovering = True
            self._spawn(self._resume())

    async def _resume(self) -> None:
        async with self._mutex:
            self._recovering = False
            if self._connection is None and self._holds:
                # A call may have failed since, and left the session uncertain.
                end = max([boot(), *(grant.deadline for grant in self.grants.values())])
                if self._uncertain:
                    end = max(end, boot() + self._given)
                try:
                    await self._connect(end)
                except LockscopeError as error:
                    if not self._closing:
                        self._end(str(error))
        self._check_idle()

    def _end(self, reason: str) -> None:
        """Give up a session that cannot be resumed."""
        self._id, self._uncertain = None, False
        for grant in self.grants.values():
            grant.count = 0
            grant.lose(reason)

    # Deadlines

    def _arm(self) -> None:
        """Set the timer for the next deadline, or for the next reading of renewed ones unless one is in progress.

        The reading also proves that the agent has the session, from which its grace would count, or requests a grace that
        the agent could not give before.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = boot()
        live = [grant for grant in self.grants.values() if grant.reason is None]
        if live:
            reads = not self._reading
            pause = min((g.deadline - now) * (REFRESH_PART if g.renewed and reads else 1) for g in live)
            if self._grace and reads:
                pause = min(pause, self._grace * REFRESH_PART)
            pause = max(pause, SHORTEST_PAUSE)
            self._timer = asyncio.get_running_loop().call_later(pause, lambda: self._spawn(self._tend()))

    async def _tend(self) -> None:
        """End holds whose deadline has passed, and read the deadlines of the others."""
        live = any([grant.held for grant in self.grants.values()])
        if live and self._connection is not None and not self._reading:
            self._reading = True
            self._arm()  # A deadline may pass before the agent answers.
            try:
                await self._read_deadlines()
            except (OSError, Disconnected, ErrorReply):
                pass  # The call that finds the connection lost reconnects.
            finally:
                self._reading = False
        self._arm()

    async def _read_deadlines(self) -> None:
        if self._mutex.locked() or self._mutex.queued:  # The owner waits for another lock, and replies keep their order.
            await self._refresh_from_outside()
            return
        async with self._mutex:
            await self._refresh()
            if not self.graced and self._connection is not None:
                await self._call(*session_words(self._grace))
                self._given = self._grace

    async def _refresh(self) -> None:
        """Read the deadlines on the session's connection.

        Only what has the turn records grants, so a grant that is not listed was recorded before.
        """
        if self._connection is None:
            return
        sent = boot()
        rows = await self._call("HOLDS")
        for row in rows:
            self._renewed(row, sent)
        listed = {row["holder"] for row in rows}
        for grant in list(self.grants.values()):
            if grant.holder not in listed:
                grant.end_unlisted()

    async def _refresh_while_draining(self) -> None:
        """Read the deadlines between two attempts. A draining agent accepts no other connection for this."""
        if self.grants:
            with contextlib.suppress(Disconnected, ErrorReply):  # The next attempt reconnects.
                await self._refresh()

    async def _refresh_from_outside(self) -> None:
        sent = boot()
        rows = await one_call(self._path, "HOLDS", self._id or "", self._secret)
        self._prove(sent)
        for row in rows:
            self._renewed(row, sent)

    def _renewed(self, row: Dict[str, Any], sent: float) -> None:
        grant = self.grants.get((row["lock"], row["kind"]))
        # A hold whose deadline passed before this reply came stays lost.
        if grant is not None and grant.holder == row["holder"] and grant.held and self._connection is not None:
            until = min(_deadline(row), grant.latest)
            # Redis may have set a shorter fixed lease than the agent knows.
            if sent >= grant.dated and (grant.renewed or until < grant.deadline):
                grant.deadline = until

    def _spawn(self, work: Any) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _deadline(row: Dict[str, Any]) -> float:
    """Return the seconds of the boot clock until which the agent guarantees a hold."""
    return float(row["valid_until_ns"]) / 1e9
