"""Drives this library for the conformance suite. Usage: driver.py threads|asyncio

Reads a command a line: `<tag> <task> <verb> <arguments>`. A task is a thread or an asyncio task, which runs its commands
one after another. Answers `<tag> <JSON>`; a loss and a warning are reported as `event <JSON>`. The verbs:

    lock <handle> <name>[,<name>…] [wait=<ms>] [lease=<ms>] [kind=<kind>]
    check <handle> | release <handle> | extend <handle> <ms>
    part <handle>   releases the first of several; the handle is that of the next
    spoil <handle>  adds listeners that raise
    misname         locks under names that cannot be sent
    graced <ms>     locks and releases with another agent object, of this grace
    close           closes the agent object
    many <count>   one lock for each of that many tasks; `unmany` releases them
    cancel <tag>   interrupts a command of the task `main`
    meddle <handle> <name>  locks, and releases the hold, in its listener for a loss (threads)
    fork <handle>  checks and releases the hold in a forked child
    block <ms>     blocks the event loop, after an event that says so (asyncio)
    loops <name>   uses another agent object in one event loop after another, and in two at once (asyncio)
    signal <name>  uses another agent object in a signal's handler while that object starts (threads)
"""

import asyncio
import contextlib
import json
import os
import pathlib
import queue
import signal
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "src"))

import lockscope  # noqa: E402
from lockscope import _sync, aio  # noqa: E402
from lockscope._hold import BaseHold  # noqa: E402

GRACE = float(os.environ.get("GRACE_MS", "60000")) / 1000

printing = threading.Lock()


def say(tag, value):
    with printing:
        print(tag, json.dumps(value), flush=True)


def failure(error):
    if isinstance(error, lockscope.LockTimeout):
        return {"error": "timeout"}
    if isinstance(error, lockscope.LockLost):
        return {"error": "lost", "text": str(error)}
    if isinstance(error, lockscope.Unavailable):
        return {"error": "unavailable", "text": str(error)}
    if isinstance(error, lockscope.Rejected):
        return {"error": error.code, "text": str(error)}
    if isinstance(error, (KeyboardInterrupt, asyncio.CancelledError)):
        return {"error": "cancelled"}
    raise error


def options(words):
    given = dict(word.split("=") for word in words)
    seconds = {key: float(given[key]) / 1000 for key in ("wait", "lease") if key in given}
    return {**seconds, "kind": given.get("kind", "lock")}


def describe(hold):
    members = [hold] if isinstance(hold, BaseHold) else list(hold)
    holder = ",".join(member.holder for member in members)
    return {"token": members[0].token, "holder": holder, "remaining": round(hold.remaining() * 1000)}


def watch(handle, hold):
    for member in [hold] if isinstance(hold, BaseHold) else hold:
        member.on_lost(lambda member=member: say("event", {"lost": handle, "reason": member.lost_reason}))
        member.on_risk(lambda: say("event", {"risk": handle}))


def spoil(hold):
    def fail():
        raise RuntimeError("a listener failed")

    hold.on_lost(fail)
    hold.on_risk(fail)


class Threads:
    """Each task is a thread; `main` is the main thread, which signals can interrupt."""

    def __init__(self):
        self.agent = lockscope.Agent(grace=GRACE)
        self.holds = {}
        self.queues = {"main": queue.SimpleQueue()}
        #: The command of `main`, the same while it can be interrupted, and the one to interrupt.
        self.current = self.busy = self.cancelled = None
        #: The commands of `main` that can no longer be interrupted.
        self.over = set()
        begun, ended = self.begun, self.ended

        class Engine(_sync._Engine):
            """An engine: a command can be interrupted once it submits work. Before that, an interrupt would undo a release."""

            def submit(self, call):
                begun()
                super().submit(call)

        class Granted(_sync.Hold):
            """A hold whose command cannot be interrupted any more: the library has passed the result on."""

            def __init__(self, *given):
                super().__init__(*given)
                ended()

        _sync._Engine, _sync.Hold = Engine, Granted

    def run(self):
        signal.signal(signal.SIGINT, self.interrupt)
        threading.Thread(target=self.read, daemon=True).start()
        self.work("main")

    def interrupt(self, *_):
        """Raises what Ctrl-C raises, unless the command has not begun or has ended meanwhile."""
        if self.busy is not None and self.busy == self.cancelled:
            raise KeyboardInterrupt

    def read(self):
        for line in sys.stdin:
            tag, task, verb, *words = line.split()
            if verb == "cancel":
                self.cancel(words[0])
                say(tag, {})
                continue
            if task not in self.queues:
                self.queues[task] = queue.SimpleQueue()
                threading.Thread(target=self.work, args=(task,), daemon=True).start()
            self.queues[task].put((tag, verb, words))
        self.queues["main"].put(None)

    def work(self, task):
        while True:
            command = self.queues[task].get()
            if command is None:
                return
            tag, verb, words = command
            try:
                if task == "main":
                    self.current = tag
                answer = getattr(self, verb)(*words)
                self.ended()
            except (Exception, KeyboardInterrupt) as error:
                self.ended()
                answer = failure(error)
            say(tag, answer)

    def cancel(self, tag):
        while self.busy != tag and tag not in self.over:
            time.sleep(0.001)
        self.cancelled = tag
        os.kill(os.getpid(), signal.SIGINT)

    def begun(self):
        if threading.current_thread() is threading.main_thread():
            self.busy = self.current

    def ended(self):
        if threading.current_thread() is threading.main_thread():
            self.busy = None
            self.over.add(self.current)

    def lock(self, handle, name, *words):
        names = name.split(",")
        if len(names) > 1:
            self.holds[handle] = self.agent.lock_all(names, **options(words))
        else:
            self.holds[handle] = self.agent.lock(name, **options(words))
        watch(handle, self.holds[handle])
        return describe(self.holds[handle])

    def check(self, handle):
        self.holds[handle].check()
        return describe(self.holds[handle])

    def release(self, handle):
        self.holds[handle].release()
        return {}

    def extend(self, handle, ms):
        self.holds[handle].extend(float(ms) / 1000 or None)
        return describe(self.holds[handle])

    def part(self, handle):
        first, self.holds[handle] = self.holds[handle]
        first.release()
        return {}

    def spoil(self, handle):
        spoil(self.holds[handle])
        return {}

    def meddle(self, handle, name):
        hold = self.holds[handle]

        def listener():
            for call in (lambda: self.agent.lock(name), hold.release):
                try:
                    call()
                except RuntimeError as error:
                    say("event", {"meddled": handle, "text": str(error)})

        hold.on_lost(listener)
        return {}

    def misname(self):
        for mistake in (lambda: self.agent.lock(None), lambda: self.agent.lock_all("abc")):
            try:
                mistake()
                return {"accepted": True}
            except TypeError:
                pass
        return describe(self.agent.lock("\ud800"))

    def signal(self, name):
        agent, engine = lockscope.Agent(), _sync._Engine

        def interrupted(*given):
            _sync._Engine = engine
            signal.raise_signal(signal.SIGUSR1)
            return engine(*given)

        def handle(*_):
            with agent.lock(name, wait=10) as hold:
                hold.check()

        signal.signal(signal.SIGUSR1, handle)
        _sync._Engine = interrupted
        with agent.lock(name, wait=10) as hold:
            hold.check()
        agent.close()
        return {}

    def graced(self, ms):
        with lockscope.Agent(grace=float(ms) / 1000) as other, other.lock("graced"):
            return {}

    def close(self):
        self.agent.close()
        return {}

    def many(self, count):
        self.release_many, held = threading.Event(), threading.Semaphore(0)
        self.errors = []

        def one(number):
            try:
                with self.agent.lock(f"many:{number}", wait=600) as hold:
                    held.release()
                    self.release_many.wait()
                    hold.check()
            except lockscope.LockscopeError as error:
                self.errors.append(str(error))
                held.release()

        self.many_threads = [threading.Thread(target=one, args=(number,)) for number in range(int(count))]
        for thread in self.many_threads:
            thread.start()
        for _ in self.many_threads:
            held.acquire()
        return {"errors": self.errors}

    def unmany(self):
        self.release_many.set()
        for thread in self.many_threads:
            thread.join()
        return {"errors": self.errors}

    def fork(self, handle):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            hold = self.holds[handle]
            try:
                hold.check()
                answer = {}
            except lockscope.LockLost as error:
                answer = failure(error)
            hold.release()
            try:
                self.agent.lock(hold.name, wait=0)
            except lockscope.LockTimeout:
                answer["excluded"] = True
            os.write(writing, json.dumps(answer).encode())
            os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        answer = json.loads(os.read(reading, 4096))
        os.close(reading)
        return answer


class Tasks:
    """Each task is an asyncio task."""

    def __init__(self):
        self.holds = {}
        self.queues = {}
        self.running = {}
        self.tasks = set()

    async def run(self):
        self.agent = aio.Agent(grace=GRACE)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async for line in reader:
            tag, task, verb, *words = line.decode().split()
            if verb == "cancel":
                if words[0] in self.running:
                    self.running[words[0]].cancel()
                say(tag, {})
                continue
            if task not in self.queues:
                self.queues[task] = asyncio.Queue()
                self.tasks.add(asyncio.ensure_future(self.work(task)))
            self.queues[task].put_nowait((tag, verb, words))
        await self.agent.close()

    async def work(self, task):
        while True:
            tag, verb, words = await self.queues[task].get()
            self.running[tag] = asyncio.current_task()
            try:
                answer = await getattr(self, verb)(*words)
            except (Exception, asyncio.CancelledError) as error:
                answer = failure(error)
            del self.running[tag]
            say(tag, answer)

    async def lock(self, handle, name, *words):
        names = name.split(",")
        lock = self.agent.lock_all(names, **options(words)) if len(names) > 1 else self.agent.lock(name, **options(words))
        hold = self.holds[handle] = await lock
        watch(handle, hold)
        return describe(hold)

    async def check(self, handle):
        self.holds[handle].check()
        return describe(self.holds[handle])

    async def release(self, handle):
        await self.holds[handle].release()
        return {}

    async def extend(self, handle, ms):
        await self.holds[handle].extend(float(ms) / 1000 or None)
        return describe(self.holds[handle])

    async def part(self, handle):
        first, self.holds[handle] = self.holds[handle]
        await first.release()
        return {}

    async def spoil(self, handle):
        spoil(self.holds[handle])
        return {}

    async def misname(self):
        for mistake in (lambda: self.agent.lock(None), lambda: self.agent.lock_all("abc")):
            try:
                await mistake()
                return {"accepted": True}
            except TypeError:
                pass
        return describe(await self.agent.lock("\ud800"))

    async def block(self, ms):
        say("event", {"blocks": ms})
        time.sleep(float(ms) / 1000)
        return {}

    async def graced(self, ms):
        async with aio.Agent(grace=float(ms) / 1000) as other, other.lock("graced"):
            return {}

    async def close(self):
        await self.agent.close()
        return {}

    async def many(self, count):
        self.release_many, held, self.errors = asyncio.Event(), asyncio.Semaphore(0), []

        async def one(number):
            try:
                async with self.agent.lock(f"many:{number}", wait=600) as hold:
                    held.release()
                    await self.release_many.wait()
                    hold.check()
            except lockscope.LockscopeError as error:
                self.errors.append(str(error))
                held.release()

        self.many_tasks = [asyncio.ensure_future(one(number)) for number in range(int(count))]
        for _ in self.many_tasks:
            await held.acquire()
        return {"errors": self.errors}

    async def unmany(self):
        self.release_many.set()
        await asyncio.gather(*self.many_tasks)
        return {"errors": self.errors}

    async def fork(self, handle):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            hold = self.holds[handle]
            try:
                hold.check()
                answer = {}
            except lockscope.LockLost as error:
                answer = failure(error)
            answer["excluded"] = asyncio.run(self.is_excluded(hold))
            os.write(writing, json.dumps(answer).encode())
            os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        answer = json.loads(os.read(reading, 4096))
        os.close(reading)
        return answer

    async def is_excluded(self, hold):
        """Returns whether a forked child can neither release the hold nor acquire its lock."""
        with contextlib.suppress(lockscope.LockscopeError):
            await hold.release()
        async with self.agent.lock("of the child"):
            return await self.agent.try_lock(hold.name) is None

    async def loops(self, name):
        agent = aio.Agent()

        async def acquire():
            return await agent.lock(name, wait=10)

        async def acquire_and_release():
            async with agent.lock(name, wait=10):
                pass

        def use():
            asyncio.run(acquire_and_release())
            left = asyncio.run(acquire())
            asyncio.run(acquire_and_release())
            errors = []
            for attempt in (left.extend(60), left.release(), asyncio.run(acquire()).release()):
                try:
                    asyncio.run(attempt)
                except lockscope.LockLost as error:
                    errors.append(error.reason)
            return errors

        errors = await asyncio.to_thread(use)
        async with agent.lock(name, wait=10) as hold:
            for attempt in (acquire(), hold.release()):
                try:
                    await asyncio.to_thread(asyncio.run, attempt)
                except RuntimeError as error:
                    errors.append(str(error))
            hold.check()
        return {"errors": errors}


if sys.argv[1] == "threads":
    Threads().run()
else:
    if sys.argv[1] == "uvloop":
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(Tasks().run())
