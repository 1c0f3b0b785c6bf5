"""Messages of bytes over a pair of sockets: an end that waits for whole messages, and one that never waits.

The pool of workers must not wait for a process that may be frozen in the middle of a message, so its end takes and gives as many bytes as
there are, and looks at its deadlines in between.

A message is its length, eight bytes, little-endian, and the bytes.
"""

from __future__ import annotations

import socket
from collections import deque

_HEAD_BYTES = 8
_PORTION = 1 << 20


class MessageEnd:
    """The end that never waits.

    Args:
        end: a connected socket, which is closed with this.
        largest: bytes of a message that is taken at most.
    """

    def __init__(self, end: socket.socket, largest: int) -> None:
        end.setblocking(False)
        self._end = end
        self._largest = largest
        self._head = bytearray()
        self._body: bytearray | None = None
        self._filled = 0
        self._unsent: deque[memoryview] = deque()
        self.closed = False

    def fileno(self) -> int:
        """The file descriptor, to wait for."""
        return self._end.fileno()

    @property
    def unsent(self) -> bool:
        """Whether `send` has more to do when the socket takes bytes again."""
        return bool(self._unsent)

    def put(self, message: bytes) -> None:
        """Send a message, now or, what the socket does not take, by `send`.  OSError if nobody is at the other end."""
        self._unsent += [memoryview(len(message).to_bytes(_HEAD_BYTES, "little")), memoryview(message)]
        self.send()

    def send(self) -> None:
        """Send what the socket takes.  OSError if nobody is at the other end."""
        while self._unsent:
            try:
                sent = self._end.send(self._unsent[0])
            except BlockingIOError:
                return
            self._unsent[0] = self._unsent[0][sent:]
            if not self._unsent[0]:
                self._unsent.popleft()

    def take(self) -> bytearray | None:
        """A message if the rest of it is there, else None.

        Raises:
            EOFError: the other end was closed.
            ValueError: what came is no message.
            OSError: the socket is broken.
        """
        try:
            while len(self._head) < _HEAD_BYTES:
                self._head += _received(self._end.recv(_HEAD_BYTES - len(self._head)))
            if self._body is None:
                length = int.from_bytes(self._head, "little")
                if length > self._largest:
                    raise ValueError(f"a message of {length} bytes")
                self._body, self._filled = bytearray(length), 0
            for _ in range(16):  # a long message is taken in portions, so that others get their turn
                if self._filled == len(self._body):
                    break
                portion = memoryview(self._body)[self._filled : self._filled + _PORTION]
                count = self._end.recv_into(portion)
                if not count:
                    raise EOFError
                self._filled += count
        except BlockingIOError:
            return None
        if self._filled < len(self._body):
            return None
        message, self._body = self._body, None
        self._head.clear()
        return message

    def close(self) -> None:
        """Close the socket."""
        self.closed = True
        self._end.close()


class WaitingEnd:
    """The end that waits.

    Args:
        descriptor: of a connected socket, which is closed with this.
    """

    def __init__(self, descriptor: int) -> None:
        self._end = socket.socket(fileno=descriptor)
        self._end.setblocking(True)

    def put(self, message: bytes) -> None:
        """Send a message.  OSError if nobody is at the other end."""
        self._end.sendall(len(message).to_bytes(_HEAD_BYTES, "little"))
        self._end.sendall(message)

    def take(self) -> bytes:
        """The next message.  EOFError if the other end was closed."""
        return self._exactly(int.from_bytes(self._exactly(_HEAD_BYTES), "little"))

    def close(self) -> None:
        """Close the socket."""
        self._end.close()

    def _exactly(self, count: int) -> bytes:
        taken = bytearray(count)
        rest = memoryview(taken)
        while rest:
            got = self._end.recv_into(rest)
            if not got:
                raise EOFError
            rest = rest[got:]
        return bytes(taken)


def _received(data: bytes) -> bytes:
    if not data:
        raise EOFError
    return data
