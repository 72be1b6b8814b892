"""The turn to send a command on a session's connection."""

import asyncio
from typing import Literal


class Turn(asyncio.Lock):
    """A lock that counts who waits for it. While it passes to the next one, `locked()` is false for a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.queued = 0

    async def acquire(self) -> Literal[True]:
        self.queued += 1
        try:
            return await super().acquire()
        finally:
            self.queued -= 1
