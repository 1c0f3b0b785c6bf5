"""Create sketches and configurations for fuzzing: rule sketches of small odd workloads, and random walks over all primitives.

Shared by tests of schedules, lowering and code generation through the `schedules` fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import numpy as np

from tunesmith.ir.analysis.access_regions import accesses, reads
from tunesmith.ir.arith.array_eval import compile_polys
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import ZERO, product
from tunesmith.ir.stmt import For, Seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under, path_to_block, walk
from tunesmith.ops.workload import Workload, workload
from tunesmith.schedule.handles import BlockRV, IntRV, LoopRV
from tunesmith.schedule.primitive import apply_instruction
from tunesmith.schedule.schedule import Schedule
from tunesmith.schedule.trace import Trace
from tunesmith.search.space.rules_table import rules_of
from tunesmith.search.space.sketch import Sketch, make_sketch
from tunesmith.support.errors import ScheduleError
from tunesmith.support.seeds import stream
from tunesmith.testing.program_fuzz.choices import Choices
from tunesmith.testing.program_fuzz.generate_steps import FUZZED, random_step
from tunesmith.testing.program_fuzz.steps import Replay

Row = tuple[int, ...]

WORKLOADS = (
    "matmul(m=17,n=19,k=5)",
    "matmul(m=1,n=13,k=7,tb=1)",
    "matmul(m=6,n=8,k=1,ta=1)",
    "batch_matmul(b=2,m=5,n=7,k=3)",
    "dense(m=7,n=9,k=5,activation=relu)",
    "dense(m=3,n=11,k=4,bias=0,activation=gelu)",
    "conv2d(n=1,h=5,w=6,ci=3,co=5,kh=3,kw=3,pad=1,stride=2,bias=1,relu=1)",
    "conv2d(n=1,h=7,w=5,ci=2,co=4,kh=3,kw=2,dilation=2)",
    "conv2d(n=2,h=4,w=5,ci=4,co=6,kh=3,kw=3,pad=1,groups=2,layout=NCHW)",
    "conv2d(n=1,h=5,w=4,ci=3,co=3,kh=2,kw=3,pad=1,groups=3,residual=1)",
    "conv2d(n=1,h=3,w=5,ci=7,co=3,kh=1,kw=1,layout=NCHW,bias=1)",
    "softmax(m=5,n=13)",
    "layer_norm(m=3,n=11)",
    "gelu(shape=7x11)",
    "add(shape=3x5x7,other=5x1)",
    "sum(shape=5x13,axis=1)",
    "sum(shape=4x3x5,axis=0+2)",
    "mean(shape=3x7,axis=-1)",
    "max(shape=23)",
)
"""One workload of each kind, with extents that no tile divides."""


@cache
def target() -> Target:
    """A generic x86-64 target with vectors of four floats, so that small tiles have vectors and a remainder, and two threads."""
    return Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=2")


@cache
def named(text: str) -> Workload:
    """The workload of a text."""
    return workload(text)


@dataclass(frozen=True)
class Case:
    """A sketch of a workload."""

    workload: Workload
    sketch: Sketch

    @property
    def name(self) -> str:
        """The name for failure reports."""
        return f"{self.workload.text}: {self.sketch.name}"


def rule_cases(text: str) -> list[Case]:
    """A case for each rule sketch whose schedule is valid."""
    w = named(text)
    found = []
    for rule in rules_of(target()):
        for name, schedule in rule(w.func, target()):
            made = _tried(name, w.func, schedule)
            if made is not None:
                found.append(Case(w, made))
    return found


def walk_case(text: str, seed: int, steps: int = 14) -> Case:
    """A case from a random walk: random primitives on random handles; refused steps are omitted."""
    w = named(text)
    return Case(w, make_sketch(f"walk {seed}", w.func, Walk(seed, steps)))


def _tried(name: str, func: PrimFunc, schedule: Callable[[Schedule], None]) -> Sketch | None:
    try:
        return make_sketch(name, func, schedule)
    except ScheduleError:
        return None


# ---- configurations -------------------------------------------------------------------------------------------------------------


def biased_rows(sketch: Sketch, func: PrimFunc, count: int, rng: np.random.Generator) -> list[Row]:
    """Admissible configurations with values that may be outside the Params' domains: 1, extents, extents + 1, primes.

    Returns `count` configurations, or fewer if the constraints and `STEPS` accept fewer draws; duplicates are possible.
    """
    if not sketch.params:
        return [()] * count
    extents = sorted({n.extent.as_int() for n in walk(func.body) if type(n) is For})
    pool = np.array([1, 2, *extents, *[e + 1 for e in extents], 3, 5, 7, 11, 13])
    draws = pool[rng.integers(len(pool), size=(8192, len(sketch.params)))]
    # Draws with more 1s are accepted more often, and the all-1 configuration is a difficult case itself.
    draws[rng.random(draws.shape) < rng.random((8192, 1))] = 1
    return [tuple(map(int, r)) for r in draws[_admissible(sketch)(draws)][:count]]


STEPS = 20_000
"""Maximum number of interpreted block instances per configuration: nested tiles larger than their loops multiply."""


def _admissible(sketch: Sketch) -> Callable[[np.ndarray], np.ndarray]:
    exprs = [c.expr for c in sketch.constraints]
    equal = np.array([*[c.kind == "eq0" for c in sketch.constraints], False])
    steps = ZERO
    for b in blocks_under(sketch.func.body):
        steps = steps + product([n.extent for n in path_to_block(sketch.func.body, b.name) or () if type(n) is For])
    values = compile_polys([*exprs, steps - STEPS], sketch.params)

    def check(draws: np.ndarray) -> np.ndarray:
        v = values(draws)
        return np.asarray(np.where(equal, v == 0, v <= 0).all(axis=1))

    return check


# ---- steps of a trace --------------------------------------------------------------------------------------------------


def programs_of(trace: Trace, func: PrimFunc, *, parametric: bool) -> tuple[Schedule, list[PrimFunc]]:
    """The schedule created by `trace`, and the program after each of its steps."""
    s = Schedule(func, parametric=parametric)
    after = []
    for i in trace.instructions:
        apply_instruction(s, i, None if parametric else i.decision)
        after.append(s.func)
    return s, after


# ---- data --------------------------------------------------------------------------------------------------------------


def integers(w: Workload, seed: int = 0) -> list[np.ndarray]:
    """Inputs of small integers, so that float sums are exact in any order; positive where the operator requires it."""
    out = []
    for t in w.inputs:
        rng = stream(seed, "schedules.integers", w.text, t.name)
        low = 1 if t.name in w.operator.positive else -3
        out.append(rng.integers(low, 4, t.shape).astype(t.dtype))
    return out


# ---- walks -------------------------------------------------------------------------------------------------------------


class Walk:
    """A random schedule: a number of moves with handles and factors chosen from the seed."""

    def __init__(self, seed: int, steps: int) -> None:
        self.seed, self.steps = seed, steps

    def __call__(self, s: Schedule) -> None:
        self.rng = stream(self.seed, "schedules.walk")
        self.count = 0
        self.sampled: list[IntRV] = []
        for _ in range(self.steps):
            move = self.pick(MOVES)
            try:
                move(self, s)
            except ScheduleError:
                continue
        if self.chance():
            with suppress(ScheduleError):
                self.threads(s)

    def pick(self, xs: Sequence[object]):  # type: ignore[no-untyped-def]  # the type of an element
        """A random element; ScheduleError, which ends the move, if there is none."""
        if not xs:
            raise ScheduleError("walk", "choice", "nothing to choose from")
        return xs[int(self.rng.integers(len(xs)))]

    def chance(self, p: float = 0.5) -> bool:
        return bool(self.rng.random() < p)

    def block(self, s: Schedule) -> BlockRV:
        made: BlockRV = s.get_block(self.pick([b.name for b in s.blocks()]))
        return made

    def factor(self, s: Schedule, loop: LoopRV, n: int = 2) -> list[IntRV]:
        self.count += 1
        made = s.sample_tile(loop, n, f"t{self.count}_", [tuple(range(1, 24))] * (n - 1), waste=1.0)
        self.sampled += made
        return made

    def tile(self, s: Schedule) -> None:
        loop = self.pick(s.get_loops(self.block(s)))
        s.split(loop, [None, *self.factor(s, loop, 2 if self.chance(0.7) else 3)])

    def nest(self, s: Schedule) -> None:
        """Tile all loops of a block and reorder them randomly, which most other moves need to be effective."""
        b = self.block(s)
        loops = s.get_loops(b)
        if len(loops) > 8:
            raise ScheduleError("walk", "nest", "deep enough")
        parts = []
        for loop in loops:
            parts.extend(s.split(loop, [None, *self.factor(s, loop)]))
        s.reorder([parts[i] for i in self.rng.permutation(len(parts))])

    def reorder(self, s: Schedule) -> None:
        loops = s.get_loops(self.block(s))
        if not loops:
            return
        order = self.rng.permutation(len(loops))[: int(self.rng.integers(1, len(loops) + 1))]
        s.reorder([loops[i] for i in order])

    def fuse(self, s: Schedule) -> None:
        loops = s.get_loops(self.block(s))
        if not loops:
            return
        at = int(self.rng.integers(len(loops)))
        s.fuse(loops[at : at + int(self.rng.integers(1, 4))])

    def mark(self, s: Schedule) -> None:
        loop = self.pick(s.get_loops(self.block(s)))
        if self.chance():
            s.unroll(loop, 12)
        else:
            s.vectorize(loop, 40)

    def threads(self, s: Schedule) -> None:
        """Parallelize a loop unless a thread-local buffer would carry values into or out of it."""
        loop = self.pick(s.get_loops(self.block(s)))
        inside = s.get_child_blocks(loop)
        mine = {n.buffer for b in inside for n in accesses(s.block(b))}
        others = {n.buffer for b in s.blocks() if b.name not in [i.block for i in inside] for n in accesses(b)}
        if any(b.scope in ("workspace", "register") for b in mine & others):
            raise ScheduleError("walk", "private", "a private buffer is used inside and outside")
        s.parallel(loop)

    def innermost(self, s: Schedule) -> None:
        s.vectorize(self.pick(s.get_loops(self.block(s))[-1:]), 40)

    def cache_write(self, s: Schedule) -> None:
        s.cache_write(self.block(s), self.pick(("workspace", "register", "global")))

    def cache_read(self, s: Schedule) -> None:
        b = self.block(s)
        buffer = self.pick(sorted({a.buffer.name for a in reads(s.block(b))}))
        shape = next(a.buffer.shape for a in reads(s.block(b)) if a.buffer.name == buffer)
        layout: list[object] = [int(d) for d in self.rng.permutation(len(shape))]
        if self.chance() and layout:
            d = self.pick(layout)
            f = self.pick([*self.sampled, 2, 4])
            layout[layout.index(d)] = [d, "/", f]
            layout.append([d, "%", f])
        s.cache_read(b, buffer, self.pick(("workspace", "global")), layout if self.chance(0.8) else None)

    def compute_at(self, s: Schedule) -> None:
        b = self.block(s)
        s.compute_at(b, self.pick(s.get_loops(self.pick(s.get_consumers(b)))))

    def reverse_compute_at(self, s: Schedule) -> None:
        b = self.block(s)
        s.reverse_compute_at(b, self.pick(s.get_loops(self.pick(s.get_producers(b)))))

    def compute_inline(self, s: Schedule) -> None:
        s.compute_inline(self.block(s))

    def reverse_compute_inline(self, s: Schedule) -> None:
        s.reverse_compute_inline(self.block(s))

    def decompose_reduction(self, s: Schedule) -> None:
        b = self.block(s)
        s.decompose_reduction(b, self.pick(s.get_loops(b)))

    def cache_reduction(self, s: Schedule) -> None:
        b = self.block(s)
        s.cache_reduction(b, self.pick(s.get_loops(b)), self.pick(("workspace", "register")))

    def rfactor(self, s: Schedule) -> None:
        s.rfactor(self.pick(s.get_loops(self.block(s))))

    def set_scope(self, s: Schedule) -> None:
        s.set_scope(self.block(s), self.pick(("workspace", "global", "register")))

    def merge(self, s: Schedule) -> None:
        """Merge two sibling loops, then sibling loops inside them."""
        rows = [n for n in walk(s.func.body) if type(n) is Seq and sum(type(x) is For for x in n.stmts) > 1]
        loops = [x for x in self.pick(rows).stmts if type(x) is For]
        at = int(self.rng.integers(len(loops) - 1))
        first, second = loops[at], self.pick(loops[at + 1 :])
        while True:
            merged = s.merge(*[self.handle(s, f) for f in (first, second)])
            inside = [x for x in getattr(s.loop(merged).body, "stmts", ()) if type(x) is For]
            if len(inside) < 2:
                return
            first, second = inside[-2:]

    @staticmethod
    def handle(s: Schedule, loop: For) -> LoopRV:
        return next(h for h in s.get_loops(s.get_block(blocks_under(loop)[0].name)) if h.var is loop.var)

    def reuse_buffer(self, s: Schedule) -> None:
        b = self.block(s)
        s.reuse_buffer(b, self.pick(s.get_consumers(b)))

    def listed(self, s: Schedule) -> None:
        """A step of the program fuzzer, of a primitive without a move here."""
        replay = Replay(s, target())
        replay.sampled = self.sampled
        replay.apply(random_step(Choices(int(self.rng.integers(1 << 30)), "walk"), s, len(self.sampled), LISTED))


LISTED = tuple([n for n in FUZZED if not hasattr(Walk, n) and n not in ("split", "parallel", "vectorize", "unroll", "bind", "annotate")])
"""The primitives of the program fuzzer, except those that a walk applies by its own moves."""
MOVES: tuple[Callable[[Walk, Schedule], None], ...] = (
    *[Walk.tile] * 3,
    *[Walk.nest] * 3,
    Walk.reorder,
    Walk.fuse,
    *[Walk.mark] * 2,
    Walk.cache_reduction,
    Walk.innermost,
    *[Walk.cache_write] * 2,
    *[Walk.cache_read] * 2,
    *[Walk.compute_at] * 3,
    *[Walk.reverse_compute_at] * 3,
    Walk.compute_inline,
    Walk.reverse_compute_inline,
    *[Walk.decompose_reduction] * 2,
    *[Walk.rfactor] * 2,
    Walk.set_scope,
    *[Walk.listed] * 3,
    *[Walk.merge] * 3,
    *[Walk.reuse_buffer] * 2,
)
"""Moves; those that are often refused are listed several times."""
