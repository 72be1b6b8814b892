"""Measures this library: `bench.py threads|asyncio uncontended|one WORKERS SECONDS` prints one line of JSON.

`uncontended` is one worker that acquires and releases a free lock, `one` is many workers that compete for one lock.
"""

import asyncio
import json
import os
import pathlib
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "src"))

import lockscope  # noqa: E402
from lockscope import aio  # noqa: E402

LOCK = f"bench:{os.getpid()}"


def pairs(times):
    times.sort()
    return {"p50_us": times[len(times) // 2], "p99_us": times[len(times) * 99 // 100]}


class Contest:
    """The grants of one lock. Only its holder writes."""

    def __init__(self):
        self.switches, self.last = 0, None

    def granted(self, worker):
        self.switches += self.last != worker
        self.last = worker


def threads(task, workers, end):
    agent = lockscope.Agent()
    if task == "uncontended":
        times = []
        while (began := time.perf_counter()) < end:
            with agent.lock(LOCK):
                pass
            times.append((time.perf_counter() - began) * 1e6)
        return pairs(times)
    contest = Contest()

    def work(worker):
        while time.perf_counter() < end:
            with agent.lock(LOCK):
                contest.granted(worker)

    running = [threading.Thread(target=work, args=(worker,)) for worker in range(workers)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return {"switches": contest.switches}


async def tasks(task, workers, end):
    async with aio.Agent() as agent:
        if task == "uncontended":
            times = []
            while (began := time.perf_counter()) < end:
                async with agent.lock(LOCK):
                    pass
                times.append((time.perf_counter() - began) * 1e6)
            return pairs(times)
        contest = Contest()

        async def work(worker):
            while time.perf_counter() < end:
                async with agent.lock(LOCK):
                    contest.granted(worker)

        await asyncio.gather(*(work(worker) for worker in range(workers)))
        return {"switches": contest.switches}


api, task, workers, seconds = sys.argv[1:]
start = time.perf_counter()
end = start + float(seconds)
if api == "threads":
    figures = threads(task, int(workers), end)
else:
    figures = asyncio.run(tasks(task, int(workers), end))
if task == "one":
    figures = {"switches_per_s": figures["switches"] / (time.perf_counter() - start)}
print(json.dumps(figures))
