"""Cache measured rates: one JSON file per device, target and probe version in the user's cache directory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from tunesmith.support import atomic_file
from tunesmith.support.errors import RecordError


class Rates(Protocol):
    """Measured rates that are written as plain data."""

    def to_json(self) -> Mapping[str, object]:
        """The rates as plain data."""


R = TypeVar("R", bound=Rates)


@dataclass(frozen=True, slots=True)
class RateCache(Generic[R]):
    """The cached rates of one device, in `$XDG_CACHE_HOME/tunesmith` (`~/.cache/tunesmith`).

    Args:
        name: beginning of the file name.
        identity: everything that the rates depend on, as plain data; its digest ends the file name.
        parse: the inverse of the rates' `to_json`; raises RecordError for other data.
    """

    name: str
    identity: Sequence[object]
    parse: Callable[[object], R]

    @property
    def path(self) -> Path:
        """The file that holds the rates."""
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        digest = hashlib.blake2b(json.dumps(self.identity).encode(), digest_size=8).hexdigest()
        return Path(cache) / "tunesmith" / f"{self.name}-{digest}.json"

    def load(self) -> R | None:
        """The cached rates; None if the file is missing or invalid."""
        try:
            return self.parse(json.loads(self.path.read_text(encoding="utf-8"))["rates"])
        except (OSError, ValueError, KeyError, TypeError, RecordError):
            return None

    def store(self, rates: R, origin: Mapping[str, object]) -> None:
        """Write the rates below their origin, which is for readers only; errors are ignored, as the rates can be measured again."""
        path = self.path
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_file.write_text(path, json.dumps({**origin, "rates": rates.to_json()}, indent=1) + "\n")
