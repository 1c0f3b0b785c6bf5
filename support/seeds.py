"""Randomness by name: every draw comes from a stream that a seed and a path of names select.

A stream depends on nothing but its seed and names: not on the order in which streams are made, on how
much was drawn from others, on the process, or on `PYTHONHASHSEED`.  So a search that adds a sampler, or
runs its parts on other machines, leaves all other draws as they were.
"""

from __future__ import annotations

import operator
from hashlib import blake2b

import numpy as np

from tunesmith.support.errors import UserError

_DOMAIN = b"tunesmith.seeds.1"


def derive(seed: int, *names: str | int, bits: int = 63) -> int:
    """A non-negative integer below `2**bits` for libraries that want a seed of their own.

    Args:
        seed: any integer, negative or beyond 64 bits too.
        names: the path of the stream, from the general to the particular: `derive(0, "search", digest, 3)`.
            The number 1 and the text "1" are different names, and ("ab",) and ("a", "b") different paths.
        bits: 1 to 128.  Some libraries take 31 or 32 bits only.
    """
    if not 1 <= bits <= 128:
        raise UserError(f"a derived seed has 1 to 128 bits, not {bits}")
    return _key(seed, names) >> (128 - bits)


def recorded_seed(seed: int) -> int:
    """The seed of something whose records hold it.  UserError unless 64 bits, with or without a sign, hold it."""
    value = _integer(seed, "the seed")
    if not -(1 << 63) <= value < 1 << 64:
        raise UserError(f"records hold seeds of 64 bits, from -2^63 to 2^64 - 1, and {value} is none: choose a smaller one")
    return value


def plain_seed(seed: int) -> int:
    """The seed as Python's integer, as files of models hold it.  UserError if it is no integer."""
    return _integer(seed, "the seed")


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """The generator of `seed` and `names`, at its start.

    It is counter-based (Philox 4x64, Salmon et al., SC 2011) with a blake2b digest of seed and names as its key:
    streams of different names do not overlap, and making one costs no warm-up.
    """
    return np.random.Generator(np.random.Philox(key=_key(seed, names)))


def _key(seed: int, names: tuple[str | int, ...]) -> int:
    """128 bits that identify the path.  Every part goes in with its type and length: no two paths have the same text."""
    digest = blake2b(_DOMAIN, digest_size=16)
    for part in (_integer(seed, "the seed"), *names):
        if isinstance(part, str):
            text, tag = part.encode("utf-8", "surrogatepass"), b"s"
        else:
            text, tag = str(_integer(part, "a name")).encode(), b"i"
        digest.update(tag + len(text).to_bytes(8, "little") + text)
    return int.from_bytes(digest.digest(), "big")


def _integer(value: object, what: str) -> int:
    """The Python integer that an int or a numpy integer stands for."""
    try:
        return operator.index(value)  # type: ignore[arg-type]  # the refusal is the point
    except TypeError:
        raise UserError(f"{what} of a random stream is an integer{'' if what == 'the seed' else ' or a text'}, not {value!r}") from None
