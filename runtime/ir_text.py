"""LLVM IR text written by hand: constants of text, and a line that raises an error through TVM-FFI."""

from __future__ import annotations

import re

_RAISE = re.compile(r"^  raise (\S+): (.*)$", re.MULTILINE)


def c_string(symbol: str, text: str) -> str:
    """A private constant that holds the text as a C string."""
    data = text.encode()
    body = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02x}" for b in data)
    return f'{symbol} = private unnamed_addr constant [{len(data) + 1} x i8] c"{body}\\00"'


def expand_raises(text: str) -> str:
    """The text with its lines `raise CLASS: PARTS` spelled in LLVM IR: an error of parts, stored in `%parts`; `.x` is a text.

    A function raises in one place and has room for the parts.
    """
    return _RAISE.sub(_raised, text)


def _raised(found: re.Match[str]) -> str:
    kind, *parts = [re.sub(r"^\.", "@tunesmith.text.", word) for word in (found[1], *found[2].split())]
    places = [f"  %p{i} = getelementptr ptr, ptr %parts, i64 {i}" for i in range(1, len(parts))]
    stores = [f"  store ptr {part}, ptr {f'%p{i}' if i else '%parts'}" for i, part in enumerate(parts)]
    call = f"  call void @TVMFFIErrorSetRaisedFromCStrParts(ptr {kind}, ptr %parts, i32 {len(parts)})"
    return "\n".join([*places, *stores, call])
