"""Print lowered programs as kernels in CUDA C or OpenCL C, one function for each kernel.

The text is readable: names are those of the program, unrolled loops stay loops with a pragma, extents are numbers.  Thread-local arrays
are indexed only in unrolled loops, so that the compiler keeps them in registers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any

from tunesmith.codegen.c.dialect import Dialect
from tunesmith.codegen.c.expr import CExpr
from tunesmith.codegen.c.names import identifier, unused
from tunesmith.codegen.c.registers import register_estimate
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Call, IsNegative
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.gpu import BLOCK_AXES, SHARED_SCOPES, THREAD_AXES
from tunesmith.ir.intrinsics import PREFETCHES
from tunesmith.ir.stmt import Allocate, BindIndex, BufferStore, Evaluate, For, If, Seq, Stmt, While
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk_objects
from tunesmith.lower.kernels import kernels
from tunesmith.runtime.device.program import Dim3, Launch
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError

_KEYWORDS = frozenset(
    """auto break case const continue default do else enum extern for goto if inline kernel local main private register restrict return
    signed sizeof static struct switch typedef union unsigned void volatile while global constant class new this template operator true
    false event arena alignas alignof and asm bitand bitor catch compl concept const_cast consteval constexpr constinit decltype delete
    dynamic_cast explicit export friend mutable namespace noexcept not nullptr or protected public reinterpret_cast requires
    static_assert static_cast thread_local throw try typeid typename using virtual wchar_t xor barrier pipe read_only write_only
    read_write vec_step threadIdx blockIdx blockDim gridDim warpSize
    NULL NAN INFINITY TS_INLINE _Pragma""".split()
)
_RESERVED = re.compile(r"(u?(char|short|int|long)|float|double|half|bool)\d*|(ts|make|as|get|image\w*)_\w*|__\w*|v\d+")
"""Names reserved for types, functions of the languages and of the printer, and the printer's temporaries."""
_MAX_INDEX = 2**31 - 1
_MAX_THREADS_Z = 64
"""Limit of every compute capability."""
_ALIGNMENT = 16
"""Alignment of arrays in shared memory: the widest vector."""


@dataclass(frozen=True, slots=True)
class PrintedKernel:
    """One kernel.

    Attributes:
        text: the function.
        helpers: definitions of the helper functions it calls.
        launch: its launch; arguments are positions among the function's buffers.
        registers: estimated registers per thread.
        shared_bytes: shared memory per block, static and dynamic.
    """

    text: str
    helpers: frozenset[str]
    launch: Launch
    registers: int
    shared_bytes: int

    @property
    def blocks_macro(self) -> str:
        """The macro for the minimum number of blocks per multiprocessor, in CUDA C."""
        return f"BLOCKS_OF_{self.launch.kernel}"


def print_kernels(func: PrimFunc, target: Target, dialect: Dialect) -> tuple[list[PrintedKernel], list[Buffer]]:
    """The kernels of a lowered function, in order, and the workspaces they share besides its parameters.

    Raises:
        BuildError: a kernel exceeds a limit of the target, or is not in lowered form.
    """
    buffers = [p for p in func.params if isinstance(p, Buffer)]
    if len(buffers) != len(func.params):
        raise BuildError(f"{func.name}: a parameter is a dynamic size; GPU kernels need constant shapes. Bind the sizes")
    body = func.body
    workspaces: list[Buffer] = []
    while type(body) is Allocate and body.buffer.scope == "global":
        workspaces.append(body.buffer)
        body = body.body
    roots = kernels(body)
    base = f"{identifier(func.name)}_kernel"
    names = [base if len(roots) == 1 else f"{base}_{i}" for i in range(len(roots))]
    return [_Kernel(n, r, [*buffers, *workspaces], target, dialect).printed() for n, r in zip(names, roots, strict=True)], workspaces


class _Kernel(CExpr):
    """Printer of one kernel."""

    def __init__(self, name: str, root: Stmt, memory: list[Buffer], target: Target, dialect: Dialect) -> None:
        super().__init__(name, dialect)
        self.name, self.root, self.target = name, root, target
        self.written = {n.buffer for n in walk_objects(root) if type(n) is BufferStore}
        used = {n.buffer for n in walk_objects(root) if type(n) in (BufferLoad, BufferStore)}
        self.arguments = [(i, b) for i, b in enumerate(memory) if b in used]
        self.taken: set[str] = {*_KEYWORDS, *dialect.functions.values()}
        self.wide = any((b.shape[0].const or 0) > _MAX_INDEX for b in used)

    def is_constant(self, b: Buffer) -> bool:
        """See `CExpr`."""
        return b not in self.written

    def name_of(self, x: Any) -> str:
        """A name for a binder, unique in the kernel."""
        base = identifier(x.name)
        base = f"x_{base}" if _RESERVED.fullmatch(base) else base
        name = unused(base, self.taken)
        self.names[x] = name
        return name

    def printed(self) -> PrintedKernel:
        """The kernel and its launch."""
        parameters = [self._parameter(b) for _, b in self.arguments]
        extents: dict[str, int] = {}
        shared: list[Buffer] = []
        n: Any = self.root
        head: list[str] = []
        while True:
            if type(n) is For and n.thread in (*BLOCK_AXES, *THREAD_AXES):
                if n.extent.const is None:
                    raise BuildError(f"{self.name}: the loop {n.var} of {n.thread} has the extent {n.extent}; launches need constants")
                extents[n.thread] = n.extent.const
                self.bind(n.var, 0, n.extent.const - 1)
                axis = "xyz".index(n.thread[-1])
                source = self.dialect.block[axis] if n.thread in BLOCK_AXES else self.dialect.thread[axis]
                head.append(f"  const {self.counter(n.extent.const)} {self.name_of(n.var)} = {source};")
            elif type(n) is Allocate and n.buffer.scope in SHARED_SCOPES:
                shared.append(n.buffer)
            else:
                break
            n = n.body
        grid = tuple([extents.get(x, 1) for x in BLOCK_AXES])
        block = tuple([extents.get(x, 1) for x in THREAD_AXES])
        self._check(grid, block)  # type: ignore[arg-type]
        declared, total, dynamic = self._shared(shared)
        self.statement(n)
        lines = [self._signature(parameters, block), *declared, *head, *self.lines, "}"]  # type: ignore[arg-type]
        launch = Launch(self.name, tuple([i for i, _ in self.arguments]), grid, block, dynamic)  # type: ignore[arg-type]
        return PrintedKernel("\n".join(lines) + "\n", frozenset(self.helpers), launch, register_estimate(n), total)

    def _parameter(self, b: Buffer) -> str:
        constant = "" if b in self.written else "const "
        return f"{self.dialect.spaces.get('global', '')}{constant}{self.dialect.types[b.dtype]}* {self.dialect.restrict} {self.name_of(b)}"

    def _signature(self, parameters: list[str], block: Dim3) -> str:
        text = ", ".join(parameters)
        if self.dialect.name == "cuda":
            bounds = f"__launch_bounds__({prod(block)}, BLOCKS_OF_{self.name})"
            return f'extern "C" __global__ void {bounds} {self.name}({text}) {{'
        return f"__kernel __attribute__((reqd_work_group_size({block[0]}, {block[1]}, {block[2]}))) void {self.name}({text}) {{"

    def _check(self, grid: Dim3, block: Dim3) -> None:
        most = self.target.max_threads_per_block
        if prod(block) > most:
            raise BuildError(f"{self.name}: {prod(block)} threads in a block, and {self.target.kind} has at most {most}")
        if self.target.base == "cuda" and block[2] > _MAX_THREADS_Z:
            raise BuildError(f"{self.name}: {block[2]} threads along z, and {self.target.kind} has at most {_MAX_THREADS_Z}")
        if max(grid[1:]) > 65535 or grid[0] > _MAX_INDEX:
            raise BuildError(f"{self.name}: a grid of {grid} blocks; there are at most {_MAX_INDEX}, 65535 and 65535")

    def _shared(self, buffers: list[Buffer]) -> tuple[list[str], int, int]:
        """Declarations of shared memory, its total bytes, and the bytes passed at the launch."""
        sizes = [-(-b.nbytes.as_int() // _ALIGNMENT) * _ALIGNMENT for b in buffers]
        total = sum(sizes)
        if total > self.target.shared_memory_per_block:
            raise BuildError(
                f"{self.name}: {total} bytes of shared memory ({', '.join(f'{b.name}: {b.nbytes}' for b in buffers)}); a block of "
                f"{self.target} has at most {self.target.shared_memory_per_block}"
            )
        types = [self.dialect.types[b.dtype] for b in buffers]
        if self.dialect.name != "cuda" or total <= self.target.static_shared_memory_per_block:
            text = [f"  {self.dialect.shared}{t} {self.name_of(b)}[{b.shape[0]}];" for b, t in zip(buffers, types, strict=True)]
            if self.dialect.name != "cuda":
                text = [x.replace("];", f"] __attribute__((aligned({_ALIGNMENT})));") for x in text]
            return text, total, 0
        lines = ["  extern __shared__ __align__(16) unsigned char arena[];"]
        at = 0
        for b, t, size in zip(buffers, types, sizes, strict=True):
            lines.append(f"  {t}* const {self.name_of(b)} = ({t}*)(arena + {at});")
            at += size
        return lines, total, total

    # ---- statements ----------------------------------------------------------------------------------------------------

    def statement(self, n: Stmt) -> None:
        """Print one statement."""
        t = type(n)
        if isinstance(n, Seq):
            for k in n.stmts:
                self.statement(k)
        elif isinstance(n, BufferStore):
            self._store(n)
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
            raise BuildError(f"{self.name}: cannot print a {t.__name__} in device code; run the lowering pipeline first")

    def _inside(self, head: str, n: Stmt) -> None:
        self.line(head)
        self.indent += 1
        self.statement(n)
        self.indent -= 1

    def _for(self, n: For) -> None:
        if n.kind not in ("serial", "unrolled"):
            raise BuildError(f"{self.name}: the loop {n.var} is {n.thread or n.kind}; loops of one thread are serial or unrolled")
        high = self.bounds(n.extent)[1]
        extent, name = self.index(n.extent), self.name_of(n.var)
        self.bind(n.var, 0, max(high - 1, 0))
        if n.kind == "unrolled":
            self.line(self.dialect.unroll)
        self._inside(f"for ({self.counter(high)} {name} = 0; {name} < {extent}; ++{name}) {{", n.body)
        self.line("}")
        self.taken.discard(name)

    def _if(self, n: If) -> None:
        cond = self.condition(n.cond.index) if type(n.cond) is IsNegative else self.scalar(n.cond)
        self._inside(f"if ({cond}) {{", n.then)
        if n.orelse is not None:
            self._inside("} else {", n.orelse)
        self.line("}")

    def _while(self, n: While) -> None:
        self.line("for (;;) {")
        self.indent += 1
        cond = self.condition(n.cond.index) if type(n.cond) is IsNegative else self.scalar(n.cond)
        self.line(f"if (!({cond})) break;")
        self.statement(n.body)
        self.indent -= 1
        self.line("}")

    def _allocate(self, n: Allocate) -> None:
        b = n.buffer
        if b.scope in (*SHARED_SCOPES, "global") or b.shape[0].const is None:
            raise BuildError(f"{self.name}: the buffer {b.name} of scope {b.scope} and {b.shape[0]} elements is not thread-local")
        self.line(f"{self.dialect.types[b.dtype]} {self.name_of(b)}[{max(b.shape[0].const, 1)}];")
        self.statement(n.body)

    def _bind_index(self, n: BindIndex) -> None:
        last, name = max(self.bounds(n.extent)[1] - 1, 0), self.name_of(n.var)
        value = self.scalar(n.value)
        self.bind(n.var, 0, last)
        self.line("{")
        self.indent += 1
        self.line(f"const {self.counter(last)} {name} = ({self.counter(last)}){value};")
        self.statement(n.body)
        self.indent -= 1
        self.line("}")
        self.taken.discard(name)

    def _evaluate(self, n: Evaluate) -> None:
        if type(n.value) is Call and n.value.name == "barrier":
            self.line(self.dialect.barrier)
        elif not (type(n.value) is Call and n.value.name in PREFETCHES):
            raise BuildError(f"{self.name}: device code cannot evaluate {getattr(n.value, 'name', n.value)!r} for its effect")

    def _store(self, n: BufferStore) -> None:
        b, index, count = n.buffer, n.indices[0], dt.lanes(n.value.dtype)
        if count == 1:
            self.line(f"{self.address(b, index)} = {self.stored(b.dtype, self.scalar(n.value))};")
            return
        values = self.lanes(n.value)
        place = self.whole(b, index, count, n.stride, n.mask)
        if place is not None:
            self.line(f"{place} = {self._packed(b.dtype, values)};")
            return
        for i, value in enumerate(values):
            text = f"{self.address(b, index, (1 if n.stride is None else n.stride) * i)} = {self.stored(b.dtype, value)};"
            self.line(text if n.mask is None else f"if ({i} < {self.index(n.mask)}) {text}")

    def _packed(self, dtype: str, values: list[str]) -> str:
        """A vector of these values, converted to its storage type."""
        if dt.bits(dtype) >= 32:
            name = values[0].removesuffix(".x")
            same = values == [f"{name}.{'xyzw'[i]}" for i in range(len(values))]
            return name if same else self.dialect.vector(dtype, values)
        each, bits = 32 // dt.bits(dtype), dt.bits(dtype)
        word, part = self.dialect.types["uint32"], self.dialect.types[f"uint{bits}"]
        words = []
        for i in range(0, len(values), each):
            parts = [f"({word})({part}){self.stored(dtype, v)}" for v in values[i : i + each]]
            words.append(" | ".join([p if k == 0 else f"({p} << {k * bits})" for k, p in enumerate(parts)]))
        return self.dialect.vector("uint32", words) if len(words) > 1 else words[0]
