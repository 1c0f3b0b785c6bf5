"""Derive independent random streams from a seed and a path of names.

A stream depends only on its seed and names: not on the order in which streams are created, on draws from
other streams, on the process, or on `PYTHONHASHSEED`.  Adding a sampler to a search, or moving parts of it to
other machines, therefore does not change any other draw.
"""

from __future__ import annotations

import operator
from hashlib import blake2b

import numpy as np

from tunesmith.support.errors import UserError

_DOMAIN = b"tunesmith.seeds.1"


def derive(seed: int, *names: str | int, bits: int = 63) -> int:
    """A non-negative integer below `2**bits`, for libraries that take an integer seed.

    Args:
        seed: any integer, including negative ones and those beyond 64 bits.
        names: the path of the stream, from general to specific: `derive(0, "search", digest, 3)`.
            The number 1 and the text "1" are different names, and ("ab",) and ("a", "b") different paths.
        bits: 1 to 128.  Some libraries accept only 31 or 32 bits.
    """
    if not 1 <= bits <= 128:
        raise UserError(f"a derived seed has 1 to 128 bits, not {bits}")
    return _key(seed, names) >> (128 - bits)


def recorded_seed(seed: int) -> int:
    """The seed as an int that fits in a record.  UserError unless it fits in 64 bits, signed or unsigned."""
    value = _integer(seed, "the seed")
    if not -(1 << 63) <= value < 1 << 64:
        raise UserError(f"records hold seeds of 64 bits, from -2^63 to 2^64 - 1, got {value}: choose a smaller one")
    return value


def plain_seed(seed: int) -> int:
    """The seed as a Python int, as model files store it.  UserError if it is not an integer."""
    return _integer(seed, "the seed")


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """A new generator for `seed` and `names`.

    It is counter-based (Philox 4x64, Salmon et al., SC 2011) with a blake2b digest of seed and names as its key:
    streams of different names do not overlap, and creating one needs no warm-up.
    """
    return np.random.Generator(np.random.Philox(key=_key(seed, names)))


def _key(seed: int, names: tuple[str | int, ...]) -> int:
    """A 128-bit key of the path.  Each part is hashed with its type and length, so that different paths have different encodings."""
    digest = blake2b(_DOMAIN, digest_size=16)
    for part in (_integer(seed, "the seed"), *names):
        if isinstance(part, str):
            text, tag = part.encode("utf-8", "surrogatepass"), b"s"
        else:
            text, tag = str(_integer(part, "a name")).encode(), b"i"
        digest.update(tag + len(text).to_bytes(8, "little") + text)
    return int.from_bytes(digest.digest(), "big")


def _integer(value: object, what: str) -> int:
    """An int or a numpy integer as a Python int."""
    try:
        return operator.index(value)  # type: ignore[arg-type]  # a TypeError is handled below
    except TypeError:
        raise UserError(f"{what} of a random stream is an integer{'' if what == 'the seed' else ' or a text'}, not {value!r}") from None
