"""Generate random schedule steps: any registered primitive, with arguments derived from its signature's annotations.

Most arguments are plausible, some are invalid.  `FUZZED` lists the primitives.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tunesmith.ir.analysis.access_regions import accesses, reads, writes
from tunesmith.ir.buffer import SCOPES, Buffer
from tunesmith.ir.expr import Select
from tunesmith.ir.gpu import AXES
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.stmt import Block, BufferStore, For, Seq
from tunesmith.ir.tensor_intrinsics.intrinsic import TENSOR_INTRINSICS
from tunesmith.ir.tensor_intrinsics.match import described_nest
from tunesmith.ir.visit import walk
from tunesmith.schedule.primitive import PRIMITIVES
from tunesmith.schedule.primitives.annotate import KEYS
from tunesmith.schedule.primitives.restrict_reduction import congruent_variables
from tunesmith.schedule.schedule import Schedule
from tunesmith.testing.program_fuzz.choices import Choices
from tunesmith.testing.program_fuzz.steps import Argument, BlockRef, LoopRef, Sampled, Step

ARBITRARY = 0.01
"""Probability of an argument of an arbitrary type."""
MAX_SPLIT_RANK = 3
"""Largest number of dimensions of which a layout splits some."""


Arguments = list[tuple[str, Argument]]


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """How a primitive is fuzzed.

    Attributes:
        arguments: makes arguments that depend on each other; None makes each from the annotation of its parameter.
        weight: frequency, relative to other primitives.
        needs: "intermediate" or "reduction": the primitive is rarely applied to programs without one.
    """

    arguments: Callable[[StepGenerator], Arguments] | None = None
    weight: float = 1.0
    needs: str = ""


def random_step(c: Choices, s: Schedule, sampled: int, names: Iterable[str] = ()) -> Step:
    """A step for the current program, of one of the primitives `names` (default: all); `sampled` is the number of sampled integers."""
    m = StepGenerator(c, s, sampled)
    lacking = set() if m.pairs() else {"intermediate"}
    if not any(i.kind == "R" for b in s.blocks() for i in b.iters):
        lacking.add("reduction")
    listed = {n: FUZZED.get(n, Fuzzed()) for n in names or PRIMITIVES}
    return m.step(c.weighted({n: f.weight * (0.05 if f.needs in lacking else 1.0) for n, f in listed.items()}))


class StepGenerator:
    """Draws arguments for the steps of a schedule."""

    def __init__(self, c: Choices, s: Schedule, sampled: int) -> None:
        self.c, self.s, self.sampled = c, s, sampled
        self.blocks = [b.name for b in s.blocks()]
        self.block = c.one(self.blocks) if self.blocks else "none"

    def step(self, name: str) -> Step:
        """A call of a primitive."""
        arguments: Arguments = []
        special = FUZZED.get(name, Fuzzed()).arguments
        if special is not None and not self.c.chance(ARBITRARY):
            arguments = special(self)
        else:
            for p in list(PRIMITIVES[name].signature.parameters.values())[1:]:
                optional = p.default is not inspect.Parameter.empty
                if optional and self.c.chance(0.85):
                    continue
                arguments.append((p.name, self.argument(p.name, inspect.formatannotation(p.annotation).strip("'"))))
        return Step(name, tuple(arguments))

    def pairs(self) -> list[tuple[str, str]]:
        """(producer, consumer) pairs of blocks that share an intermediate."""
        wrote = [(a.buffer, b.name) for b in self.s.blocks() for a in writes(b) if a.buffer in self.s.func.allocs]
        read = [(a.buffer, b.name) for b in self.s.blocks() for a in reads(b)]
        return [(x, y) for b, x in wrote for c, y in read if b is c and x != y]

    def pair(self) -> tuple[str, str]:
        """Usually a producer and its consumer."""
        pairs = self.pairs()
        return self.c.one(pairs) if pairs and self.c.chance(0.9) else (self.c.one(self.blocks), self.c.one(self.blocks))

    def choose(self, condition: Callable[[Block], bool]) -> None:
        """Select a block, usually one that meets a condition."""
        found = [b.name for b in self.s.blocks() if condition(b)]
        if found and self.c.chance(0.9):
            self.block = self.c.one(found)

    def reduction_loop(self) -> LoopRef:
        """Usually a loop of the block's reduction."""
        self.choose(lambda b: any(i.kind == "R" for i in b.iters))
        loops = self.s.loops_of(self.block) if self.block in self.blocks else []
        b = next((x for x in self.s.blocks() if x.name == self.block), None)
        used = [v for i, e in zip(b.iters, b.bindings, strict=True) if i.kind == "R" for v in e.vars] if b is not None else []
        depths = [n for n, f in enumerate(loops) if f.var in used]
        return LoopRef(self.block, self.c.one(depths)) if depths and self.c.chance(0.85) else self.loop(0.3)

    def argument(self, name: str, annotation: str) -> Argument:
        """An argument for a parameter with this name and annotation."""
        c = self.c
        if c.chance(ARBITRARY):
            silly: list[Argument] = [None, 0, -1, 1 << 40, "x", True, 2.5, (), BlockRef(self.block), LoopRef(self.block, 0)]
            return c.one(silly)
        if annotation.startswith("Sequence[LoopRV"):
            return self.loops()
        if annotation.startswith("Sequence["):
            return tuple([self.integer() for _ in range(c.integer(1, 3))])
        if "BlockRV" in annotation and "LoopRV" in annotation:
            return BlockRef(self.block) if c.chance(0.5) else self.loop()
        if annotation == "BlockRV":
            return BlockRef(self.block)
        if annotation == "LoopRV":
            return self.loop()
        if annotation == "str":
            return self.text(name)
        if "int" in annotation or "IntRV" in annotation:
            return self.integer()
        others: list[Argument] = [None, None, 0, 1, (), "x"]
        return c.one(others)

    def loop(self, inner: float = 0.45) -> LoopRef:
        """A loop around the block; the innermost with probability `inner`."""
        depth = self.depth()
        at = depth - 1 if self.c.chance(inner) else self.c.integer(0, max(0, depth - 1))
        return LoopRef(self.block, max(0, at))

    def depth(self) -> int:
        """The number of loops around the block."""
        return self.depth_of(self.block)

    def depth_of(self, block: str) -> int:
        """The number of loops around a block; 0 if there is none of that name."""
        return len(self.s.loops_of(block)) if block in self.blocks else 0

    def loops(self) -> tuple[Argument, ...]:
        """Some of the block's loops, in any order."""
        n = self.depth()
        if not n:
            return ()
        low = self.c.integer(0, n - 1)
        chosen = list(range(low, self.c.integer(low, n - 1) + 1))
        return tuple([LoopRef(self.block, i) for i in (self.c.shuffled(chosen) if self.c.chance(0.8) else chosen)])

    def integer(self) -> Argument:
        """A random factor."""
        if self.sampled and self.c.chance(0.4):
            return Sampled(self.c.integer(0, self.sampled - 1))
        return self.c.weighted({1: 0.7, 2: 3.0, 3: 2.0, 4: 3.0, 5: 1.2, 6: 0.5, 7: 0.5, 8: 2.0, 16: 1.0, 0: 0.05, -1: 0.05, 17: 0.3})

    def layout(self, rank: int) -> Argument:
        """Dimensions in a random order, some of them split unless there are many: each split may pad."""
        out: list[Argument] = []
        for d in range(rank):
            f = self.integer()
            out += [(d, "/", f), (d, "%", f)] if rank <= MAX_SPLIT_RANK and self.c.chance(0.4) else [d]
        return tuple(self.c.shuffled(out))

    def text(self, name: str) -> str:
        """A string argument for a parameter with this name."""
        c = self.c
        if name == "scope":
            return c.weighted({"global": 3.0, "workspace": 2.5, "register": 4.0, **{x: 0.1 for x in SCOPES[3:]}, "nowhere": 0.05})
        if name == "thread":
            return c.one(AXES)
        if name == "key":
            return c.one([*KEYS, "nothing"])
        if name == "buffer":
            return self.buffer()
        return self.block if name == "name" else "x"

    def buffer(self) -> str:
        """The name of a buffer."""
        names = [b.name for b in (*self.s.func.params, *self.s.func.allocs) if isinstance(b, Buffer)]
        return self.c.one(names or ["none"])


def _split(m: StepGenerator) -> Arguments:
    first: Argument = None if m.c.chance(0.9) else m.integer()
    rest = [m.integer() for _ in range(1 if m.c.chance(0.8) else 2)]
    return [("loop", m.loop(0.3)), ("factors", (first, *rest))]


def _fuse(m: StepGenerator) -> Arguments:
    n = m.depth()
    low = m.c.integer(0, max(0, n - 2))
    return [("loops", tuple([LoopRef(m.block, i) for i in range(low, min(n, low + m.c.integer(2, 3)))]))]


def _reorder(m: StepGenerator) -> Arguments:
    n = m.depth()
    low = m.c.integer(0, max(0, n - 2))
    return [("loops", tuple(m.c.shuffled([LoopRef(m.block, i) for i in range(low, n)])))]


def _position(m: StepGenerator) -> Arguments:
    """Now and then, the optional arguments of `compute_at` and `reverse_compute_at`."""
    index: Arguments = [("index", m.c.integer(-2, 3))] if m.c.chance(0.15) else []
    return [*index, *([("preserve_unit_loops", False)] if m.c.chance(0.15) else [])]


def _compute_at(m: StepGenerator) -> Arguments:
    producer, m.block = m.pair()
    whole: Arguments = [("whole", (m.c.integer(0, 3),))] if m.c.chance(0.15) else []
    return [("block", BlockRef(producer)), ("loop", m.loop(0.3)), *_position(m), *whole]


def _reverse_compute_at(m: StepGenerator) -> Arguments:
    m.block, consumer = m.pair()
    return [("block", BlockRef(consumer)), ("loop", m.loop(0.3)), *_position(m)]


def _producer(m: StepGenerator) -> Arguments:
    return [("block", BlockRef(m.pair()[0]))]


def _consumer(m: StepGenerator) -> Arguments:
    return [("block", BlockRef(m.pair()[1]))]


def _intermediate(rest: Callable[[StepGenerator], Arguments]) -> Callable[[StepGenerator], Arguments]:
    """Arguments: a block that writes an intermediate, then `rest`."""

    def make(m: StepGenerator) -> Arguments:
        m.choose(lambda b: any(a.buffer in m.s.func.allocs for a in writes(b)))
        return [("block", BlockRef(m.block)), *rest(m)]

    return make


def _cache_read(m: StepGenerator) -> Arguments:
    m.choose(lambda b: any(True for _ in reads(b)))
    names = [a.buffer.name for b in m.s.blocks() if b.name == m.block for a in reads(b)]
    name = m.c.one(names) if names else m.buffer()
    rank = next((len(b.shape) for b in m.s.func.buffers if b.name == name), 1)
    layout: Arguments = [("layout", m.layout(rank))] if m.c.chance(0.3) else []
    access: Arguments = [("access", m.c.integer(0, 2))] if m.c.chance(0.1) or (names.count(name) > 1 and m.c.chance(0.5)) else []
    return [("block", BlockRef(m.block)), ("buffer", name), ("scope", m.text("scope")), *layout, *access]


def _read_at(m: StepGenerator) -> Arguments:
    block, buffer, scope, *_ = _cache_read(m)
    return [("loop", m.loop(0.2)), block, buffer, scope]


def _write_at(m: StepGenerator) -> Arguments:
    m.choose(lambda b: m.depth_of(b.name) > 1)
    names = [a.buffer.name for b in m.s.blocks() if b.name == m.block for a in writes(b)]
    name = m.c.one(names) if names else m.buffer()
    return [("loop", m.loop(0.2)), ("block", BlockRef(m.block)), ("buffer", name), ("scope", m.text("scope"))]


def _rolling_buffer(m: StepGenerator) -> Arguments:
    """A producer inside a loop of its consumer, if there is one."""
    inside = [x for x, y in m.pairs() if m.depth_of(x) and m.depth_of(y) and m.s.loops_of(x)[0].var is m.s.loops_of(y)[0].var]
    m.block = m.c.one(inside) if inside else m.pair()[0]
    names = [a.buffer.name for b in m.s.blocks() if b.name == m.block for a in writes(b)]
    return [("block", BlockRef(m.block)), ("buffer", m.c.one(names) if names else m.buffer())]


def _decompose_padding(m: StepGenerator) -> Arguments:
    m.choose(lambda b: type(b.body) is BufferStore and type(b.body.value) is Select)
    return [("block", BlockRef(m.block)), ("loop", m.loop(0.3))]


def _pad_einsum(m: StepGenerator) -> Arguments:
    m.choose(lambda b: any(i.kind == "R" for i in b.iters))
    rank = next((len(b.iters) for b in m.s.blocks() if b.name == m.block), 2)
    return [("block", BlockRef(m.block)), ("padding", tuple([1 if m.c.chance(0.4) else m.integer() for _ in range(rank)]))]


def _winograd(m: StepGenerator) -> Arguments:
    m.choose(lambda b: sum(i.kind == "R" for i in b.iters) > 1)
    return [("block", BlockRef(m.block)), ("tile", m.c.integer(2, 4))]


def _strassen(m: StepGenerator) -> Arguments:
    m.choose(lambda b: any(i.kind == "R" for i in b.iters) and sum(i.kind == "S" for i in b.iters) > 1)
    rank = next((len(b.iters) for b in m.s.blocks() if b.name == m.block), 3)
    axes = [m.c.integer(0, max(rank - 1, 0)) for _ in range(3)]
    return [("block", BlockRef(m.block)), ("axes", tuple(axes)), ("panel", m.c.integer(1, 3))]


def _restrict_reduction(m: StepGenerator) -> Arguments:
    m.choose(lambda b: bool(congruent_variables(b)))
    b = next((x for x in m.s.blocks() if x.name == m.block), None)
    found = [] if b is None else congruent_variables(b)
    return [("block", BlockRef(m.block)), ("variable", m.c.one(found) if found and m.c.chance(0.8) else m.c.integer(0, 3))]


def _loop_partition(m: StepGenerator) -> Arguments:
    cuts = [m.integer() for _ in range(m.c.integer(1, 2))]
    return [("loop", m.loop(0.3)), ("cuts", tuple(cuts))]


def _sample_compute_location(m: StepGenerator) -> Arguments:
    decision: Arguments = [("decision", (m.c.integer(-2, 3),))] if m.c.chance(0.3) else []
    return [*_producer(m), *decision]


def _rfactor(m: StepGenerator) -> Arguments:
    axis: Arguments = [("factor_axis", m.c.integer(-2, 3))] if m.c.chance(0.3) else []
    return [("loop", m.reduction_loop()), *axis]


def _kind(inner: float) -> Callable[[StepGenerator], Arguments]:
    return lambda m: [("loop", m.loop(inner))]


def _tensorize(m: StepGenerator) -> Arguments:
    """Usually a loop and an intrinsic of equal extents."""
    names = TENSOR_INTRINSICS.names()
    extents = [f.extent for f in m.s.loops_of(m.block)] if m.block in m.blocks else []
    nests = {n: [f.extent for f in described_nest(TENSOR_INTRINSICS.get(n))[0].loops] for n in names}
    equal = [(at, n) for at in range(len(extents)) for n in names if [e for e in extents[at:] if e != 1] == nests[n]]
    at, name = m.c.one(equal) if equal and m.c.chance(0.8) else (m.loop(0.7).depth, m.c.one(names))
    return [("loop", LoopRef(m.block, at)), ("intrinsic", name)]


def _annotate(m: StepGenerator) -> Arguments:
    key = m.c.weighted({**{k: 1.0 for k in KEYS}, "prefetch": 4.0})
    target: Argument = BlockRef(m.block) if m.c.chance(0.6) else m.loop()
    value: Argument = m.buffer() if key in ("prefetch_operand", "pack_constant") else m.integer()
    return [("target", target), ("key", key), ("value", value)]


def _unannotate(m: StepGenerator) -> Arguments:
    found: list[tuple[Argument, str]] = [(BlockRef(b.name), key) for b in m.s.blocks() for key, _ in b.annotations]
    loops = [(b.name, at, f) for b in m.s.blocks() for at, f in enumerate(m.s.loops_of(b.name))]
    found += [(LoopRef(block, at), key) for block, at, f in loops for key, _ in f.annotations]
    target, key = m.c.one(found) if found else (BlockRef(m.block), m.text("key"))
    return [("target", target), ("key", key)]


def _reuse(m: StepGenerator) -> Arguments:
    producer, consumer = m.pair()
    return [("block", BlockRef(producer)), ("into", BlockRef(consumer))]


def _merge(m: StepGenerator) -> Arguments:
    """Two loops at the same depth of adjacent blocks."""
    at = m.blocks.index(m.block) if m.block in m.blocks else 0
    other = m.blocks[min(at + 1, len(m.blocks) - 1)] if m.blocks else "none"
    depth = m.c.integer(0, max(0, m.depth() - 1)) if m.c.chance(0.4) else 0
    return [("first", LoopRef(m.block, depth)), ("second", LoopRef(other, depth))]


def _fission(m: StepGenerator) -> Arguments:
    """A loop with several statements, if there is one, and a block before the last of them."""
    cuts = [
        (path[-1].name, depth)
        for path in [m.s.path(b) for b in m.blocks]
        for depth, at in enumerate([n + 1 for n, x in enumerate(path) if type(x) is For])
        if type(path[at]) is Seq and path[at].stmts[-1] is not path[at + 1]
    ]
    if cuts and m.c.chance(0.9):
        block, depth = m.c.one(cuts)
        return [("loop", LoopRef(block, depth)), ("after", BlockRef(block))]
    return [("loop", m.loop(0.3)), ("after", BlockRef(m.c.one(m.blocks) if m.blocks else "none"))]


def _cache_reduction(m: StepGenerator) -> Arguments:
    loop = m.reduction_loop()
    return [("block", BlockRef(loop.block)), ("loop", loop if m.c.chance(0.5) else m.loop(0.2)), ("scope", m.text("scope"))]


def _decompose(m: StepGenerator) -> Arguments:
    loop = m.reduction_loop()
    return [("block", BlockRef(loop.block)), ("loop", loop if m.c.chance(0.5) else m.loop(0.2))]


def _transform_layout(m: StepGenerator) -> Arguments:
    found = [(b.name, a.buffer) for b in m.s.blocks() for a in accesses(b) if a.buffer in m.s.func.allocs]
    if not found or m.c.chance(0.05):
        return [("block", BlockRef(m.block)), ("buffer", m.buffer()), ("index_map", m.layout(2))]
    block, buffer = m.c.one(found)
    padding: Arguments = [("pad_value", m.c.one([0, 1, -1, 0.5]))] if m.c.chance(0.2) else []
    return [("block", BlockRef(block)), ("buffer", buffer.name), ("index_map", m.layout(len(buffer.shape))), *padding]


def _transform_block_layout(m: StepGenerator) -> Arguments:
    rank = next((len(b.iters) for b in m.s.blocks() if b.name == m.block), 2)
    return [("block", BlockRef(m.block)), ("index_map", m.layout(rank))]


def _reindex(m: StepGenerator) -> Arguments:
    kind = "read" if m.c.chance(0.5) else "write"
    m.choose(lambda b: any(True for _ in (reads(b) if kind == "read" else writes(b))))
    names = [a.buffer.name for b in m.s.blocks() if b.name == m.block for a in (reads(b) if kind == "read" else writes(b))]
    return [("block", BlockRef(m.block)), ("buffer", m.c.one(names) if names else m.buffer()), ("kind", kind)]


def _cache_index(m: StepGenerator) -> Arguments:
    m.choose(lambda b: any(type(n) is IndirectIndex for n in walk(b)))
    return [("block", BlockRef(m.block)), ("scope", m.text("scope"))]


def _storage_align(m: StepGenerator) -> Arguments:
    found = [(b.name, a.buffer) for b in m.s.blocks() for a in accesses(b) if a.buffer in m.s.func.allocs and len(a.buffer.shape) > 1]
    block, buffer = m.c.one(found) if found else (m.block, None)
    rank = 2 if buffer is None else len(buffer.shape)
    axis = m.c.integer(-rank, rank - 1) if m.c.chance(0.3) else -2
    offset: Arguments = [("offset", m.c.integer(0, 8))] if m.c.chance(0.5) else []
    name = m.buffer() if buffer is None else buffer.name
    return [("block", BlockRef(block)), ("buffer", name), ("axis", axis), ("factor", m.integer()), *offset]


WIDER = {
    "int8": ("int16", "int64"),
    "uint8": ("uint16", "int32"),
    "int16": ("int32",),
    "uint16": ("uint64", "int32"),
    "int32": ("int64", "float64"),
    "uint32": ("int64", "uint64"),
    "float16": ("float32", "float64"),
    "bfloat16": ("float32", "float64"),
    "float32": ("float64",),
}
"""Types that hold all values of a type, so that `unsafe_set_dtype` keeps the results."""


def _unsafe_set_dtype(m: StepGenerator) -> Arguments:
    m.choose(lambda b: any(a.buffer in m.s.func.allocs for a in writes(b)))
    found = [a.buffer.dtype for b in m.s.blocks() if b.name == m.block for a in writes(b)]
    wider = WIDER.get(found[0] if found else "", ())
    return [("block", BlockRef(m.block)), ("dtype", m.c.one(wider) if wider else "float8")]


FUZZED: Mapping[str, Fuzzed] = {
    "split": Fuzzed(_split, weight=4.0),
    "fuse": Fuzzed(_fuse, weight=1.5),
    "reorder": Fuzzed(_reorder, weight=3.0),
    "merge": Fuzzed(_merge, weight=1.2),
    "fission": Fuzzed(_fission, weight=1.0),
    "loop_partition": Fuzzed(_loop_partition, weight=0.7),
    "add_unit_loop": Fuzzed(),
    "parallel": Fuzzed(_kind(0.2), weight=2.5),
    "vectorize": Fuzzed(_kind(0.8), weight=4.0),
    "unroll": Fuzzed(weight=3.0),
    "tensorize": Fuzzed(_tensorize, weight=0.2),
    "bind": Fuzzed(weight=0.03),
    "annotate": Fuzzed(_annotate, weight=1.0),
    "unannotate": Fuzzed(_unannotate, weight=0.2),
    "compute_at": Fuzzed(_compute_at, weight=2.5, needs="intermediate"),
    "reverse_compute_at": Fuzzed(_reverse_compute_at, weight=2.5, needs="intermediate"),
    "compute_inline": Fuzzed(_producer, weight=1.2, needs="intermediate"),
    "reverse_compute_inline": Fuzzed(_consumer, weight=1.5, needs="intermediate"),
    "cache_read": Fuzzed(_cache_read, weight=1.5),
    "read_at": Fuzzed(_read_at, weight=1.5),
    "cache_write": Fuzzed(weight=1.5),
    "write_at": Fuzzed(_write_at, weight=1.5),
    "cache_index": Fuzzed(_cache_index),
    "reindex": Fuzzed(_reindex),
    "cache_reduction": Fuzzed(_cache_reduction, weight=2.5, needs="reduction"),
    "cooperative_fetch": Fuzzed(weight=0.2),
    "set_scope": Fuzzed(_intermediate(lambda m: [("scope", m.text("scope"))]), weight=1.5, needs="intermediate"),
    "pad_rows": Fuzzed(_intermediate(lambda m: [("pad", m.integer())]), needs="intermediate"),
    "storage_align": Fuzzed(_storage_align, needs="intermediate"),
    "reuse_buffer": Fuzzed(_reuse, weight=1.2, needs="intermediate"),
    "transform_layout": Fuzzed(_transform_layout, needs="intermediate"),
    "transform_block_layout": Fuzzed(_transform_block_layout),
    "unsafe_set_dtype": Fuzzed(_unsafe_set_dtype, weight=0.7, needs="intermediate"),
    "rolling_buffer": Fuzzed(_rolling_buffer, needs="intermediate"),
    "decompose_padding": Fuzzed(_decompose_padding, weight=0.7),
    "pad_einsum": Fuzzed(_pad_einsum, weight=0.7, needs="reduction"),
    "strassen": Fuzzed(_strassen, weight=0.3, needs="reduction"),
    "winograd": Fuzzed(_winograd, weight=0.3, needs="reduction"),
    "restrict_reduction": Fuzzed(_restrict_reduction, weight=0.3, needs="reduction"),
    "decompose_reduction": Fuzzed(_decompose, weight=1.5, needs="reduction"),
    "rfactor": Fuzzed(_rfactor, weight=2.5, needs="reduction"),
    "sample_categorical": Fuzzed(weight=0.1),
    "sample_tile": Fuzzed(weight=0.4),
    "sample_perfect_tile": Fuzzed(weight=0.3),
    "sample_compute_location": Fuzzed(_sample_compute_location, weight=0.3, needs="intermediate"),
    "get_block": Fuzzed(weight=0.02),
    "get_loops": Fuzzed(weight=0.02),
    "get_child_blocks": Fuzzed(weight=0.02),
    "get_producers": Fuzzed(weight=0.02),
    "get_consumers": Fuzzed(weight=0.02),
    "get_output_blocks": Fuzzed(weight=0.02),
}
"""How each primitive is fuzzed: by the program fuzzer, and by the walks of the law of parametric schedules (`tests/schedules.py`).

A new primitive needs one entry here."""
