"""Print functions in C: loops, parallel loops as functions of their own, one scratch arena per kernel.

Register buffers become variables, one for each vector, so that any compiler keeps them in registers (`codegen.c.host.registers`).
Dynamic sizes are further arguments of the kernel, and of every parallel body.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tunesmith.codegen.c.host.arena import PRIVATE_BYTES, SHARED_BYTES, CArena
from tunesmith.codegen.c.host.expr import load_key
from tunesmith.codegen.c.host.module import CModule
from tunesmith.codegen.c.host.names import Names
from tunesmith.codegen.c.host.registers import variables_of
from tunesmith.codegen.c.host.store import StorePrinter
from tunesmith.codegen.c.host.text import BITS, UNARY, Code, call, element_type, number, stored
from tunesmith.codegen.cpu.arena import PRIVATE, SHARED, STACK_BYTES, STATIC_BYTES
from tunesmith.codegen.cpu.store_groups import Interleaved, Products, Tile, grouped_stores
from tunesmith.codegen.cpu.work import elements_stored, grain_of
from tunesmith.codegen.params import written_buffers
from tunesmith.ir.analysis.size_ranges import symbol_ranges
from tunesmith.ir.arith.interval import bounds
from tunesmith.ir.buffer import TILE_SCOPE, Buffer, BufferLoad
from tunesmith.ir.expr import Call
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.intrinsics import PREFETCHES
from tunesmith.ir.poly import ONE, ZERO, Param, Poly, maximum, poly
from tunesmith.ir.specialize import sizes_of
from tunesmith.ir.stmt import Allocate, BindIndex, BufferStore, Evaluate, For, If, Seq, Stmt, While
from tunesmith.ir.visit import substitute as substitute_statement
from tunesmith.ir.visit import walk, walk_objects
from tunesmith.lower.code_size import EMITTED
from tunesmith.runtime.thread_support import FORKED, THREADS
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError


@dataclass(frozen=True, slots=True)
class Kernel:
    """A printed kernel.

    Attributes:
        name: its C name.
        declaration: its prototype, without the semicolon.
        refuses: whether it returns an int64_t: 0 if it ran; otherwise it has done nothing, and the result is the size of the failed
            allocation in bytes, or `thread_support.FORKED`.  A kernel that can always run returns void.
        detail: further text about the allocation.
    """

    name: str
    declaration: str
    refuses: bool = False
    detail: str = ""


def print_kernel(func: PrimFunc, module: CModule, version: str = "") -> Kernel:
    """Print the kernel `<name>_kernel<version>`: one pointer for each parameter, then the sizes, int64_t.

    Args:
        func: a lowered function.
        module: receives the kernel.
        version: suffix of the kernel's name; kernels of versions are static.
    Raises:
        BuildError: the function cannot be compiled for the target.
    """
    return _Kernel(func, module, version).printed()


class _Kernel:
    """One kernel, with the arena of its allocations."""

    def __init__(self, func: PrimFunc, module: CModule, version: str) -> None:
        self.func, self.module = func, module
        self.name = f"{func.name}_kernel{version}"
        self.exported = module.exported and not version
        self.names = Names()
        self.bodies: list[str] = []
        self.sizes = {v: "" for v in sizes_of(func)}
        made = [*func.allocs, *[n.buffer for n in walk(func.body) if type(n) is Allocate]] if self.sizes else []
        self.arena = CArena(self.name, module.target.num_cores, any(b.shape[0].const is None for b in made))

    def printed(self) -> Kernel:
        """Print the kernel into the module."""
        func = self.func
        buffers = [p for p in func.params if isinstance(p, Buffer)]
        if any(isinstance(p, Param) for p in func.params):
            raise BuildError(f"{func.name}: a parameter is a Param, which needs a value before code is generated (concretize)")
        written = written_buffers(func)
        f = _Function(self, {b: self.names.take(b.name) for b in buffers})
        for v in self.sizes:
            self.sizes[v] = self.names.take(v.name)
        f.env = dict(self.sizes)
        f.ranges = symbol_ranges(func)
        for b in func.allocs:
            f.reserve(b)
        f.statement(func.body)
        given = [*[pointer(b, f.base[b], b in written) for b in buffers], *[f"int64_t {name}" for name in self.sizes.values()]]
        self.arena.place(STATIC_BYTES - self.module.static)
        if self.arena.used and not self.arena.heap:
            self.module.static += self.arena.nbytes
            self.module.atomic = True
        refuses = bool(self.sizes or self.bodies or self.arena.heap)
        result = ("" if self.exported else "static ") + ("int64_t" if refuses else "void")
        declaration = f"{result} {self.name}({', '.join(given) or 'void'})"
        lines = [*self._threads(), *self.arena.acquire(self.sizes, self.module.prelude)]
        end = [*self.arena.release(), *(["return 0;"] if refuses else [])]
        text = [*self.arena.globals(), f"{declaration} {{", *_indented(lines), *f.lines, *_indented(end), "}"]
        self.module.functions += [self.arena.filled(part) for part in (*self.bodies, "\n".join(text))]
        return Kernel(self.name, declaration, refuses, self.arena.detail if self.arena.heap else "")

    def _threads(self) -> list[str]:
        """Ask for the number of threads; the kernel refuses to run in a forked process."""
        if not self.bodies:
            return []
        self.module.parallel = True
        return [f"const int threads = {THREADS}({self.module.target.num_cores});", f"if (threads == 0) return {FORKED};"]


def _repeated_loads(n: Seq) -> set[Any]:
    """The vector loads that occur more than once in the stores of a sequence."""
    seen: set[Any] = set()
    repeated: set[Any] = set()
    for s in n.stmts:
        if isinstance(s, BufferStore):
            for e in walk_objects(s.value):
                if isinstance(e, BufferLoad) and e.lanes > 1:
                    key = load_key(e)
                    (repeated if key in seen else seen).add(key)
    return repeated


def pointer(b: Buffer, name: str, written: bool) -> str:
    """The declaration of a pointer to the elements of a buffer that no other pointer accesses."""
    return f"{'' if written else 'const '}{element_type(b.dtype)} *restrict {name}"


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


class _Function(StorePrinter):
    """One C function: a kernel or the body of a parallel loop."""

    def __init__(self, kernel: _Kernel, base: dict[Buffer, str], parallel: bool = False) -> None:
        super().__init__(kernel.func.name, kernel.module.prelude)
        self.kernel = kernel
        self.base = dict(base)
        self.parallel = parallel
        self.whole = set()
        self.outlines = not parallel and kernel.module.target.num_cores > 1
        """Whether parallel loops become functions of their own, which several threads execute."""
        self.stack = 0
        """Bytes of the register buffers so far."""
        self.reserves = False
        """Whether a buffer of the arena is allocated here."""

    def statement(self, n: Stmt) -> None:
        """Print one statement."""
        if isinstance(n, Seq):
            repeated = _repeated_loads(n)
            for k in grouped_stores(n.stmts):
                self.repeated = repeated
                if isinstance(k, (Tile, Interleaved)):
                    self.store_group(k)
                elif isinstance(k, Products):
                    for s in k.stores:
                        self.store(s)
                else:
                    self.statement(k)
        elif isinstance(n, BufferStore):
            self.store(n)
            if len(self.lines) > EMITTED:
                raise BuildError(
                    f"{self.function}: [code-size] a part that is compiled as one C function has more than {EMITTED} lines, which can take "
                    "a compiler minutes. Unroll and inline less, or split the function"
                )
        elif isinstance(n, For):
            self._for(n)
        elif isinstance(n, If):
            self._if(n)
        elif isinstance(n, While):
            self._while(n)
        elif isinstance(n, Allocate):
            self._allocate(n)
        elif isinstance(n, Evaluate):
            self._evaluate(n)
        elif isinstance(n, BindIndex):
            self.begin(n.value)
            with self.scope(""):
                self.statement(substitute_statement(n.body, {n.var: poly(self.indirect_var(n))}))
        else:
            raise BuildError(f"the C backend does not support {type(n).__name__}; run the lowering pipeline first")

    # ---- memory --------------------------------------------------------------------------------------------------------

    def _allocate(self, n: Allocate) -> None:
        b, count = n.buffer, n.buffer.shape[0]
        if b.scope == TILE_SCOPE:
            raise BuildError(
                f"{self.function}: the buffer {b.name} of scope {b.scope} needs tile registers (AMX), which C has not. Schedule for the "
                "kind llvm, or without the tensor intrinsic"
            )
        if b.scope == "register" and count.const is None:
            raise BuildError(f"{self.function}: the register buffer {b.name} has {count} elements; registers need a constant size")
        if b.scope == "register" and self.stack + count.as_int() * dt.nbytes(b.dtype) <= STACK_BYTES:
            self.stack += count.as_int() * dt.nbytes(b.dtype)
            self._declare(n, count.as_int())
        else:
            self.reserve(b)
            self.statement(n.body)

    def _declare(self, n: Allocate, count: int) -> None:
        """Declare the variables of a register buffer, or an array if vectors overlap in part."""
        b, base = n.buffer, self.kernel.names.take(n.buffer.name)
        found = variables_of(b, n.body)
        if found is None:
            self.base[b] = base
            self.line(f"_Alignas(64) {element_type(b.dtype)} {base}[{max(count, 1)}];")
        else:
            self.registers[b] = {}
            declared: dict[str, list[str]] = {}
            for at, lanes in found.lanes.items():
                name = self.kernel.names.take(f"{base}_{at}") if len(found.lanes) > 1 else base
                self.registers[b][at] = name, lanes
                t = self.prelude.type_of(stored(dt.vector(b.dtype, lanes)))
                declared.setdefault(t, []).append(f"{name} = {{0}}" if at in found.blended else name)
            for t, names in declared.items():
                for k in range(0, len(names), 8):
                    self.line(f"{t} {', '.join(names[k : k + 8])};")
            if found.whole:
                self.whole.add(b)
        self.statement(n.body)

    def reserve(self, b: Buffer) -> None:
        """Place a buffer in the arena."""
        size = b.shape[0] * dt.nbytes(b.dtype)
        foreign = [v.name for v in size.vars if v not in self.kernel.sizes]
        if foreign:
            raise BuildError(f"{self.function}: the size of the buffer {b.name} depends on {foreign[0]}, which is not a parameter")
        offset = self.kernel.arena.reserve(b.name, size if bounds(size, self.ranges)[0] >= 0 else maximum(size, 0), self.parallel)
        self.reserves = True
        self.base[b] = self.kernel.names.take(b.name)
        t = element_type(b.dtype)
        self.line(f"{t} *restrict {self.base[b]} = ({t} *)(workspace + {self.index(offset)});")

    def _evaluate(self, n: Evaluate) -> None:
        e: Any = n.value
        if type(e) is not Call or e.name not in PREFETCHES:
            raise BuildError(f"{self.function}: the C backend cannot evaluate {getattr(e, 'name', e)!r} for its effect")
        load: Any = e.args[0]
        self.check_scope(load.buffer)
        if load.buffer in self.base:
            self.begin()
            self.line(f"__builtin_prefetch({self.address(load.buffer, load.indices[0])}, 0, {3 if e.name == 'prefetch' else 2});")

    @contextmanager
    def scope(self, head: str) -> Iterator[None]:
        """A block of C, in which names are free again afterwards."""
        self.line(f"{head} {{".lstrip())
        self.indent += 1
        self.loads, self.repeated = {}, set()
        with self.kernel.names.scope():
            yield
        self.loads = {}
        self.indent -= 1
        self.line("}")

    # ---- control -------------------------------------------------------------------------------------------------------

    def _if(self, n: If) -> None:
        self.begin(n.cond)
        cond = self.value(n.cond)
        with self.scope(f"if ({cond})"):
            self.statement(n.then)
        if n.orelse is not None:
            self.lines.pop()
            with self.scope("} else"):
                self.statement(n.orelse)

    def _while(self, n: While) -> None:
        self.begin()
        with self.scope("for (;;)"):
            self.begin(n.cond)
            self.line(f"if (!({self.value(n.cond)})) break;")
            self.statement(n.body)

    def _for(self, n: For) -> None:
        self.begin()
        if self.outlines and n.kind == "parallel" and n.extent != ONE:
            self._parallel(n)
        else:
            self.loop(n, "0", self.index(n.extent))

    def loop(self, n: For, first: str, end: Code) -> None:
        """A counted loop from `first` to `end`."""
        high = bounds(n.extent, self.ranges)[1]
        if high <= 0:
            return
        self.ranges[n.var] = (0, max(high - 1, 0))
        with self.kernel.names.scope():
            name = self.env[n.var] = self.kernel.names.take(n.var.name)
            with self.scope(f"for (int64_t {name} = {first}; {name} < {end.at(BITS)}; ++{name})"):
                self.statement(n.body)

    # ---- threads -------------------------------------------------------------------------------------------------------

    def _parallel(self, n: For) -> None:
        """Print a parallel loop as a function; each thread runs one contiguous share of the iterations."""
        k = self.kernel
        name = k.names.loop(k.name, n.var.name)
        used = {x.buffer for x in walk_objects(n) if isinstance(x, BufferLoad | BufferStore)}
        written = {x.buffer for x in walk_objects(n) if isinstance(x, BufferStore)}
        variables = {v for x in walk_objects(n) if isinstance(x, Poly) for v in x.vars}
        captured = [b for b in self.base if b in used and b.scope != "register"]
        # Offsets in a dynamic arena depend on the sizes of earlier buffers.
        needed = variables | (k.sizes.keys() if k.arena.dynamic else set())
        outer = sorted([v for v in needed if v in self.env], key=lambda v: v.key)
        body = _Function(k, {b: self.base[b] for b in captured}, parallel=True)
        body.env, body.ranges = {v: self.env[v] for v in outer}, dict(self.ranges)
        body.loop(n, "first", Code("last"))
        given = [*[pointer(b, self.base[b], b in written) for b in captured], *[f"int64_t {self.env[v]}" for v in outer]]
        values = [*[self.base[b] for b in captured], *[self.env[v] for v in outer]]
        if body.reserves:
            given.append("char *workspace")
        head = ", ".join(["int64_t first", "int64_t last", *given])
        k.bodies.append("\n".join([f"static void {name}({head}) {{", *body.lines, "}"]))
        k.bodies.append(_share(name, given, values, body.reserves, k.arena.dynamic))
        least = maximum(n.extent, ZERO) if bounds(n.extent, self.ranges)[0] < 0 else n.extent
        extent = self.index(least)
        extra = ["workspace", *([SHARED_BYTES, PRIVATE_BYTES] if k.arena.dynamic else [])] if body.reserves else []
        mine = [f"workspace + {SHARED_BYTES if k.arena.dynamic else SHARED}"] if body.reserves else []
        self.line(f"if ({self._runs_serially(n)}) {{")
        self.line(f"  {call(name, '0', extent, *values, *mine)};")
        self.line("} else {")
        self.line(f"  struct {name} context = {{{', '.join([extent, *values, *extra])}}};")
        self.line(f"  run_parallel({name}_share, &context, threads);")
        self.line("}")
        self.loads = {}

    def _runs_serially(self, n: For) -> str:
        """The condition under which a parallel loop runs on the calling thread: see `codegen.llvm.kernel.function`."""
        least = grain_of(n, self.function)
        if least is None:
            return "threads < 2"
        terms = []
        for loops, times in elements_stored(n, self.ranges, self.env).items():
            terms.append(" * ".join([number(times, "float64"), *[f"(double){self.index(extent).at(UNARY)}" for extent in loops]]))
        return f"threads < 2 || {' + '.join(terms) or '0.0'} < {number(float(least), 'float64')}"


def _share(name: str, given: Sequence[str], values: Sequence[str], private: bool, dynamic: bool) -> str:
    """The arguments of a parallel loop as a struct, and the function that each thread calls with it."""
    members = ["int64_t extent", *given, *(["int64_t shared_bytes", "int64_t private_bytes"] if private and dynamic else [])]
    shared, each = ("c->shared_bytes", "c->private_bytes") if dynamic else (SHARED, PRIVATE)
    mine = [f"c->workspace + {shared} + {each} * t"] if private else []
    arguments = ", ".join(["c->extent * t / n", "c->extent * (t + 1) / n", *[f"c->{v}" for v in values], *mine])
    return "\n".join(
        [
            f"struct {name} {{",
            *[f"  {m};" for m in members],
            "};",
            "",
            f"static void {name}_share(void *context) {{",
            f"  const struct {name} *c = context;",
            "  const int64_t t = omp_get_thread_num(), n = omp_get_num_threads();",
            f"  {name}({arguments});",
            "}",
        ]
    )
