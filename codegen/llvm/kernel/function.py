"""Emit functions in LLVM IR: loops that carry pointers, outlined parallel loops, one scratch arena per kernel.

The input is scheduled, unrolled and vectorised, so that no LLVM optimisation except `sroa` is needed (docs/design/002-llvm.md):
hoisting and strength reduction of addresses are done here, on index polynomials.  Every loop carries one pointer for each distinct
varying part of an address; constant distances, such as the rows of a register tile, become displacements of the instruction.

Dynamic sizes are further arguments of the kernel, and of every parallel body.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tunesmith.codegen.cpu.active_lanes import inactive_lanes_are_unused
from tunesmith.codegen.cpu.arena import PRIVATE, SHARED, STACK_BYTES, STATIC_BYTES
from tunesmith.codegen.cpu.store_groups import Interleaved, Products, Tile, grouped_stores
from tunesmith.codegen.cpu.work import elements_stored, grain_of
from tunesmith.codegen.llvm.arena import PRIVATE_BYTES, SHARED_BYTES, WORKSPACE, LlvmArena
from tunesmith.codegen.llvm.kernel.loop_uses import LoopUses
from tunesmith.codegen.llvm.kernel.store import StoreEmitter
from tunesmith.codegen.llvm.kernel.tile_registers import configuration_text, has_parallel_loop, is_parallel, uses_tiles
from tunesmith.codegen.llvm.required_features import required_features
from tunesmith.codegen.llvm.text import literal, llvm_type
from tunesmith.ir.analysis.size_ranges import symbol_ranges
from tunesmith.ir.arith.interval import bounds
from tunesmith.ir.arith.linear import linear
from tunesmith.ir.buffer import TILE_SCOPE, Buffer
from tunesmith.ir.expr import Call
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.intrinsics import PREFETCHES
from tunesmith.ir.poly import ZERO, Param, Poly, Var, maximum, poly, substitute
from tunesmith.ir.stmt import Allocate, BindIndex, BufferStore, Evaluate, For, If, Seq, Stmt, While
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import substitute as substitute_statement
from tunesmith.ir.visit import walk
from tunesmith.lower.code_size import EMITTED
from tunesmith.runtime.thread_support import FORKED, THREADS
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError


@dataclass(slots=True)
class Module:
    """A module under construction: globals, functions, and the declarations they need.

    Attributes:
        target: the target.
        exported: whether other objects may call the kernels.
        static: bytes of static scratch memory of the kernels so far.
        features: those that the kernels need of the target besides vectors, as LLVM spells them: `amx-tile`.
    """

    target: Target
    exported: bool = True
    static: int = 0
    features: set[str] = field(default_factory=set)
    declares: set[str] = field(default_factory=set)
    globals: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The text of the module."""
        attributes = 'attributes #0 = { nounwind "no-trapping-math"="true" "prefer-vector-width"="512" }'
        tiles = [configuration_text()] if self.features else []
        required = required_features(self.target, self.features)
        return "\n".join([*tiles, *self.globals, *sorted(self.declares), *self.functions, attributes, *required, ""])


@dataclass(frozen=True, slots=True)
class Kernel:
    """An emitted kernel.

    Attributes:
        name: its global name.
        refuses: whether it returns an i64: 0 if it ran; otherwise it has done nothing, and the result is the size of the failed
            allocation in bytes, or `thread_support.FORKED`.  A kernel that can always run returns void.
        detail: further text about the allocation.
    """

    name: str
    refuses: bool = False
    detail: str = ""


def emit_kernel(func: PrimFunc, module: Module, version: str = "") -> Kernel:
    """Emit the kernel `<name><version>_kernel(ptr, ...)`: one data pointer for each parameter, then the sizes, i64.

    Args:
        func: a lowered function.
        module: receives the kernel.
        version: suffix of the kernel's name; kernels of versions are internal.

    Raises:
        BuildError: the function cannot be compiled for the target.
    """
    return _Kernel(func, module, version).emit()


class _Kernel:
    """One exported kernel, with the arena of its allocations."""

    def __init__(self, func: PrimFunc, module: Module, version: str) -> None:
        self.func, self.module = func, module
        self.name = f"{func.name}{version}_kernel"
        self.exported = module.exported and not version
        self.bodies = 0
        self.uses_tiles = uses_tiles(func.body)
        self.sizes = {p: f"%z{i}" for i, p in enumerate(p for p in func.params if isinstance(p, Var) and not isinstance(p, Param))}
        made = [*func.allocs, *[n.buffer for n in walk(func.body) if type(n) is Allocate]] if self.sizes else []
        dynamic = any(b.shape[0].const is None for b in made)
        self.arena = LlvmArena(self.name, module.target.num_cores, dynamic)

    def emit(self) -> Kernel:
        params = [p for p in self.func.params if isinstance(p, Buffer)]
        if len(params) + len(self.sizes) != len(self.func.params):
            raise BuildError(f"{self.func.name}: a parameter is a Param, which needs a value before code is generated (concretize)")
        f = _Function(self, {b: f"%a{i}" for i, b in enumerate(params)})
        f.env = dict(self.sizes)
        f.ranges = symbol_ranges(self.func)
        first = len(self.module.functions)
        for b in self.func.allocs:
            f.reserve(b)
        f.statement(self.func.body)
        inputs = ", ".join([f"ptr noalias %a{i}" for i in range(len(params))] + [f"i64 {name}" for name in self.sizes.values()])
        team = self._team() if self.bodies else []
        block = "started" if team else "start"
        start = self.arena.acquire(self.sizes, self.module.declares, self.module.globals, STATIC_BYTES - self.module.static, block)
        if self.arena.used and not self.arena.heap:
            self.module.static += self.arena.nbytes
        refuses = bool(self.sizes or self.bodies or self.arena.heap)
        result = ("" if self.exported else "internal ") + ("i64" if refuses else "void")
        end = [*self.arena.release(), "  ret i64 0" if refuses else "  ret void", "}"]
        # Allocas must be in the first block: sroa ignores others.
        text = [f"define {result} @{self.name}({inputs}) #0 {{", "start:", *f.allocas, *team, *start, *f.lines, *end]
        self.module.functions.append("\n".join(text))
        for i in range(first, len(self.module.functions)):
            self.module.functions[i] = self.arena.filled(self.module.functions[i])
        return Kernel(self.name, refuses, self.arena.detail if self.arena.heap else "")

    def _team(self) -> list[str]:
        """Compute the number of threads; the kernel refuses to run in a forked process."""
        self.module.declares.add(f"declare i32 @{THREADS}(i32)")
        return [
            f"  %team = call i32 @{THREADS}(i32 {self.module.target.num_cores})",
            "  %forked = icmp eq i32 %team, 0",
            "  br i1 %forked, label %stranded, label %started",
            "stranded:",
            f"  ret i64 {FORKED}",
            "started:",
        ]


class _Function(StoreEmitter):
    """One LLVM function: a kernel or the body of a parallel loop."""

    def __init__(self, kernel: _Kernel, base: dict[Buffer, str], parallel: bool = False) -> None:
        module = kernel.module
        super().__init__(kernel.func.name, module.declares, module.target.has_feature("avx512f"), module.features)
        self.kernel = kernel
        self.base = dict(base)
        self.parallel = parallel
        self.outlines = not parallel and module.target.num_cores > 1
        """Whether parallel loops become functions of their own, which several threads execute."""
        self.allocas: list[str] = []
        self.stack = 0
        self.workspace = WORKSPACE
        self._uses = LoopUses(parallel)
        self.block = "entry"

    def statement(self, n: Stmt) -> None:
        """Emit one statement."""
        t = type(n)
        if isinstance(n, Seq):
            for k in grouped_stores(n.stmts):
                if isinstance(k, (Tile, Interleaved, Products)):
                    self.store_group(k)
                else:
                    self.statement(k)
        elif isinstance(n, BufferStore):
            self.store(n)
            if len(self.lines) > EMITTED:
                raise BuildError(
                    f"{self.kernel.func.name}: [code-size] a part that is compiled as one LLVM function has more than {EMITTED} "
                    "instructions, which can take LLVM minutes. Unroll and inline less, or split the function"
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
            self._bind_index(n)
        else:
            raise BuildError(f"the LLVM backend does not support {t.__name__}; run the lowering pipeline first")

    # ---- memory --------------------------------------------------------------------------------------------------------

    def _allocate(self, n: Allocate) -> None:
        b = n.buffer
        count = b.shape[0]
        if b.scope == TILE_SCOPE:
            self._allocate_tiles(n)
        elif b.scope == "register" and count.const is None:
            raise BuildError(f"{self.kernel.func.name}: the register buffer {b.name} has {count} elements; registers need a constant size")
        elif b.scope == "register" and self.stack + count.as_int() * dt.nbytes(b.dtype) <= STACK_BYTES:
            self._alloca(n, count.as_int())
        else:
            self.reserve(b)
            self.statement(n.body)

    def _allocate_tiles(self, n: Allocate) -> None:
        if self.outlines:
            self.tiles.check_serial(n)
        alone = not self.tiles.configured
        if alone:
            self.tiles.configure()
        self.tiles.allocate(n.buffer)
        self.statement(n.body)
        self.tiles.free(n.buffer)
        if alone:
            self.tiles.release()

    def reserve(self, b: Buffer) -> None:
        """Place a buffer in the arena."""
        size = b.shape[0] * dt.nbytes(b.dtype)
        foreign = [v.name for v in size.vars if v not in self.kernel.sizes]
        if foreign:
            raise BuildError(f"{self.kernel.func.name}: the size of the buffer {b.name} depends on {foreign[0]}, which is not a parameter")
        offset = self.kernel.arena.reserve(b.name, size if bounds(size, self.ranges)[0] >= 0 else maximum(size, 0), self.parallel)
        self.base[b] = self.op(f"getelementptr inbounds i8, ptr {self.workspace}, i64 {self.index(offset)}")

    def _alloca(self, n: Allocate, count: int) -> None:
        """Allocate a register buffer, padded for masked-off lanes: `sroa` drops a store that exceeds its alloca."""
        b, slot, place = n.buffer, self.fresh("r"), len(self.allocas)
        self.allocas.append("")
        self.base[b] = slot
        self.slots[b] = count
        if inactive_lanes_are_unused(b, n.body):
            self.whole.add(b)
        self.stack += count * dt.nbytes(b.dtype)
        self.statement(n.body)
        self.stack += (self.slots[b] - count) * dt.nbytes(b.dtype)
        self.allocas[place] = f"  {slot} = alloca [{self.slots[b]} x {llvm_type(b.dtype)}], align 64"

    def _bind_index(self, n: BindIndex) -> None:
        """Emit the body with a fresh variable: addresses are memoised by index, and copies of a statement share its variable."""
        self.statement(substitute_statement(n.body, {n.var: poly(self.indirect_var(n))}))

    def _evaluate(self, n: Evaluate) -> None:
        e: Any = n.value
        if type(e) is Call and e.name in PREFETCHES:
            load: Any = e.args[0]
            if load.buffer.scope == TILE_SCOPE:
                raise self.tiles.not_a_tile(load.buffer)
            at = self.address(load.buffer, load.indices[0])
            level = "3" if e.name == "prefetch" else "2"
            self.call("void", "llvm.prefetch.p0", [("ptr", at), ("i32", "0"), ("i32", level), ("i32", "1")])
            return
        raise BuildError(f"the LLVM backend cannot evaluate {getattr(e, 'name', e)!r} for its effect")

    # ---- control -------------------------------------------------------------------------------------------------------

    def _if(self, n: If) -> None:
        c = self.value(n.cond)
        yes, end = self.label("then"), self.label("end")
        no = self.label("else") if n.orelse is not None else end
        self.do(f"br i1 {c}, label %{yes}, label %{no}")
        for name, part in ((yes, n.then), (no, n.orelse)):
            if part is not None:
                self.start(name)
                self.enter()
                self.statement(part)
                self.leave()
                self.do(f"br label %{end}")
        self.start(end)

    def _while(self, n: While) -> None:
        head, body, done = self.label("while"), self.label("body"), self.label("done")
        self.do(f"br label %{head}")
        self.start(head)
        self.enter()
        c = self.value(n.cond)
        self.do(f"br i1 {c}, label %{body}, label %{done}")
        self.start(body)
        self.statement(n.body)
        self.do(f"br label %{head}")
        self.leave()
        self.start(done)

    def _for(self, n: For) -> None:
        if self.outlines and is_parallel(n):
            self._parallel(n)
        else:
            self._loop(n, "0", self.index(n.extent), bounds(n.extent, self.ranges))

    def _loop(self, n: For, first: str, end: str, extent: tuple[int, int]) -> None:
        """A counted loop from `first` to `end`, with a test before the first iteration only if it may be empty."""
        if extent[1] <= 0:
            return
        begins = self.kernel.uses_tiles and not self.tiles.configured and uses_tiles(n.body)
        if begins and not (self.outlines and has_parallel_loop(n.body)):
            self.tiles.configure()
            self._loop(n, first, end, extent)
            self.tiles.release()
            return
        keys = self._carried(n)
        starts = [(b, p, self._start_pointer(b, p, n.var, first)) for b, p, c in keys if c.terms]
        steps = {(b, p): self.index(c * dt.nbytes(b.dtype)) for b, p, c in keys}
        for b, p, c in keys:
            if not c.terms and p.terms:
                self.pointer(b, p)  # loop invariant: computed once, before the loop
        head, done = self.label("loop"), self.label("done")
        before = self.block
        if extent[0] <= 0 or first != "0":
            some = self.op(f"icmp slt i64 {first}, {end}")
            self.do(f"br i1 {some}, label %{head}, label %{done}")
        else:
            self.do(f"br label %{head}")
        self.start(head)
        self.enter()
        slot = len(self.lines)
        i = self.fresh("i")
        self.env[n.var] = i
        self.ranges[n.var] = (0, max(extent[1] - 1, 0))
        carried: list[tuple[str, str, str]] = []
        for b, p, start in starts:
            r = self.fresh("p")
            self.remember((b, p), r)
            carried.append((r, start, steps[b, p]))
        self.statement(n.body)
        latch = self.block
        phis = [f"  {i} = phi i64 [ {first}, %{before} ], [ {i}.next, %{latch} ]"]
        for r, start, step in carried:
            self.do(f"{r}.next = getelementptr inbounds i8, ptr {r}, i64 {step}")
            phis.append(f"  {r} = phi ptr [ {start}, %{before} ], [ {r}.next, %{latch} ]")
        self.lines[slot:slot] = phis
        self.do(f"{i}.next = add nuw nsw i64 {i}, 1")
        again = self.op(f"icmp slt i64 {i}.next, {end}")
        self.do(f"br i1 {again}, label %{head}, label %{done}")
        self.leave()
        self.start(done)

    def _start_pointer(self, b: Buffer, p: Poly, var: Var, first: str) -> str:
        root = self.pointer(b, substitute(p, {var: ZERO}))
        if first == "0":
            return root
        split = linear(p, var, self.kernel.sizes)
        assert split is not None
        step = self.op(f"mul nsw i64 {first}, {self.index(split[0] * dt.nbytes(b.dtype))}")
        return self.op(f"getelementptr inbounds i8, ptr {root}, i64 {step}")

    def _carried(self, n: For) -> list[tuple[Buffer, Poly, Poly]]:
        """(buffer, varying part of an address at this loop, its step), with variables of inner loops at 0 and constants removed."""
        out: list[tuple[Buffer, Poly, Poly]] = []
        for b, p in self._uses.of(n).addresses:
            if b in self.base and all(v is n.var or v in self.env for v in p.vars):
                split = linear(p, n.var, self.kernel.sizes)
                if split is not None:
                    out.append((b, p, split[0]))
        return out

    # ---- threads -------------------------------------------------------------------------------------------------------

    def _parallel(self, n: For) -> None:
        """Outline a parallel loop; each thread runs one contiguous share of the iterations."""
        k = self.kernel
        name = f"{k.name}.parallel{k.bodies}"
        k.bodies += 1
        body = _Function(k, {}, parallel=True)
        use = body._uses.of(n)
        captured = [b for b in self.base if b in use.buffers and b.scope != "register"]
        # Offsets in a dynamic arena depend on the sizes of earlier buffers.
        needed = use.variables | k.sizes.keys() if k.arena.dynamic else use.variables
        outer = sorted([v for v in needed if v in self.env], key=lambda v: v.key)
        pointers = len(captured) + 1
        slots = [*[self.base[b] for b in captured], self.workspace, *([SHARED_BYTES, PRIVATE_BYTES] if k.arena.dynamic else [])]
        slots.append(self._runs_serially(n))
        kinds = [*["ptr"] * pointers, *["i64"] * (len(slots) - pointers)]
        shared, private = (f"%c{pointers}", f"%c{pointers + 1}") if k.arena.dynamic else (SHARED, PRIVATE)
        body.base = {b: f"%c{i}" for i, b in enumerate(captured)}
        body.ranges = dict(self.ranges)
        head = [f"define internal void @{name}(ptr %context) #0 {{", "start:"]
        for i, kind in enumerate(kinds):
            head += [f"  %s{i} = getelementptr inbounds i8, ptr %context, i64 {8 * i}", f"  %c{i} = load {kind}, ptr %s{i}, align 8"]
        for j, v in enumerate(outer):
            at = len(slots) + j
            head += [f"  %s{at} = getelementptr inbounds i8, ptr %context, i64 {8 * at}", f"  %o{j} = load i64, ptr %s{at}, align 8"]
            body.env[v] = f"%o{j}"
        end = body.index(n.extent)
        body.lines += [
            f"  %alone = icmp ne i64 %c{len(slots) - 1}, 0",
            "  %t32 = call i32 @omp_get_thread_num()",
            "  %n32 = call i32 @omp_get_num_threads()",
            "  %t1 = select i1 %alone, i32 0, i32 %t32",
            "  %n1 = select i1 %alone, i32 1, i32 %n32",
            "  %t = zext i32 %t1 to i64",
            "  %n = zext i32 %n1 to i64",
            *(
                [f"  %none = icmp slt i64 {end}, 0", f"  %e = select i1 %none, i64 0, i64 {end}"]
                if bounds(n.extent, self.ranges)[0] < 0
                else [f"  %e = add i64 {end}, 0"]
            ),
            "  %m0 = mul i64 %e, %t",
            "  %first = udiv i64 %m0, %n",
            "  %next = add i64 %t, 1",
            "  %m1 = mul i64 %e, %next",
            "  %last = udiv i64 %m1, %n",
        ]
        slot = len(body.lines)
        body.workspace = "%mine"
        body._loop(n, "%first", "%last", bounds(n.extent, self.ranges))
        # The arena is one shared part, then one private part per thread; the sizes are filled in when the kernel is complete.
        body.lines[slot:slot] = [
            f"  %stride = mul i64 %t, {private}",
            f"  %arena = getelementptr inbounds i8, ptr %c{pointers - 1}, i64 {shared}",
            "  %mine = getelementptr inbounds i8, ptr %arena, i64 %stride",
        ]
        k.module.declares |= {
            "declare void @GOMP_parallel(ptr, ptr, i32, i32)",
            "declare i32 @omp_get_thread_num()",
            "declare i32 @omp_get_num_threads()",
        }
        k.module.functions.append("\n".join([*head, *body.allocas, "  br label %entry", "entry:", *body.lines, "  ret void", "}"]))
        context = self.fresh("context")
        self.allocas.append(f"  {context} = alloca [{len(slots) + len(outer)} x i64], align 64")
        for i, value in enumerate([*slots, *[self.env[x] for x in outer]]):
            place = self.op(f"getelementptr inbounds i8, ptr {context}, i64 {8 * i}")
            self.do(f"store {kinds[i] if i < len(slots) else 'i64'} {value}, ptr {place}, align 8")
        single, several, joined = self.label("single"), self.label("several"), self.label("joined")
        self.do(f"br i1 {self.op(f'icmp ne i64 {slots[-1]}, 0')}, label %{single}, label %{several}")
        for label, call in (
            (single, f"@{name}(ptr {context})"),
            (several, f"@GOMP_parallel(ptr @{name}, ptr {context}, i32 %team, i32 0)"),
        ):
            self.start(label)
            self.do(f"call void {call}")
            self.do(f"br label %{joined}")
        self.start(joined)
        for b in captured:
            self.forget(b)

    def _runs_serially(self, n: For) -> str:
        """Whether a parallel loop runs on the calling thread, as an i64.

        It does if the kernel has one thread, or the loop has a `grain` and less work.  Intermediate team sizes are not used: the OpenMP
        runtime ends the threads that a smaller team does not need, and starts them again for the next larger one.
        """
        alone = self.op("icmp slt i32 %team, 2")
        least = grain_of(n, self.kernel.func.name)
        if least is not None:
            work = "0.0"
            for loops, times in elements_stored(n, self.ranges, self.env).items():
                product = literal(times, "float64")
                for extent in loops:
                    product = self.op(f"fmul double {product}, {self.op(f'sitofp i64 {self.index(extent)} to double')}")
                work = self.op(f"fadd double {work}, {product}")
            small = self.op(f"fcmp olt double {work}, {literal(float(least), 'float64')}")
            alone = self.op(f"or i1 {alone}, {small}")
        return self.op(f"zext i1 {alone} to i64")
