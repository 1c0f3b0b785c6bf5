"""Define how candidates of a search are timed and verified: settings that records store."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field

from tunesmith.support.errors import UserError

VERIFY = ("winner", "always", "never")
"""When an output is compared with the reference: "winner" means before its time may become the best."""


@dataclass(frozen=True, slots=True)
class RacePolicy:
    """Timing policy for the candidates of a search; stored with each record.

    Args:
        min_repeat_ms: minimum length of a sample, which is the mean of consecutive calls.
        repeats: samples of a candidate that is not clearly behind; fewer, at least two, if they are as long together as these with the
            minimum length.
        give_up: a candidate is clearly behind if its first sample, less the waiting time, exceeds this multiple of the best time, or all
            of several samples a smaller one (`behind`).
        quiet_fraction: a sample is clean if the waiting time, summed over threads, is below this fraction of it.
        patience_s: seconds for repeating samples that were not clean.
        limit_s: seconds after which no sample is started.
        flush_bytes: bytes written before each sample to flush the caches, with a single call per sample; 0 for warm caches.
        constant_bytes: size of a memory area in which constants move to another position at each call, so that they are as cold as
            weights in a model whose other layers ran in between; 0 to reuse the same constants, which stay in the caches.
    """

    min_repeat_ms: float = 3.0
    repeats: int = 5
    give_up: float = 1.5
    quiet_fraction: float = 0.05
    patience_s: float = 0.1
    limit_s: float = 2.0
    flush_bytes: int = 0
    constant_bytes: int = 0

    def __post_init__(self) -> None:
        good = {
            "min_repeat_ms": self.min_repeat_ms >= 0,
            "repeats": self.repeats >= 1,
            "give_up": self.give_up > 1,
            "quiet_fraction": self.quiet_fraction >= 0,
            "patience_s": self.patience_s >= 0,
            "limit_s": self.limit_s > 0,
            "flush_bytes": self.flush_bytes >= 0,
            "constant_bytes": self.constant_bytes >= 0,
        }
        wrong = ", ".join(f"{name}={getattr(self, name)!r}" for name, fine in good.items() if not fine)
        if wrong:
            raise UserError(f"race policy out of range: {wrong}. Required: repeats >= 1, give_up > 1, limit_s > 0; all other values >= 0")

    def behind(self, samples: int) -> float:
        """The multiple of the best time above which a candidate with this number of samples is clearly behind.

        >>> [RacePolicy(give_up=1.5).behind(n) for n in (1, 2, 3)]
        [1.5, 1.25, 1.125]
        """
        return 1.0 + (self.give_up - 1.0) / 2 ** (samples - 1)

    def to_json(self) -> dict[str, object]:
        """Policy entry of a record."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class MeasurePolicy:
    """How candidates are measured.

    Args:
        race: timing policy.
        verify: when outputs are compared, see `VERIFY`.
        law_every: for one candidate in `law_every`, beginning with the first, check that sketch and trace give the same program.
        overlap: build the next candidates while the previous ones run.
        data_seed: seed of the inputs.
        retake: run time that a search spends on taking disturbed measurements again, as a share of that of all first measurements of the
            task; 0 for none.  Only candidates that may be among the fastest are taken again.
    """

    race: RacePolicy = field(default_factory=RacePolicy)
    verify: str = "winner"
    law_every: int = 50
    overlap: bool = False
    data_seed: int = 0
    retake: float = 0.1

    def __post_init__(self) -> None:
        if self.verify not in VERIFY:
            raise UserError(f"verify is one of {', '.join(VERIFY)}, not {self.verify!r}")
        if self.law_every < 1:
            raise UserError(f"law_every must be at least 1, got {self.law_every}")
        if not 0 <= self.retake < math.inf:
            raise UserError(f"retake is a share of the run time, a finite number of at least 0, not {self.retake!r}")

    def to_json(self) -> dict[str, object]:
        """Policy entry of a record: the settings that affect times."""
        return {"kind": "race", **self.race.to_json(), "verify": self.verify, "data_seed": self.data_seed}
