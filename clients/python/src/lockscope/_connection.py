"""One connection to the agent: RESP3 over a Unix socket."""

import asyncio
import contextlib
import os
import socket
from collections import deque
from typing import Any, Callable, Deque, List, Optional, Tuple, Union

from ._errors import Disconnected, Rejected

#: The time limit for replies that do not wait for a lock. The agent itself answers within about two seconds.
REPLY_LIMIT = 10.0

Word = Union[str, int]


class ErrorReply(Exception):
    """An error reply of the agent."""

    @property
    def code(self) -> str:
        return str(self).split(" ", 1)[0]


class Push(List[Any]):
    """An event that the agent sent unsolicited."""


class _Incomplete(Exception):
    pass


def encode(words: Tuple[Word, ...]) -> bytes:
    """Return a command's bytes. Text is encoded in UTF-8; surrogate escapes represent other bytes.

    Raise `Rejected` for a word, such as the name of a lock, that has other surrogates.
    """
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        try:
            data = str(word).encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise Rejected("ERR", f"ERR {word!r} cannot be written in UTF-8: {error.reason}") from None
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def hello() -> Tuple[Word, ...]:
    """Return the first command of a connection. It names the connection as `LOCKSCOPE_NAME` says."""
    name = "".join(char for char in os.environ.get("LOCKSCOPE_NAME", "") if "!" <= char <= "~")[:100]
    return ("HELLO", 3, "SETNAME", name) if name else ("HELLO", 3)


class Parser:
    """A parser of RESP2 and RESP3 data as it arrives."""

    def __init__(self) -> None:
        self._buffer = b""
        self._at = 0

    def feed(self, data: bytes) -> List[Any]:
        """Return the values that are complete with these bytes."""
        self._buffer += data
        self._at = done = 0
        values = []
        try:
            while self._at < len(self._buffer):
                values.append(self._value())
                done = self._at
        except _Incomplete:
            pass
        self._buffer = self._buffer[done:]
        return values

    def _line(self) -> bytes:
        end = self._buffer.find(b"\r\n", self._at)
        if end < 0:
            raise _Incomplete
        line = self._buffer[self._at : end]
        self._at = end + 2
        return line

    def _value(self) -> Any:
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest.decode("utf-8", "surrogateescape")
        if kind == b"-":
            return ErrorReply(rest.decode("utf-8", "surrogateescape"))
        if kind == b":":
            return int(rest)
        if kind == b"_":
            return None
        if kind == b"#":
            return rest == b"t"
        if kind == b",":
            return float(rest)
        size = int(rest)
        if size < 0:
            return None
        if kind == b"$":
            end = self._at + size
            if len(self._buffer) < end + 2:
                raise _Incomplete
            data = self._buffer[self._at : end]
            self._at = end + 2
            return data.decode("utf-8", "surrogateescape")
        if kind == b"%":
            return {self._value(): self._value() for _ in range(size)}
        if kind in (b"*", b"~"):
            return [self._value() for _ in range(size)]
        if kind == b">":
            return Push(self._value() for _ in range(size))
        raise ValueError(f"the agent sent an unknown type: {line!r}")


class Connection(asyncio.Protocol):
    """A connection whose replies arrive in the order of its commands."""

    def __init__(self, on_push: Callable[[Push], None], on_close: Callable[["Connection"], None]) -> None:
        self._on_push = on_push
        self._on_close = on_close
        self._parser = Parser()
        self._replies: Deque["asyncio.Future[Any]"] = deque()
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._transport: Optional[asyncio.Transport] = None
        self.socket: Optional[socket.socket] = None
        self._answered = False
        #: The reason that an agent that refuses the connection gives in place of its first reply. It may arrive before
        #: the first command is sent.
        self.refusal: Optional[ErrorReply] = None
        self.closed = False

    @classmethod
    async def open(
        cls, path: str, on_push: Callable[[Push], None], on_close: Callable[["Connection"], None]
    ) -> "Connection":
        """Connect to a Unix socket."""
        loop = asyncio.get_running_loop()
        connection = cls(on_push, on_close)
        connection._loop = loop
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        # When uvloop is closed, it takes the socket away. The copy can still end the session then.
        connection.socket = sock if isinstance(loop, asyncio.BaseEventLoop) else sock.dup()
        try:
            await loop.sock_connect(sock, path)
            await loop.create_unix_connection(lambda: connection, sock=sock)
        except BaseException:
            sock.close()
            connection.socket.close()
            raise
        greeting = connection.send(*hello())
        greeting.add_done_callback(lambda _: greeting.exception())  # This keeps asyncio from reporting a refusal.
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        try:
            values = self._parser.feed(data)
        except (ValueError, RecursionError):
            self.abort()
            return
        for value in values:
            if isinstance(value, Push):
                self._on_push(value)
                continue
            if isinstance(value, ErrorReply) and not self._answered:
                self.refusal = value
            self._answered = True
            if self._replies:
                reply = self._replies.popleft()
                if reply.done():
                    continue
                if isinstance(value, ErrorReply):
                    reply.set_exception(value)
                else:
                    reply.set_result(value)

    def connection_lost(self, exc: Optional[BaseException]) -> None:
        if isinstance(exc, ConnectionError) and self.socket is not None:
            # What the agent sent before it closed the connection has not been read, and may be its reason.
            with contextlib.suppress(OSError):
                self.data_received(self.socket.recv(65536))
        if self.socket is not None:
            self.socket.close()
        self.closed = True
        for reply in self._replies:
            if not reply.done():
                reply.set_exception(Disconnected(exc))
                reply.exception()  # This keeps asyncio from reporting replies that nobody awaits.
        self._replies.clear()
        self._on_close(self)

    def send(self, *words: Word) -> "asyncio.Future[Any]":
        """Send a command and return a future of its reply."""
        data = encode(words)
        reply = asyncio.get_running_loop().create_future()
        if self.closed or self._transport is None:
            reply.set_exception(Disconnected())
        else:
            self._replies.append(reply)
            self._transport.write(data)
        return reply

    async def call(self, *words: Word, limit: Optional[float] = None) -> Any:
        """Send a command and wait for its reply, for at most `limit` seconds.

        Close the connection if no reply arrives in time, or on cancellation: the effect of the command is then unknown.
        """
        reply = self.send(*words)
        try:
            # After a block of the event loop, `wait_for` would drop a reply that arrived meanwhile.
            answered, _ = await asyncio.wait({reply}, timeout=limit)
        except asyncio.CancelledError:
            self.abort()
            raise
        if answered:
            return reply.result()
        self.abort()
        raise Disconnected(TimeoutError(f"no reply to {words[0]} within {limit:.3g} s"))

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def quit_at_once(self) -> None:
        """End the session at the agent without waiting for its reply, and close the connection."""
        if self.socket is not None:
            with contextlib.suppress(OSError):  # The event loop may have closed it.
                self.socket.send(encode(("QUIT",)))
        if self._loop is not None and not self._loop.is_closed():
            self.abort()
            return
        self.closed = True
        if self.socket is not None:
            self.socket.close()

    def abandon(self) -> None:
        """Close a forked child's copies of the socket without involving the agent or the event loop."""
        if self.closed or self._transport is None:
            return
        self.closed = True
        if self.socket is not None:
            self.socket.close()
        # That of uvloop is another one. Its number stays in use, so that uvloop can close it.
        own = self._transport.get_extra_info("socket")
        if own is not None and own.fileno() >= 0:
            with socket.socket(socket.AF_UNIX) as nothing:
                os.dup2(nothing.fileno(), own.fileno(), inheritable=False)


async def one_call(path: str, *words: Word) -> Any:
    """Run one command on a separate connection."""
    connection = await Connection.open(path, lambda _: None, lambda _: None)
    try:
        return await connection.call(*words, limit=REPLY_LIMIT)
    finally:
        connection.abort()
