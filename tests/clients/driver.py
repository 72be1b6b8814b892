"""Run commands from standard input on the agent's socket with redis-py.

Arguments: `redis-py` or `redis-py-asyncio`, the socket, `advised` (settings) or `default`. A line is a tag, a
connection's name and a command; several commands with ` ; ` between them are sent as one pipeline. The result is
printed as the tag and a line of JSON, an error as `{"error": text}`.
"""

import asyncio
import json
import sys
import threading

import redis
import redis.asyncio

library, path, settings = sys.argv[1:]


def options(module):
    if settings == "default":
        return dict(unix_socket_path=path, decode_responses=True)
    return dict(
        unix_socket_path=path,
        decode_responses=True,
        single_connection_client=True,
        socket_timeout=None,
        retry=module.retry.Retry(redis.backoff.NoBackoff(), 0),
    )


def say(tag, reply):
    print(tag, json.dumps(reply), flush=True)


def failure(error):
    return {"error": f"{type(error).__name__}: {error}"}


def commands(line):
    tag, name, text = line.rstrip("\n").split(" ", 2)
    return tag, name, [command.split(" ") for command in text.split(" ; ")]


def plain(reply):
    return failure(reply) if isinstance(reply, Exception) else reply


def threads():
    clients = {}

    def run(tag, client, batch):
        try:
            if len(batch) == 1:
                return say(tag, client.execute_command(*batch[0]))
            pipeline = client.pipeline(transaction=False)
            for command in batch:
                pipeline.execute_command(*command)
            say(tag, [plain(reply) for reply in pipeline.execute(raise_on_error=False)])
        except redis.RedisError as error:
            say(tag, failure(error))

    for line in sys.stdin:
        tag, name, batch = commands(line)
        if name not in clients:
            clients[name] = redis.Redis(**options(redis))
        threading.Thread(target=run, args=(tag, clients[name], batch), daemon=True).start()


async def tasks():
    clients = {}
    running = set()

    async def run(tag, client, batch):
        try:
            if len(batch) == 1:
                return say(tag, await client.execute_command(*batch[0]))
            pipeline = client.pipeline(transaction=False)
            for command in batch:
                pipeline.execute_command(*command)
            say(tag, [plain(reply) for reply in await pipeline.execute(raise_on_error=False)])
        except redis.RedisError as error:
            say(tag, failure(error))

    while line := await asyncio.to_thread(sys.stdin.readline):
        tag, name, batch = commands(line)
        if name not in clients:
            clients[name] = redis.asyncio.Redis(**options(redis.asyncio))
        task = asyncio.create_task(run(tag, clients[name], batch))
        running.add(task)
        task.add_done_callback(running.discard)


if library == "redis-py":
    threads()
else:
    asyncio.run(tasks())
