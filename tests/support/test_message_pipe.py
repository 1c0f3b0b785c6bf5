"""Messages between a blocking and a non-blocking end."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tunesmith.support.message_pipe import MessageEnd, WaitingEnd


@pytest.fixture
def ends() -> Iterator[tuple[MessageEnd, socket.socket]]:
    ours, theirs = socket.socketpair()
    end = MessageEnd(ours, 1 << 24)
    yield end, theirs
    end.close()
    theirs.close()


def taken(end: MessageEnd) -> bytes:
    """Receive a message that is completely available, in as many portions as needed."""
    while (message := end.take()) is None:
        pass
    return bytes(message)


def test_round_trip(ends: tuple[MessageEnd, socket.socket]) -> None:
    end, theirs = ends
    far = WaitingEnd(theirs.detach())
    for message in (b"", b"x", bytes(range(256)) * 100):
        end.put(message)
        assert not end.unsent and far.take() == message
        far.put(message)
        assert taken(end) == message
    assert end.take() is None
    far.close()


def test_an_incomplete_message_is_not_returned(ends: tuple[MessageEnd, socket.socket]) -> None:
    end, theirs = ends
    for part in (b"\x05\x00\x00", b"\x00\x00\x00\x00\x00ab", b"cd"):
        theirs.sendall(part)
        assert end.take() is None
    theirs.sendall(b"e\x00")
    assert end.take() == b"abcde"
    assert end.take() is None


def test_sending_does_not_block(ends: tuple[MessageEnd, socket.socket]) -> None:
    end, theirs = ends
    end.put(bytes(8 << 20))
    assert end.unsent
    left = 8 + (8 << 20)
    while left:
        left -= len(theirs.recv(1 << 20))
        end.send()
    assert not end.unsent


def test_closed_ends_and_garbage(ends: tuple[MessageEnd, socket.socket]) -> None:
    end, theirs = ends
    theirs.sendall(b"\xff" * 100)
    with pytest.raises(ValueError, match="a message of"):
        end.take()
    theirs.close()
    other, far = socket.socketpair()
    far.sendall(b"\x09")
    far.close()
    cut = MessageEnd(other, 100)
    with pytest.raises(EOFError):
        cut.take()
    cut.close()
