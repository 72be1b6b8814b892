"""Redisson-compatible locks through the Lockscope agent of this host.

    from lockscope import Agent

    agent = Agent()
    with agent.lock("orders:42", wait=60) as hold:
        hold.check()

`lockscope.aio` has the same classes for asyncio.
"""

from ._errors import Deadlock, Draining, LockLost, LockscopeError, LockTimeout, Rejected, Unavailable
from ._sync import Agent, Hold, Holds

__all__ = [
    "Agent",
    "Deadlock",
    "Draining",
    "Hold",
    "Holds",
    "LockLost",
    "LockTimeout",
    "LockscopeError",
    "Rejected",
    "Unavailable",
]
