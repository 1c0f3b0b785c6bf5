"""Emit the LLVM IR of a vector machine for expression graphs: registers of `BLOCK` doubles, a switch over opcodes.

It is compiled once per process (source: vectorised interpretation, Boncz et al., MonetDB/X100, CIDR 2005): each instruction processes
enough rows to amortise its dispatch.  Table columns are narrowed to float, into a scratch slot for each distinct column; a loop over the
scratch computes the logarithms; 16 x 16 transpositions write whole rows of the table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from tunesmith.codegen.llvm.text import literal, vector_literal

LANES = 8
GROUP = 16
BLOCK = 64
"""Rows per instruction: few enough for the registers to stay in the cache."""
_D, _L, _M, _F = f"<{LANES} x double>", f"<{LANES} x i64>", f"<{LANES} x i1>", f"<{GROUP} x float>"

_ALL = vector_literal(["true"] * LANES, "i1")


def _doubles(value: float) -> str:
    return vector_literal([literal(float(value), "float64")] * LANES, "double")


def _floats(value: float) -> str:
    return vector_literal([literal(value, "float32")] * GROUP, "float")


_FLOOR = f"call {_D} @llvm.floor.v{LANES}f64({_D} %quotient)"
_QUOTIENT = f"%quotient = fdiv {_D} %x, %y"
_ZERO_OR = f"%some = fcmp ogt {_D} %x, zeroinitializer"
RULES: dict[str, tuple[int, Sequence[str]]] = {
    "add": (2, [f"%r = fadd {_D} %x, %y"]),
    "sub": (2, [f"%r = fsub {_D} %x, %y"]),
    "mul": (2, [f"%r = fmul {_D} %x, %y"]),
    "div": (2, [f"%r = fdiv {_D} %x, %y"]),
    "min": (2, [f"%less = fcmp olt {_D} %x, %y", f"%r = select {_M} %less, {_D} %x, {_D} %y"]),
    "max": (2, [f"%more = fcmp ogt {_D} %x, %y", f"%r = select {_M} %more, {_D} %x, {_D} %y"]),
    "gt": (2, [f"%above = fcmp ogt {_D} %x, %y", f"%r = select {_M} %above, {_D} {_doubles(1)}, {_D} zeroinitializer"]),
    "eq": (2, [f"%same = fcmp oeq {_D} %x, %y", f"%r = select {_M} %same, {_D} {_doubles(1)}, {_D} zeroinitializer"]),
    "where": (3, [_ZERO_OR, f"%r = select {_M} %some, {_D} %y, {_D} %z"]),
    "gate": (2, [_ZERO_OR, f"%r = select {_M} %some, {_D} %y, {_D} zeroinitializer"]),
    "slog2": (1, [f"%up = fadd {_D} %x, {_doubles(1)}", f"%r = call {_D} @log2({_D} %up)"]),
    "floordiv": (2, [_QUOTIENT, f"%r = {_FLOOR}"]),
    "ceildiv": (2, [_QUOTIENT, f"%r = call {_D} @llvm.ceil.v{LANES}f64({_D} %quotient)"]),
    "mod": (2, [_QUOTIENT, f"%whole = {_FLOOR}", f"%back = fmul {_D} %whole, %y", f"%r = fsub {_D} %x, %back"]),
}
"""Number of operands and code of each instruction on vectors x, y, z.  `gate` is a product whose first factor is 1.0 or 0.0."""
CODES = {name: code for code, name in enumerate([*RULES, "param", "narrow", "out"])}
"""Opcodes.  `param` reads a column of the rows, `narrow` writes a scratch slot, `out` writes a double column."""


def machine_text() -> str:
    """LLVM IR of the machine.

    `void run(i32* code, i64 count, double* registers, i64* rows, i64 width, i64 n, float* scratch, i64 logs, i32* order,
    float* table, i64 columns, double* out, i64 pitch)`: n is a multiple of `BLOCK`; rows is [n, width],
    registers [R, BLOCK], scratch [S, BLOCK] with the logarithm columns first; order gives the scratch slot of each column of the
    table [n, columns]; out is [K, pitch].
    """
    cases = "\n".join(f"    i32 {code}, label %do.{name}" for name, code in CODES.items())
    bodies = "\n".join(_case(name, reads, lines) for name, (reads, lines) in RULES.items())
    return "\n".join([_DECLARATIONS, _log2_doubles(), _log2_floats(), _RUN.format(cases=cases, bodies=bodies), _transposition()])


_DECLARATIONS = f"""declare {_D} @llvm.ceil.v{LANES}f64({_D})
declare {_D} @llvm.floor.v{LANES}f64({_D})
declare {_D} @llvm.fma.v{LANES}f64({_D}, {_D}, {_D})
declare {_F} @llvm.fma.v{GROUP}f32({_F}, {_F}, {_F})
declare {_L} @llvm.masked.gather.v{LANES}i64.v{LANES}p0(<{LANES} x ptr>, i32, {_M}, {_L})
declare void @llvm.masked.store.v{GROUP}f32.p0({_F}, ptr, i32, <{GROUP} x i1>)"""


def _case(name: str, reads: int, lines: Sequence[str]) -> str:
    """One instruction on every vector of its registers, unrolled: a loop would take half of the time."""
    out = [f"do.{name}:"]
    for i in range(BLOCK // LANES):
        operands = list(zip("abc", "xyz", strict=True))[:reads]
        loads = [f"%at.{v} = getelementptr {_D}, ptr %{r}, i64 {i}\n%{v} = load {_D}, ptr %at.{v}, align 64" for r, v in operands]
        store = [f"%at.r = getelementptr {_D}, ptr %d, i64 {i}", f"store {_D} %r, ptr %at.r, align 64"]
        text = "\n".join([*loads, *lines, *store])
        out.append(re.sub(r"%(?![abcd]\b)([a-z.]+)", rf"%{name}.{i}.\1", text))
    return "\n".join([*out, "br label %next"])


_RUN = f"""define void @run(ptr noalias %code, i64 %count, ptr noalias %registers, ptr noalias %rows, i64 %width, i64 %n, \
ptr noalias %scratch, i64 %logs, ptr noalias %order, ptr noalias %table, i64 %columns, ptr noalias %out, i64 %pitch) {{{{
entry:
  %lanes.0 = insertelement {_L} poison, i64 %width, i64 0
  %lanes.1 = shufflevector {_L} %lanes.0, {_L} poison, <{LANES} x i32> zeroinitializer
  %lanes = mul {_L} %lanes.1, {vector_literal([str(i) for i in range(LANES)], "i64")}
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %block, label %done
block:
  %base = phi i64 [0, %entry], [%base.next, %written]
  %first = mul i64 %base, %width
  %from = getelementptr i64, ptr %rows, i64 %first
  %code.some = icmp sgt i64 %count, 0
  br i1 %code.some, label %step, label %logarithms
step:
  %pc = phi i64 [0, %block], [%pc.next, %next]
  %p = getelementptr [5 x i32], ptr %code, i64 %pc
  %op = load i32, ptr %p, align 4
  %d.p = getelementptr i32, ptr %p, i64 1
  %d.i = load i32, ptr %d.p, align 4
  %a.p = getelementptr i32, ptr %p, i64 2
  %a.i = load i32, ptr %a.p, align 4
  %b.p = getelementptr i32, ptr %p, i64 3
  %b.i = load i32, ptr %b.p, align 4
  %c.p = getelementptr i32, ptr %p, i64 4
  %c.i = load i32, ptr %c.p, align 4
  %d = getelementptr [{BLOCK} x double], ptr %registers, i32 %d.i
  %a = getelementptr [{BLOCK} x double], ptr %registers, i32 %a.i
  %b = getelementptr [{BLOCK} x double], ptr %registers, i32 %b.i
  %c = getelementptr [{BLOCK} x double], ptr %registers, i32 %c.i
  switch i32 %op, label %never [
{{cases}}
  ]
never:
  unreachable
{{bodies}}
do.param:
  %column = getelementptr i64, ptr %from, i32 %a.i
  br label %loop.param
loop.param:
  %pi = phi i64 [0, %do.param], [%pi.next, %loop.param]
  %pr = mul i64 %pi, {LANES}
  %pw = mul i64 %pr, %width
  %pf = getelementptr i64, ptr %column, i64 %pw
  %pp = getelementptr i64, ptr %pf, {_L} %lanes
  %pg = call {_L} @llvm.masked.gather.v{LANES}i64.v{LANES}p0(<{LANES} x ptr> %pp, i32 8, {_M} {_ALL}, {_L} zeroinitializer)
  %pv = sitofp {_L} %pg to {_D}
  %pd = getelementptr {_D}, ptr %d, i64 %pi
  store {_D} %pv, ptr %pd, align 64
  %pi.next = add i64 %pi, 1
  %pi.more = icmp ult i64 %pi.next, {BLOCK // LANES}
  br i1 %pi.more, label %loop.param, label %next
do.narrow:
  %ns = getelementptr [{BLOCK} x float], ptr %scratch, i32 %d.i
  br label %loop.narrow
loop.narrow:
  %ni = phi i64 [0, %do.narrow], [%ni.next, %loop.narrow]
  %nf = getelementptr {_D}, ptr %a, i64 %ni
  %nv = load {_D}, ptr %nf, align 64
  %nx = fptrunc {_D} %nv to <{LANES} x float>
  %nt = getelementptr <{LANES} x float>, ptr %ns, i64 %ni
  store <{LANES} x float> %nx, ptr %nt, align 32
  %ni.next = add i64 %ni, 1
  %ni.more = icmp ult i64 %ni.next, {BLOCK // LANES}
  br i1 %ni.more, label %loop.narrow, label %next
do.out:
  %o.k = zext i32 %d.i to i64
  %o.l = mul i64 %o.k, %pitch
  %o.b = add i64 %o.l, %base
  %o.to = getelementptr double, ptr %out, i64 %o.b
  br label %loop.out
loop.out:
  %oi = phi i64 [0, %do.out], [%oi.next, %loop.out]
  %of = getelementptr {_D}, ptr %a, i64 %oi
  %ov = load {_D}, ptr %of, align 64
  %ot = getelementptr {_D}, ptr %o.to, i64 %oi
  store {_D} %ov, ptr %ot, align 8
  %oi.next = add i64 %oi, 1
  %oi.more = icmp ult i64 %oi.next, {BLOCK // LANES}
  br i1 %oi.more, label %loop.out, label %next
next:
  %pc.next = add i64 %pc, 1
  %pc.more = icmp slt i64 %pc.next, %count
  br i1 %pc.more, label %step, label %logarithms
logarithms:
  %l.count = mul i64 %logs, {BLOCK // GROUP}
  %l.some = icmp sgt i64 %logs, 0
  br i1 %l.some, label %log, label %rest
log:
  %l = phi i64 [0, %logarithms], [%l.next, %log]
  %l.p = getelementptr {_F}, ptr %scratch, i64 %l
  %l.x = load {_F}, ptr %l.p, align 64
  %l.up = fadd {_F} %l.x, {_floats(1.0)}
  %l.log = call {_F} @log2s({_F} %l.up)
  store {_F} %l.log, ptr %l.p, align 64
  %l.next = add i64 %l, 1
  %l.more = icmp slt i64 %l.next, %l.count
  br i1 %l.more, label %log, label %rest
rest:
  %t.some = icmp sgt i64 %columns, 0
  br i1 %t.some, label %rows16, label %written
rows16:
  %r = phi i64 [0, %rest], [%r.next, %rows16]
  %r.s = getelementptr float, ptr %scratch, i64 %r
  %r.n = add i64 %base, %r
  %r.m = mul i64 %r.n, %columns
  %r.t = getelementptr float, ptr %table, i64 %r.m
  call void @transpose(ptr %r.s, ptr %order, ptr %r.t, i64 %columns)
  %r.next = add i64 %r, {GROUP}
  %r.more = icmp ult i64 %r.next, {BLOCK}
  br i1 %r.more, label %rows16, label %written
written:
  %base.next = add i64 %base, {BLOCK}
  %base.more = icmp slt i64 %base.next, %n
  br i1 %base.more, label %block, label %done
done:
  ret void
}}}}"""


def _transposition() -> str:
    """16 rows of the table, 16 columns at a time; the last columns are stored under a mask, because the next row follows them."""
    lines: list[str] = []
    v = []
    for k in range(GROUP):
        lines += [
            f"  %o{k} = getelementptr i32, ptr %order, i64 %g",
            f"  %p{k} = getelementptr i32, ptr %o{k}, i64 {k}",
            f"  %q{k} = load i32, ptr %p{k}, align 4",
            f"  %t{k} = getelementptr [{BLOCK} x float], ptr %scratch, i32 %q{k}",
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
    for r in range(GROUP):
        lines += [
            f"  %m{r} = mul i64 %columns, {r}",
            f"  %a{r} = add i64 %m{r}, %g",
            f"  %w{r} = getelementptr float, ptr %table, i64 %a{r}",
        ]
        whole.append(f"  store {_F} {v[r]}, ptr %w{r}, align 4")
        rest.append(f"  call void @llvm.masked.store.v{GROUP}f32.p0({_F} {v[r]}, ptr %w{r}, i32 4, <{GROUP} x i1> %mask)")
    nl = "\n"
    return f"""define internal void @transpose(ptr noalias %scratch, ptr noalias %order, ptr noalias %table, i64 %columns) noinline {{
entry:
  br label %columns16
columns16:
  %g = phi i64 [0, %entry], [%g2, %full]
{nl.join(lines)}
  %g2 = add i64 %g, {GROUP}
  %inside = icmp sle i64 %g2, %columns
  br i1 %inside, label %full, label %last
full:
{nl.join(whole)}
  %more = icmp slt i64 %g2, %columns
  br i1 %more, label %columns16, label %done
last:
  %left.64 = sub i64 %columns, %g
  %left = trunc i64 %left.64 to i32
  %left.0 = insertelement <{GROUP} x i32> poison, i32 %left, i64 0
  %left.1 = shufflevector <{GROUP} x i32> %left.0, <{GROUP} x i32> poison, <{GROUP} x i32> zeroinitializer
  %mask = icmp ult <{GROUP} x i32> {vector_literal([str(i) for i in range(GROUP)], "i32")}, %left.1
{nl.join(rest)}
  br label %done
done:
  ret void
}}"""


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
    return _log2_text("log2", LANES, 64, 52, 0x3FE6A09E667F3BCD, 10, "noinline")


def _log2_floats() -> str:
    return _log2_text("log2s", GROUP, 32, 23, 0x3F3504F3, 6, "noinline")
