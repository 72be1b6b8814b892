"""The clock of all deadlines."""

import time

_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot() -> float:
    """Return the seconds since the host booted, including suspend (`CLOCK_BOOTTIME`)."""
    return time.clock_gettime(_BOOT)
