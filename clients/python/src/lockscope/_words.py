"""The words of commands."""

from typing import List, Optional, Tuple

from ._connection import Word


def ms(seconds: float) -> int:
    return int(seconds * 1000)


def session_words(grace: float) -> Tuple[Word, ...]:
    """Return a SESSION. Its grace ends with this process, since nothing else knows its secret."""
    options: Tuple[Word, ...] = ("PUSH", "on", "PROCESS", "on")
    return ("SESSION", "GRACE", ms(grace), *options) if grace else ("SESSION", *options)


def lock_words(
    names: List[str],
    several: bool,
    kind: str,
    wait: Optional[float],
    lease: Optional[float],
    session: Optional[str],
) -> Tuple[Word, ...]:
    words: List[Word] = ["MLOCK", len(names), *names] if several else ["LOCK", *names]
    words += ["KIND", kind]
    if wait is not None:
        words += ["WAIT", ms(wait)]
    if lease is not None:
        words += ["LEASE", ms(lease)]
    return (*words, "IN", session or "")
