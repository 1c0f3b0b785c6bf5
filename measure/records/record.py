"""Define the lines of a tuning log: one JSON object per measurement or workload.

A `Record` refers to its workload by digest; the program's text is stored once in the same log, as a `WorkloadLine`.  Both are plain data.
Every field is validated on reading, so untrusted lines can be loaded; nothing in a line is executed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from tunesmith.ir.analysis.size_ranges import LARGEST_SIZE
from tunesmith.lower.size_ranges import SizeRanges
from tunesmith.lower.tuned_sizes import TunedSizes
from tunesmith.measure.records.fields import (
    MAX_MESSAGE,
    MAX_NAME,
    MAX_SCRIPT,
    MAX_SIZES,
    VERSION,
    LineFields,
    ValuePool,
    canonical,
    clip,
    is_digest,
    plain,
)
from tunesmith.support.errors import RecordError

ERROR_KINDS = ("build_error", "timeout", "crash", "out_of_memory", "wrong_result", "run_error", "slower_in_model")
"""Kinds of failures.  A `crash` is the death of the process (a signal), a `run_error` a failure that the process survived.
`slower_in_model` withdraws a candidate that made a whole model slower."""

CandidateKey = tuple[str, tuple[int, ...]]
"""Identity of a candidate in a search: sketch and row of integers."""


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """Why a candidate has no valid time.

    Attributes:
        kind: one of `ERROR_KINDS`.
        message: human-readable text; the middle of a very long one is omitted in the log.
    """

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Record:
    """One candidate of one workload, measured on one target.

    Attributes:
        workload: digest of the workload's program.
        target: the target as plain JSON.  Records are never used for another target.
        trace: the schedule with all its decisions, as JSON; opaque here.
        sketch: id of the candidate's sketch; empty for a handwritten schedule.
        row: the candidate's configuration in that sketch.
        samples: seconds per call, one entry per repeat, all above 0.  Empty only if there is an error.
        clean: False if other load disturbed the samples and no quiet window occurred.
        error: why the candidate failed, or None.
        verified: the output was compared with the reference and agreed.  Never together with an error.
        host: facts about the machine, see `environment`.
        versions: software versions, see `environment`.
        seed: seed of the search that proposed the candidate, 64 bits.
        timestamp: seconds since 1970 at the end of the measurement.
        policy: the timing policy as plain JSON.
        extra: additional plain JSON of the caller (hardware counters, network, tags).
        unknown: fields of the line that this version does not define, preserved unchanged.
        sizes: the sizes that the record is for, if it belongs to a function with dynamic shapes.
        passes: changes of the lowering passes that compiled it (`lower.pass_context.PassContext.changes`); empty if there were none.
            A record is never used where others are in force.
    """

    workload: str
    target: Mapping[str, object]
    trace: Sequence[object]
    sketch: str
    row: tuple[int, ...]
    samples: tuple[float, ...]
    clean: bool
    error: ErrorInfo | None
    verified: bool
    host: Mapping[str, object]
    versions: Mapping[str, object]
    seed: int
    timestamp: float
    policy: Mapping[str, object]
    extra: Mapping[str, object] = field(default_factory=dict)
    unknown: Mapping[str, object] = field(default_factory=dict)
    sizes: TunedSizes | None = None
    passes: Mapping[str, object] = field(default_factory=dict)
    _identity: tuple[str, str] = field(default=("", ""), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Rows of a population are numpy arrays, but keys and JSON need Python integers.
        object.__setattr__(self, "row", tuple(map(operator.index, self.row)))
        object.__setattr__(self, "samples", tuple(map(float, self.samples)))
        object.__setattr__(self, "timestamp", float(self.timestamp))

    def __repr__(self) -> str:
        state = self.error.kind if self.error is not None else f"{self.seconds * 1e6:.6g} us{'' if self.verified else ', not verified'}"
        return f"<Record of {self.workload:.8}: {state}, {self.sketch or 'schedule'} {list(self.row)}>"

    @property
    def seconds(self) -> float:
        """Median of the samples; infinity if there are none."""
        ordered = sorted(self.samples)
        if not ordered:
            return math.inf
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2

    @property
    def identity(self) -> str:
        """Digest of the measurement: target, schedule, samples, seed and time.

        Equal for copies of a record, even if status, tags or host facts were amended.
        """
        if not self._identity[0]:
            schedule = self.schedule
            text = canonical("target or samples", [self.target, schedule, self.samples, self.seed, self.timestamp])
            object.__setattr__(self, "_identity", (_digest(text), schedule))
        return self._identity[0]

    @property
    def schedule(self) -> str:
        """Digest of the measured schedule: workload, sketch, row, the trace with its decisions, and changes of passes if there are any.

        It is stored in the line.  A line whose fields have another digest was changed after it was written, and is rejected.  Lines of
        earlier versions have no digest and are not checked.
        """
        if not self._identity[1]:
            self._set_schedule(canonical("trace", self.trace))
        return self._identity[1]

    def _set_schedule(self, trace: str) -> None:
        text = f"{self.workload} {canonical('sketch', self.sketch)} {self.row} {trace}"
        if self.passes:
            text += f" {canonical('passes', self.passes)}"
        object.__setattr__(self, "_identity", ("", _digest(text)))

    @property
    def candidate(self) -> CandidateKey:
        """The measured candidate: sketch and row, or the digest of the schedule if there is no sketch."""
        return (self.sketch, self.row) if self.sketch else (f"trace:{self.schedule}", self.row)

    def to_json(self) -> dict[str, object]:
        """The line as plain JSON.  Raises RecordError if it could not be read back."""
        line: dict[str, object] = {
            "v": VERSION,
            "kind": "record",
            "workload": self.workload,
            "target": self.target,
            "trace": self.trace,
            "sketch": self.sketch,
            "row": self.row,
            "samples": self.samples,
            "clean": self.clean,
            "error": None if self.error is None else {"kind": self.error.kind, "message": clip(self.error.message)},
            "verified": self.verified,
            "host": self.host,
            "versions": self.versions,
            "seed": self.seed,
            "timestamp": self.timestamp,
            "policy": self.policy,
            "extra": self.extra,
            **({} if self.sizes is None else {"sizes": self.sizes.to_json()}),
            **({"passes": self.passes} if self.passes else {}),
        }
        complete = _with_unknown(line, self.unknown)
        complete["schedule"] = Record.from_json(complete).schedule  # computed from the fields as they will be read
        return complete

    @classmethod
    def from_json(cls, line: object, pool: ValuePool | None = None) -> Record:
        """Parse one line.

        Args:
            line: the line as returned by `json.loads`.
            pool: passed by journal readers, whose lines are known to be plain data with finite numbers: large fields are then
                looked up in the pool and not validated again.

        Raises:
            NewerRecordError: the line is of a newer version.
            RecordError: a field is missing, or has the wrong type, size or value.
        """
        fields = LineFields("record", line, pool)
        written = fields.rest.pop("schedule", None)
        sizes, passes = _sizes(fields), _passes(fields)
        record = cls(
            workload=fields.digest("workload"),
            target=fields.shared("target"),
            trace=fields.array("trace"),
            sketch=fields.string("sketch", MAX_NAME),
            row=fields.row("row"),
            samples=fields.samples("samples"),
            clean=fields.flag("clean"),
            error=_error(fields),
            verified=fields.flag("verified"),
            host=fields.shared("host"),
            versions=fields.shared("versions"),
            seed=fields.integer64("seed"),
            timestamp=fields.timestamp("timestamp"),
            policy=fields.shared("policy"),
            extra=fields.mapping("extra"),
            unknown=fields.rest,  # evaluated last, after all known fields were removed
            sizes=sizes,
            passes=passes,
        )
        if record.error is None and not record.samples:
            fields.refuse("samples", "at least one sample, as `error` is null", [])
        if record.error is not None and record.verified:
            fields.refuse("verified", "false, as `error` is set", True)
        if pool is not None:
            record._set_schedule(pool.text(record.trace))
        else:
            for name in ("target", "trace", "host", "versions", "policy", "extra", "unknown"):
                canonical(name, getattr(record, name))
        if written is not None and written != record.schedule:
            expected = f"{record.schedule}, the digest of workload, sketch, row and trace, which were changed after the line was written"
            fields.refuse("schedule", expected, written)
        return record


@dataclass(frozen=True, slots=True)
class WorkloadLine:
    """Definition of a workload digest: its name and program.

    Attributes:
        digest: the workload's digest, as in `Record.workload`.
        name: display name, such as `matmul(m=512,n=512,k=512)`.
        script: the program as TIR script text.  It is parsed as data on demand, never executed.
        unknown: fields of the line that this version does not define, preserved unchanged.
    """

    digest: str
    name: str
    script: str
    unknown: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """The line as plain JSON.  Raises RecordError if it could not be read back."""
        line: dict[str, object] = {"v": VERSION, "kind": "workload", "digest": self.digest, "name": self.name, "script": self.script}
        complete = _with_unknown(line, self.unknown)
        WorkloadLine.from_json(complete)
        return complete

    @classmethod
    def from_json(cls, line: object) -> WorkloadLine:
        """Parse one line.  Raises NewerRecordError and RecordError as `Record.from_json` does."""
        fields = LineFields("workload", line)
        digest, name, script = fields.digest("digest"), fields.string("name", MAX_NAME), fields.string("script", MAX_SCRIPT)
        canonical("unknown fields", fields.rest)
        return cls(digest, name, script, fields.rest)


def parse_line(line: object, pool: ValuePool | None = None) -> Record | WorkloadLine:
    """Parse a line of either kind.  `pool` and errors are as for `Record.from_json`."""
    if isinstance(line, dict) and line.get("kind") == "workload":
        return WorkloadLine.from_json(line)
    return Record.from_json(line, pool)


def target_key(target: Mapping[str, object]) -> str:
    """Canonical text of a target: equal for equal targets, independent of the order of attributes.

    Raises:
        RecordError: the target is not plain JSON.
    """
    return canonical("target", target)


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _error(fields: LineFields) -> ErrorInfo | None:
    expected = 'null or {"kind": ..., "message": ...}'
    value = fields.take("error", expected)
    if value is None:
        return None
    if not isinstance(value, dict) or value.keys() != {"kind", "message"}:
        fields.refuse("error", expected, value)
    kind, message = value["kind"], value["message"]
    if kind not in ERROR_KINDS:
        fields.refuse("error.kind", f"one of {', '.join(ERROR_KINDS)}", kind)
    if not isinstance(message, str) or len(message) > MAX_MESSAGE:
        fields.refuse("error.message", f"a string of at most {MAX_MESSAGE} characters", message)
    return ErrorInfo(kind, message)


def _sizes(fields: LineFields) -> TunedSizes | None:
    """The field `sizes`, which lines of earlier versions and of functions with constant shapes do not have."""
    value = fields.rest.pop("sizes", None)
    if value is None:
        return None
    expected = '{"function": digest, "ranges": {name: [lowest, highest]}}, with sizes from 1 to 2**31 - 1'
    if not isinstance(value, dict) or value.keys() != {"function", "ranges"} or not isinstance(value["ranges"], dict):
        fields.refuse("sizes", expected, value)
    digest, ranges = value["function"], value["ranges"]
    if not isinstance(digest, str) or not is_digest(digest) or not 0 < len(ranges) <= MAX_SIZES:
        fields.refuse("sizes", expected, value)
    for name, ends in ranges.items():
        fine = isinstance(ends, list) and len(ends) == 2 and all(type(x) is int for x in ends)
        if not fine or not 1 <= ends[0] <= ends[1] <= LARGEST_SIZE or not 0 < len(name) <= MAX_NAME:
            fields.refuse("sizes", expected, value)
    return TunedSizes(digest, SizeRanges.of({name: (low, high) for name, (low, high) in ranges.items()}))


def _passes(fields: LineFields) -> dict[str, object]:
    """The field `passes`, which only lines of records compiled with changed passes have."""
    value = fields.rest.pop("passes", None)
    if value is None:
        return {}
    expected = '{"without": [pass, ...], "options": {pass: {option: value}}}, of which one is there'
    if not isinstance(value, dict) or not value or not value.keys() <= {"without", "options"}:
        fields.refuse("passes", expected, value)
    without, options = value.get("without", []), value.get("options", {})
    if not isinstance(without, list) or not isinstance(options, dict) or len(without) + len(options) > MAX_SIZES:
        fields.refuse("passes", expected, value)
    for name in (*without, *options):
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
            fields.refuse("passes", expected, name)
    for given in options.values():
        if not isinstance(given, dict) or any(isinstance(v, (dict, list)) or v is None for v in given.values()):
            fields.refuse("passes", expected, given)
    return value


def _with_unknown(line: dict[str, object], unknown: Mapping[str, object]) -> dict[str, object]:
    """The line in JSON types, together with the preserved fields of another version."""
    if taken := sorted(line.keys() & unknown.keys()):
        raise RecordError(f"`unknown` holds {', '.join(taken)}, which this version defines: set the field itself")
    return {name: plain(name, value) for name, value in {**line, **unknown}.items()}
