"""Measures a lock library of Python: `python.py LIBRARY TASK PORT WORKERS SECONDS` prints one line of JSON.

With the library `agent` the fourth word is an agent's socket rather than a port of Redis.
"""

import asyncio
import json
import os
import sys
import threading
import time

import redis
import redis.asyncio
import redis_lock

LEASE_S = 30
# The prefix is unique, so that locks left by an earlier run do not interfere.
PREFIX = f"bench:{os.getpid()}"


def quantile(values, share):
    values.sort()
    return values[round((len(values) - 1) * share)] if values else 0


def single(seconds, take, give):
    """One worker: how many pairs, and how long each takes."""
    times = []
    start = time.perf_counter()
    while (began := time.perf_counter()) - start < seconds:
        take()
        give()
        times.append((time.perf_counter() - began) * 1e6)
    took = time.perf_counter() - start
    return dict(pairs_per_s=len(times) / took, p50_us=quantile(times, 0.5), p99_us=quantile(times, 0.99))


def tell(figures):
    """Prints what was measured and ends, whoever still waits for a lock."""
    print(json.dumps(figures), flush=True)
    os._exit(0)


class Seen:
    """What workers of one process saw of a lock that they all want. Written only by who holds it."""

    def __init__(self, workers):
        self.grants = [0] * workers
        self.switches = 0
        self.last = None
        self.longest = 0.0

    def granted(self, worker, asked):
        self.grants[worker] += 1
        self.switches += self.last != worker
        self.last = worker
        self.longest = max(self.longest, time.perf_counter() - asked)

    def figures(self, took):
        return dict(
            pairs_per_s=sum(self.grants) / took,
            switches_per_s=self.switches / took,
            least=min(self.grants),
            most=max(self.grants),
            longest_wait_ms=self.longest * 1e3,
        )


def threads(workers, work):
    all_threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(workers)]
    for thread in all_threads:
        thread.start()
    return all_threads


def own(make, workers, seconds):
    counts = [0] * workers
    end = time.perf_counter() + seconds

    def work(worker):
        lock = make(f"{PREFIX}:{worker}")
        while time.perf_counter() < end:
            lock.acquire()
            lock.release()
            counts[worker] += 1

    start = time.perf_counter()
    for thread in threads(workers, work):
        thread.join()
    return dict(pairs_per_s=sum(counts) / (time.perf_counter() - start))


def one(make, workers, seconds):
    seen = Seen(workers)
    over = threading.Event()

    def work(worker):
        lock = make(PREFIX)
        while not over.is_set():
            asked = time.perf_counter()
            lock.acquire()
            if not over.is_set():
                seen.granted(worker, asked)
            lock.release()

    start = time.perf_counter()
    threads(workers, work)
    over.wait(seconds)
    over.set()
    return seen.figures(time.perf_counter() - start)


def drain(make, workers):
    def work(_worker):
        lock = make(PREFIX)
        lock.acquire()
        lock.release()

    holder = make(PREFIX)
    holder.acquire()
    all_threads = threads(workers, work)
    time.sleep(1)
    start = time.perf_counter()
    holder.release()
    for thread in all_threads:
        thread.join()
    return dict(drain_ms=(time.perf_counter() - start) * 1e3)


def threaded(make, task, workers, seconds):
    if task == "uncontended":
        lock = make(PREFIX)
        return single(seconds, lock.acquire, lock.release)
    if task == "own":
        return own(make, workers, seconds)
    if task == "one":
        return one(make, workers, seconds)
    return drain(make, workers)


async def asynchronous(port, task, workers, seconds):
    client = redis.asyncio.Redis(port=port)

    def make(name):
        return client.lock(name, timeout=LEASE_S)

    start = time.perf_counter()
    if task == "uncontended":
        lock, times = make(PREFIX), []
        while (began := time.perf_counter()) - start < seconds:
            await lock.acquire()
            await lock.release()
            times.append((time.perf_counter() - began) * 1e6)
        took = time.perf_counter() - start
        return dict(pairs_per_s=len(times) / took, p50_us=quantile(times, 0.5), p99_us=quantile(times, 0.99))
    if task == "own":
        counts = [0] * workers

        async def work_alone(worker):
            lock = make(f"{PREFIX}:{worker}")
            while time.perf_counter() - start < seconds:
                await lock.acquire()
                await lock.release()
                counts[worker] += 1

        await asyncio.gather(*map(work_alone, range(workers)))
        return dict(pairs_per_s=sum(counts) / (time.perf_counter() - start))
    if task == "one":
        seen = Seen(workers)

        async def work(worker):
            lock = make(PREFIX)
            while True:
                asked = time.perf_counter()
                await lock.acquire()
                seen.granted(worker, asked)
                await lock.release()

        tasks = [asyncio.create_task(work(i)) for i in range(workers)]
        await asyncio.sleep(seconds)
        tell(seen.figures(time.perf_counter() - start))

    async def once():
        lock = make(PREFIX)
        await lock.acquire()
        await lock.release()

    holder = make(PREFIX)
    await holder.acquire()
    tasks = [asyncio.create_task(once()) for _ in range(workers)]
    await asyncio.sleep(1)
    start = time.perf_counter()
    await holder.release()
    await asyncio.gather(*tasks)
    return dict(drain_ms=(time.perf_counter() - start) * 1e3)


def main():
    library, task, where, workers, seconds = sys.argv[1:]
    workers, seconds = int(workers), float(seconds)
    if library == "agent":
        agent = redis.Redis(
            unix_socket_path=where, single_connection_client=True, socket_timeout=None,
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0))
        return single(
            seconds,
            lambda: agent.execute_command("LOCK", "bench:python"),
            lambda: agent.execute_command("UNLOCK", "bench:python"))
    if library == "asyncio":
        return asyncio.run(asynchronous(int(where), task, workers, seconds))
    client = redis.Redis(port=int(where))
    if library == "redis-py":
        return threaded(lambda name: client.lock(name, timeout=LEASE_S), task, workers, seconds)
    return threaded(lambda name: redis_lock.Lock(client, name, expire=LEASE_S), task, workers, seconds)


tell(main())
