"""A worker that keeps its lock across broken connections, agent restarts and its own restarts.

Needs redis-py. LOCKSCOPE_SOCKET is the agent's socket, WORKER_TICKET the file with its session's id and secret."""

import contextlib
import json
import os
import pathlib
import sys
import threading
import time

import redis

SOCKET = os.environ.get("LOCKSCOPE_SOCKET", "/run/lockscope/agent.sock")
TICKET = pathlib.Path(os.environ.get("WORKER_TICKET", "worker.ticket"))
LOCK = "orders:42"
GRACE = 60  # seconds
LOST = 76  # exit status


def say(text):
    print(text, flush=True)


def lost(why):
    """Exits at once: no thread may continue to work under the lock."""
    say(f"lost: {why}")
    os._exit(LOST)


def connect():
    return redis.Redis(unix_socket_path=SOCKET, decode_responses=True, single_connection_client=True,
                       socket_timeout=None, retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0))


class Resumed(Exception):
    """The connection broke and the session was resumed on a new one: check `holds` and repeat the command."""


class Session:
    def __init__(self):
        self.mutex = threading.Lock()
        self.calm = threading.Event()  # not set while a hold is at risk (jeopardy)
        self.calm.set()
        self.holds = {}  # lock: hold count
        self.ticket = json.loads(TICKET.read_text()) if TICKET.exists() else None
        self.agent = None
        self.generation = 0
        self.recover(0, is_broken=True)
        threading.Thread(target=self.listen, daemon=True).start()

    def recover(self, generation, is_broken):
        """Resumes the session on a new connection, unless that has been done or the old connection is alive."""
        deadline = time.monotonic() + GRACE
        with self.mutex:
            ticket = self.ticket
            while self.generation == generation:
                try:
                    agent = connect()
                    if ticket:
                        reply = agent.execute_command("RESUME", *ticket)
                    else:
                        reply = agent.execute_command("SESSION", "GRACE", GRACE * 1000)
                except redis.ResponseError as error:
                    code = str(error).split()[0]
                    if code == "GONE":
                        if any(self.holds.values()):
                            lost("the session has ended")
                        ticket = None
                        continue
                    if code == "SESSION" and not is_broken:
                        return
                    if code not in ("SESSION", "UNAVAILABLE"):
                        raise
                    if time.monotonic() > deadline:
                        lost(error)
                except redis.ConnectionError:
                    if time.monotonic() > deadline:
                        lost("there is no agent")
                else:
                    if ticket:
                        say("resumed")
                    self.ticket = [reply["id"], reply["secret"]]
                    new = TICKET.with_name(f"{TICKET.name}.new")
                    new.touch(mode=0o600)
                    new.write_text(json.dumps(self.ticket))
                    new.replace(TICKET)  # a reader never finds half a ticket
                    now = {row["lock"]: row["holds"] for row in reply.get("holds", [])}
                    if any(name not in now for name, count in self.holds.items() if count > 0):
                        lost("it was not there any more")
                    self.calm.set()  # another agent sends no `safe` for its predecessor's `jeopardy`
                    self.agent, self.holds = agent, now
                    self.generation += 1
                    return
                time.sleep(0.1)

    def call(self, *words):
        with self.mutex:
            agent, generation = self.agent, self.generation
        try:
            return agent.execute_command(*words)
        except redis.ConnectionError:
            self.recover(generation, is_broken=True)
            raise Resumed from None

    def lock(self, name, seconds):
        """Acquires or reenters the lock. False if it could not be acquired in time."""
        wanted = self.holds.get(name, 0) + 1
        while self.holds.get(name, 0) < wanted:
            try:
                held = self.call("LOCK", name, "WAIT", seconds * 1000, "IN", self.ticket[0])
            except Resumed:
                continue
            except redis.ResponseError as error:
                if str(error).split()[0] != "DRAINING":
                    raise
                time.sleep(0.1)  # the next agent grants it
                continue
            if held is None:
                return False
            self.holds[name] = held["holds"]
        return True

    def unlock(self, name):
        wanted = self.holds[name] - 1
        while self.holds.get(name, 0) > wanted:
            # From here on a loss of the lock does not matter.
            self.holds[name] = wanted
            try:
                self.holds[name] = self.call("UNLOCK", name, "IN", self.ticket[0])
            except Resumed:
                continue
            except redis.ResponseError as error:
                if str(error).split()[0] != "UNAVAILABLE":  # released: the agent keeps trying until Redis confirms it
                    raise

    def quit(self):
        """Ends the session. Nothing is held any more, so a broken connection does no harm."""
        with self.mutex, contextlib.suppress(redis.ConnectionError):
            self.agent.execute_command("QUIT")

    def listen(self):
        """Receives events on a separate connection, while the other one waits or is busy."""
        ear = None
        while True:
            generation = self.generation
            try:
                if ear is None:
                    ear = connect()
                events = ear.execute_command("EVENTS", *self.ticket, "WAIT", 60_000)
            except redis.ResponseError:
                time.sleep(0.1)  # resumed meanwhile, with a new secret
                continue
            except redis.ConnectionError:
                self.recover(generation, is_broken=False)
                ear = None
                time.sleep(0.1)
                continue
            for what, *rest in events:
                if what == "jeopardy":
                    say("jeopardy")
                    self.calm.clear()
                elif what == "safe":
                    self.calm.set()
                elif what == "lost":
                    lost(rest[-1])


def check_stock(session):
    """Called with and without the lock: it reenters the lock, which is always safe."""
    session.lock(LOCK, 60)
    session.unlock(LOCK)


session = Session()
if LOCK not in session.holds and not session.lock(LOCK, 60):
    raise SystemExit(f"could not acquire {LOCK} within a minute")
say(f"working on {LOCK}")
for order in sys.stdin:
    session.calm.wait()  # start nothing new while the lock is at risk
    check_stock(session)
    say(f"did {order.strip()}")
session.unlock(LOCK)
session.quit()
TICKET.unlink()
say("done")
