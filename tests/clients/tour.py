"""Drives the agent's socket with redis-py: every step of a worker's day. Arguments: socket, protocol version."""

import sys

import redis

agent = redis.Redis(
    unix_socket_path=sys.argv[1],
    protocol=int(sys.argv[2]),
    decode_responses=True,
    single_connection_client=True,
    socket_timeout=None,
    retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
    client_name="tour",
)


def lock(*args):
    held = agent.execute_command("LOCK", *args)
    if isinstance(held, list):  # RESP2 has no maps
        held = dict(zip(held[::2], held[1::2]))
    return held


assert agent.ping()
assert lock("tour:free")["holds"] == 1
assert lock("tour:free")["holds"] == 2
assert agent.execute_command("UNLOCK", "tour:free") == 1
assert agent.execute_command("UNLOCK", "tour:free") == 0
assert lock("tour:busy", "NOWAIT") is None
try:
    agent.execute_command("UNLOCK", "tour:busy")
except redis.ResponseError as error:
    assert str(error).startswith("NOTHELD"), error
else:
    raise AssertionError("it was not held")
assert lock("tour:busy", "WAIT", 60000)["lock"] == "tour:busy"
assert agent.execute_command("UNLOCK", "tour:busy") == 0
pipeline = agent.pipeline(transaction=False)
pipeline.execute_command("LOCK", "tour:piped")
pipeline.execute_command("UNLOCK", "tour:piped")
assert pipeline.execute()[1] == 0
agent.close()
print("done")
