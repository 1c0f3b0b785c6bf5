"""Graphs of arithmetic over the columns of a row, compiled to vector code: features and costs of millions of candidates a second.

Sixteen rows at a time, one kernel does what would be four passes over memory.  The graph is evaluated in two halves of eight
doubles (integers below 2**53, and their divisions, stay exact); results that go into the table are narrowed to a scratch of
sixteen floats for each distinct column; one loop over that scratch takes the logarithms, which so need no call and no spill; a
16 x 16 transposition writes whole rows of the table.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

from tunesmith.codegen.llvm_compile import compile_object
from tunesmith.codegen.llvm_host import LlvmOptions, host_cpu_name, host_features
from tunesmith.codegen.llvm_text import literal, vector_literal
from tunesmith.runtime.object_loader import load_object
from tunesmith.support.errors import InternalError, UserError

Node = tuple[str, tuple[float, ...]]
"""("const", (value,)), ("param", (column,)), or an operation on the numbers of earlier nodes: those of `costmodel.dag`."""
TableColumn = tuple[int, bool]
"""(node, whether log2(value + 1) is stored instead of the value)."""

HALF = 8
GROUP = 16
_D, _L, _M, _F = f"<{HALF} x double>", f"<{HALF} x i64>", f"<{HALF} x i1>", f"<{GROUP} x float>"
_ARITHMETIC = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_LOGIC = {"mul": "and", "min": "and", "max": "or"}
"""What arithmetic on truths (1.0 and 0.0) is on masks."""


def _doubles(value: float) -> str:
    return vector_literal([literal(float(value), "float64")] * HALF, "double")


def _floats(value: float) -> str:
    return vector_literal([literal(value, "float32")] * GROUP, "float")


class _Body:
    """The straight-line part: every node that the results need, once.

    Attributes:
        values: nodes as vectors of doubles; of a truth only when arithmetic asks for it.
        masks: nodes that are truths.
        positive: where nodes that are no truths are > 0.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.lines: list[str] = []
        self.values: dict[int, str] = {}
        self.masks: dict[int, str] = {}
        self.positive: dict[int, str] = {}
        self.uses_log = False

    def op(self, text: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {text}")
        return name

    def node(self, i: int) -> None:
        """Emit a node whose operands have been emitted."""
        op, args = self.nodes[i]
        if op == "const":
            self.values[i] = _doubles(args[0])
            if args[0] in (0.0, 1.0):
                self.masks[i] = "zeroinitializer" if args[0] == 0.0 else vector_literal(["true"] * HALF, "i1")
        elif op == "param":
            at = self.op(f"getelementptr i64, <{HALF} x ptr> %rows, i64 {int(args[0])}")
            every = vector_literal(["true"] * HALF, "i1")
            ints = self.op(
                f"call {_L} @llvm.masked.gather.v{HALF}i64.v{HALF}p0(<{HALF} x ptr> {at}, i32 8, {_M} {every}, {_L} zeroinitializer)"
            )
            self.values[i] = self.op(f"sitofp {_L} {ints} to {_D}")
        elif op in ("gt", "eq"):
            a, b = self.value(int(args[0])), self.value(int(args[1]))
            self.masks[i] = self.op(f"fcmp {'ogt' if op == 'gt' else 'oeq'} {_D} {a}, {b}")
        elif op in _LOGIC and all(int(x) in self.masks for x in args):
            self.masks[i] = self.op(f"{_LOGIC[op]} {_M} {self.masks[int(args[0])]}, {self.masks[int(args[1])]}")
        elif op == "sub" and self.nodes[int(args[0])] == ("const", (1.0,)) and int(args[1]) in self.masks:
            self.masks[i] = self.op(f"xor {_M} {self.masks[int(args[0])]}, {self.masks[int(args[1])]}")
        else:
            self.values[i] = self._arithmetic(op, [int(x) for x in args])

    def value(self, i: int) -> str:
        """A node as a vector of doubles."""
        if i not in self.values:
            self.values[i] = self.op(f"select {_M} {self.masks[i]}, {_D} {_doubles(1.0)}, {_D} zeroinitializer")
        return self.values[i]

    def mask(self, i: int) -> str:
        """Where a node is > 0."""
        if i in self.masks:
            return self.masks[i]
        if i not in self.positive:
            self.positive[i] = self.op(f"fcmp ogt {_D} {self.value(i)}, zeroinitializer")
        return self.positive[i]

    def _arithmetic(self, op: str, args: list[int]) -> str:
        if op == "mul" and (args[0] in self.masks or args[1] in self.masks):
            where, what = args if args[0] in self.masks else args[::-1]
            return self.op(f"select {_M} {self.masks[where]}, {_D} {self.value(what)}, {_D} zeroinitializer")
        if op == "where":
            return self.op(f"select {_M} {self.mask(args[0])}, {_D} {self.value(args[1])}, {_D} {self.value(args[2])}")
        x = [self.value(a) for a in args]
        if op in _ARITHMETIC:
            return self.op(f"{_ARITHMETIC[op]} {_D} {x[0]}, {x[1]}")
        if op == "min" or op == "max":
            less = self.op(f"fcmp {'olt' if op == 'min' else 'ogt'} {_D} {x[0]}, {x[1]}")
            return self.op(f"select {_M} {less}, {_D} {x[0]}, {_D} {x[1]}")
        if op == "slog2":
            self.uses_log = True
            above = self.op(f"fadd {_D} {x[0]}, {_doubles(1.0)}")
            return self.op(f"call {_D} @log2({_D} {above})")
        if op not in ("floordiv", "ceildiv", "mod"):
            raise InternalError(f"the graph holds an unknown operation {op!r}")
        quotient = self.op(f"fdiv {_D} {x[0]}, {x[1]}")
        whole = self.op(f"call {_D} @llvm.{'ceil' if op == 'ceildiv' else 'floor'}.v{HALF}f64({_D} {quotient})")
        if op != "mod":
            return whole
        back = self.op(f"fmul {_D} {whole}, {x[1]}")
        return self.op(f"fsub {_D} {x[0]}, {back}")


def _live(nodes: Sequence[Node], roots: Sequence[int]) -> list[int]:
    seen: set[int] = set()
    stack = list(roots)
    while stack:
        i = stack.pop()
        if i not in seen:
            seen.add(i)
            if nodes[i][0] not in ("const", "param"):
                stack.extend(int(x) for x in nodes[i][1])
    return sorted(seen)


class _Scratch:
    """Where each column of the table stands before it is transposed: logarithms first, then the other values, then numbers."""

    def __init__(self, nodes: Sequence[Node], table: Sequence[TableColumn]) -> None:
        distinct = list(dict.fromkeys(table))
        known = [c for c in distinct if nodes[c[0]][0] == "const"]
        logs = [c for c in distinct if c[1] and c not in known]
        self.computed = [*logs, *[c for c in distinct if not c[1] and c not in known]]
        self.logs = len(logs)
        self.numbers = [math.log2(nodes[i][1][0] + 1) if log else nodes[i][1][0] for i, log in known]
        slot = {c: k for k, c in enumerate([*self.computed, *known])}
        self.slots = len(slot)
        groups = -(-len(table) // GROUP)
        self.order = [slot[c] for c in table] + [0] * (groups * GROUP - len(table))


def emit_dag(nodes: Sequence[Node], width: int, table: Sequence[TableColumn], columns: Sequence[int]) -> str:
    """LLVM IR of `void dag(i64* rows, i64 n, float* table, double* columns, i64 pitch)`; n is a multiple of 16.

    Args:
        nodes: the graph, operands before users.
        width: columns of a row.
        table: what goes into the float table [n, len(table)], by rows.
        columns: nodes that go into the double array [len(columns), pitch], by columns.
    """
    scratch = _Scratch(nodes, table)
    body = _Body(nodes)
    for i in _live(nodes, [*[i for i, _ in scratch.computed], *columns]):
        body.node(i)
    for slot, (i, _) in enumerate(scratch.computed):
        single = body.op(f"fptrunc {_D} {body.value(i)} to <{HALF} x float>")
        at = body.op(f"getelementptr [{GROUP} x float], ptr %scratch, i64 {slot}, i64 %half")
        body.lines.append(f"  store <{HALF} x float> {single}, ptr {at}, align 32")
    for k, i in enumerate(columns):
        line = body.op(f"mul i64 %pitch, {k}")
        place = body.op(f"add i64 {line}, %row")
        at = body.op(f"getelementptr double, ptr %columns, i64 {place}")
        body.lines.append(f"  store {_D} {body.value(i)}, ptr {at}, align 8")
    parts = [_DECLARATIONS, _log2_doubles() if body.uses_log else "", _log2_floats() if scratch.logs else ""]
    if table:
        parts.append(f"@order = internal constant [{len(scratch.order)} x i32] [{', '.join(f'i32 {s}' for s in scratch.order)}]")
    parts.append(_function(scratch, body.lines, width, len(table)))
    return "\n".join(parts)


_DECLARATIONS = f"""declare {_D} @llvm.ceil.v{HALF}f64({_D})
declare {_D} @llvm.floor.v{HALF}f64({_D})
declare {_D} @llvm.fma.v{HALF}f64({_D}, {_D}, {_D})
declare {_F} @llvm.fma.v{GROUP}f32({_F}, {_F}, {_F})
declare {_L} @llvm.masked.gather.v{HALF}i64.v{HALF}p0(<{HALF} x ptr>, i32, {_M}, {_L})
declare void @llvm.masked.store.v{GROUP}f32.p0({_F}, ptr, i32, <{GROUP} x i1>)"""


def _function(scratch: _Scratch, body: list[str], width: int, columns: int) -> str:
    lanes = vector_literal([str(i * width) for i in range(HALF)], "i64")
    slots = max(scratch.slots, 1)
    first = len(scratch.computed)
    numbers = "\n".join(
        f"  %c{k} = getelementptr [{GROUP} x float], ptr %scratch, i64 {first + k}\n  store {_F} {_floats(v)}, ptr %c{k}, align 64"
        for k, v in enumerate(scratch.numbers)
    )
    return f"""define void @dag(ptr noalias %input, i64 %n, ptr noalias %table, ptr noalias %columns, i64 %pitch) {{
entry:
  %scratch = alloca [{slots} x [{GROUP} x float]], align 64
{numbers}
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %rows16, label %done
rows16:
  %base = phi i64 [0, %entry], [%next, %written]
  br label %compute
compute:
  %half = phi i64 [0, %rows16], [%half2, %compute]
  %row = add i64 %base, %half
  %start = mul i64 %row, {width}
  %from = getelementptr i64, ptr %input, i64 %start
  %rows = getelementptr i64, ptr %from, {_L} {lanes}
{chr(10).join(body)}
  %half2 = add i64 %half, {HALF}
  %again = icmp slt i64 %half2, {GROUP}
  br i1 %again, label %compute, label %{"logs" if scratch.logs else "transpose" if columns else "written"}
{_log_loop(scratch.logs)}{_transposition(scratch, columns) if columns else ""}written:
  %next = add i64 %base, {GROUP}
  %more = icmp slt i64 %next, %n
  br i1 %more, label %rows16, label %done
done:
  ret void
}}"""


def _log_loop(logs: int) -> str:
    if not logs:
        return ""
    return f"""logs:
  %s = phi i64 [0, %compute], [%s2, %logs]
  %sp = getelementptr [{GROUP} x float], ptr %scratch, i64 %s
  %plain = load {_F}, ptr %sp, align 64
  %above = fadd {_F} %plain, {_floats(1.0)}
  %log = call {_F} @log2s({_F} %above)
  store {_F} %log, ptr %sp, align 64
  %s2 = add i64 %s, 1
  %smore = icmp slt i64 %s2, {logs}
  br i1 %smore, label %logs, label %transpose
"""


def _transposition(scratch: _Scratch, columns: int) -> str:
    """A loop over groups of 16 columns; the last group is written under a mask, because the next row stands behind it."""
    lines: list[str] = []
    v = []
    for k in range(GROUP):
        lines += [
            f"  %o{k} = getelementptr i32, ptr @order, i64 %g",
            f"  %p{k} = getelementptr i32, ptr %o{k}, i64 {k}",
            f"  %q{k} = load i32, ptr %p{k}, align 4",
            f"  %t{k} = getelementptr [{GROUP} x float], ptr %scratch, i32 %q{k}",
            f"  %x{k} = load {_F}, ptr %t{k}, align 64",
        ]
        v.append(f"%x{k}")
    for d in (8, 4, 2, 1):
        low = vector_literal([str(c if not c & d else GROUP + c - d) for c in range(GROUP)], "i32")
        high = vector_literal([str(c + d if not c & d else GROUP + c) for c in range(GROUP)], "i32")
        for r in range(GROUP):
            if not r & d:
                a, b = v[r], v[r + d]
                v[r], v[r + d] = f"%y{d}.{r}", f"%y{d}.{r + d}"
                lines.append(f"  {v[r]} = shufflevector {_F} {a}, {_F} {b}, <{GROUP} x i32> {low}")
                lines.append(f"  {v[r + d]} = shufflevector {_F} {a}, {_F} {b}, <{GROUP} x i32> {high}")
    whole, rest = [], []
    tail = columns % GROUP or GROUP
    mask = vector_literal(["true" if c < tail else "false" for c in range(GROUP)], "i1")
    for r in range(GROUP):
        lines += [
            f"  %r{r} = add i64 %base, {r}",
            f"  %m{r} = mul i64 %r{r}, {columns}",
            f"  %a{r} = add i64 %m{r}, %g",
            f"  %w{r} = getelementptr float, ptr %table, i64 %a{r}",
        ]
        whole.append(f"  store {_F} {v[r]}, ptr %w{r}, align 4")
        rest.append(f"  call void @llvm.masked.store.v{GROUP}f32.p0({_F} {v[r]}, ptr %w{r}, i32 4, <{GROUP} x i1> {mask})")
    nl = "\n"
    return f"""transpose:
  %g = phi i64 [0, %{"logs" if scratch.logs else "compute"}], [%g2, %full]
{nl.join(lines)}
  %g2 = add i64 %g, {GROUP}
  %inside = icmp slt i64 %g2, {columns}
  br i1 %inside, label %full, label %last
full:
{nl.join(whole)}
  br label %transpose
last:
{nl.join(rest)}
  br label %written
"""


def _log2_text(name: str, lanes: int, bits: int, mantissa: int, half_root: int, terms: int, attributes: str) -> str:
    """log2 of x > 0: the exponent, and the series of atanh((m - 1) / (m + 1)) for m in [sqrt(1/2), sqrt(2))."""
    ty, kind = (f"<{lanes} x double>", "float64") if bits == 64 else (f"<{lanes} x float>", "float32")
    scalar, ints = ("double" if bits == 64 else "float"), f"<{lanes} x i{bits}>"
    fma = f"@llvm.fma.v{lanes}f{bits}"

    def real(value: float) -> str:
        return vector_literal([literal(value, kind)] * lanes, scalar)

    def whole(value: int) -> str:
        return vector_literal([str(value)] * lanes, f"i{bits}")

    lines = [
        f"%b = bitcast {ty} %x to {ints}",
        f"%t = sub {ints} %b, {whole(half_root)}",
        f"%e = ashr {ints} %t, {whole(mantissa)}",
        f"%h = shl {ints} %e, {whole(mantissa)}",
        f"%mb = sub {ints} %b, %h",
        f"%m = bitcast {ints} %mb to {ty}",
        f"%ef = sitofp {ints} %e to {ty}",
        f"%up = fsub {ty} %m, {real(1.0)}",
        f"%down = fadd {ty} %m, {real(1.0)}",
        f"%s = fdiv {ty} %up, %down",
        f"%ss = fmul {ty} %s, %s",
    ]
    acc = real(1 / (2 * terms - 1))
    for k in range(terms - 2, -1, -1):
        lines.append(f"%k{k} = call {ty} {fma}({ty} {acc}, {ty} %ss, {ty} {real(1 / (2 * k + 1))})")
        acc = f"%k{k}"
    lines += [f"%sum = fmul {ty} {acc}, %s", f"%r = call {ty} {fma}({ty} %sum, {ty} {real(2 / math.log(2))}, {ty} %ef)", f"ret {ty} %r"]
    return f"define internal {ty} @{name}({ty} %x) {attributes} {{\n" + "\n".join(f"  {line}" for line in lines) + "\n}"


def _log2_doubles() -> str:
    return _log2_text("log2", HALF, 64, 52, 0x3FE6A09E667F3BCD, 10, "noinline")


def _log2_floats() -> str:
    return _log2_text("log2s", GROUP, 32, 23, 0x3F3504F3, 6, "noinline")


@cache
def _here() -> LlvmOptions:
    """This very processor, as LLVM sees it: the code never leaves the process."""
    flags = ",".join(sorted(f"+{name}" for name in host_features()))
    return LlvmOptions(str(llvm.get_process_triple()), host_cpu_name(), flags)


_Floats = npt.NDArray[np.float32]
_Doubles = npt.NDArray[np.float64]


class DagKernel:
    """A graph compiled for this process.

    Args:
        nodes: the graph, operands before users.
        width: columns of a row.
        table: columns of the float table.
        columns: nodes wanted as double arrays.
    Raises:
        InternalError: the graph holds an unknown operation.
    """

    def __init__(self, nodes: Sequence[Node], width: int, table: Sequence[TableColumn], columns: Sequence[int]) -> None:
        self.width = width
        self.table_width = len(table)
        self.column_count = len(columns)
        # The kernel is called by address: the object has to live as long as it.
        self._object: Any = load_object(compile_object(emit_dag(nodes, width, table, columns), _here()))
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        self._call = kind(self._object.address("dag"))

    def __call__(self, rows: npt.NDArray[np.integer], out: _Floats | None = None) -> tuple[_Floats, _Doubles]:
        """The table, float32 [N, len(table)], and the columns, float64 [len(columns), N], for rows [N, width].

        Threads may call it at the same time.  `out`, when given, receives the table: C-contiguous float32 of that shape.
        """
        n = len(rows)
        if rows.ndim != 2 or rows.shape[1] != self.width:
            raise UserError(f"rows of {self.width} columns are needed, [N, {self.width}], got an array of shape {list(rows.shape)}")
        ints = np.ascontiguousarray(rows, np.int64)
        table = np.empty((n, self.table_width), np.float32) if out is None else out
        if table.shape != (n, self.table_width) or table.dtype != np.float32 or not table.flags.c_contiguous:
            raise UserError(
                f"`out` must be C-contiguous float32 of shape {[n, self.table_width]}, got {table.dtype} of shape {list(table.shape)}"
            )
        columns = np.empty((self.column_count, n))
        main = n // GROUP * GROUP
        self._call(ints.ctypes.data, main, table.ctypes.data, columns.ctypes.data, n)
        if main < n:
            self._rest(ints[main:], table[main:], columns[:, main:])
        return table, columns

    def _rest(self, ints: npt.NDArray[np.int64], table: _Floats, columns: _Doubles) -> None:
        """The last rows, fewer than 16: computed among copies of the last one."""
        n = len(ints)
        padded = np.repeat(ints[-1:], GROUP, axis=0)
        padded[:n] = ints
        wide = np.empty((GROUP, self.table_width), np.float32)
        tall = np.empty((self.column_count, GROUP))
        self._call(padded.ctypes.data, GROUP, wide.ctypes.data, tall.ctypes.data, GROUP)
        table[:] = wide[:n]
        columns[:] = tall[:, :n]
