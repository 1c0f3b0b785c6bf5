"""Exchange byte messages over a socket pair, with one blocking and one non-blocking end.

The worker pool must not block on a process that may be frozen in the middle of a message.  Its end therefore transfers only the bytes
that are available, and the pool checks its deadlines in between.

A message is its length (eight bytes, little-endian), followed by its bytes.
"""

from __future__ import annotations

import socket
from collections import deque

_HEAD_BYTES = 8
_PORTION = 1 << 20


class MessageEnd:
    """The non-blocking end.

    Args:
        end: a connected socket, which is closed with this object.
        largest: size limit of a received message, in bytes.
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
        """The file descriptor, for a selector."""
        return self._end.fileno()

    @property
    def unsent(self) -> bool:
        """Whether bytes are queued for `send`."""
        return bool(self._unsent)

    def put(self, message: bytes) -> None:
        """Send a message; bytes that the socket does not accept are queued for `send`.  OSError if the other end is closed."""
        self._unsent += [memoryview(len(message).to_bytes(_HEAD_BYTES, "little")), memoryview(message)]
        self.send()

    def send(self) -> None:
        """Send as many queued bytes as the socket accepts.  OSError if the other end is closed."""
        while self._unsent:
            try:
                sent = self._end.send(self._unsent[0])
            except BlockingIOError:
                return
            self._unsent[0] = self._unsent[0][sent:]
            if not self._unsent[0]:
                self._unsent.popleft()

    def take(self) -> bytearray | None:
        """The next message if it is complete, else None.

        Raises:
            EOFError: the other end was closed.
            ValueError: the bytes received are not a message.
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
            for _ in range(16):  # a long message is received in portions, so that other workers are served
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
    """The blocking end.

    Args:
        descriptor: file descriptor of a connected socket, which is closed with this object.
    """

    def __init__(self, descriptor: int) -> None:
        self._end = socket.socket(fileno=descriptor)
        self._end.setblocking(True)

    def put(self, message: bytes) -> None:
        """Send a message.  OSError if the other end is closed."""
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
