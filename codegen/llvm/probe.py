"""Emit probe kernels in LLVM IR that measure the vector units, caches, memory and thread pool of this machine.

Every kernel has one signature, `void (ptr data, i64 bytes, i64 rounds, ptr out)`; `team` runs one on several threads, each on its own
slice of `data`.  Each kernel performs only the operation that it measures.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

import llvmlite.binding as llvm

from tunesmith.codegen.llvm.compile import disable_antidependency_breaking
from tunesmith.codegen.llvm.host import check_runs_here, llvm_options
from tunesmith.codegen.llvm.kernel.dot_product import declared
from tunesmith.codegen.llvm.kernel.tile_registers import CONFIGURATION, ROW_BYTES, configuration_text
from tunesmith.ir.target.target import Target
from tunesmith.ir.tensor_intrinsics.intrinsic import TENSOR_INTRINSICS
from tunesmith.ir.tile_products import SUM_REGISTERS, TILE_REGISTERS, TILE_ROWS
from tunesmith.runtime.object_loader import LoadedObject, load_object
from tunesmith.support import dtype as dt
from tunesmith.support.errors import UserError
from tunesmith.support.tile_permission import request_tile_permission

OUT_BYTES = 4096
"""Bytes of `out` that one thread may write."""

_STREAMS = 8
_KERNEL = "(ptr %data, i64 %bytes, i64 %rounds, ptr %out)"

_TEAM = f"""
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
%job = type {{ ptr, ptr, i64, i64, ptr }}
define internal void @member(ptr %job) {{
  %number = call i32 @omp_get_thread_num()
  %thread = zext i32 %number to i64
  %data.p = getelementptr %job, ptr %job, i32 0, i32 1
  %bytes.p = getelementptr %job, ptr %job, i32 0, i32 2
  %rounds.p = getelementptr %job, ptr %job, i32 0, i32 3
  %out.p = getelementptr %job, ptr %job, i32 0, i32 4
  %kernel = load ptr, ptr %job
  %data = load ptr, ptr %data.p
  %bytes = load i64, ptr %bytes.p
  %rounds = load i64, ptr %rounds.p
  %out = load ptr, ptr %out.p
  %skip = mul i64 %thread, %bytes
  %mine = getelementptr i8, ptr %data, i64 %skip
  %skip.out = mul i64 %thread, {OUT_BYTES}
  %mine.out = getelementptr i8, ptr %out, i64 %skip.out
  call void %kernel(ptr %mine, i64 %bytes, i64 %rounds, ptr %mine.out)
  ret void
}}
define void @team(ptr %kernel, ptr %data, i64 %bytes, i64 %rounds, ptr %out, i32 %threads) {{
  %job = alloca %job
  %data.p = getelementptr %job, ptr %job, i32 0, i32 1
  %bytes.p = getelementptr %job, ptr %job, i32 0, i32 2
  %rounds.p = getelementptr %job, ptr %job, i32 0, i32 3
  %out.p = getelementptr %job, ptr %job, i32 0, i32 4
  store ptr %kernel, ptr %job
  store ptr %data, ptr %data.p
  store i64 %bytes, ptr %bytes.p
  store i64 %rounds, ptr %rounds.p
  store ptr %out, ptr %out.p
  call void @GOMP_parallel(ptr @member, ptr %job, i32 %threads, i32 0)
  ret void
}}
define internal void @nothing(ptr %job) {{
  ret void
}}
define void @fork_join(i64 %rounds, i32 %threads) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  call void @GOMP_parallel(ptr @nothing, ptr null, i32 %threads, i32 0)
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %rounds
  br i1 %more, label %loop, label %end
end:
  ret void
}}
"""


_TILES = """
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilezero(i8)
declare void @llvm.x86.tilestored64(i8, ptr, i64)
declare void @llvm.x86.tilerelease()"""


@dataclass(frozen=True, slots=True)
class ProbeKernels:
    """Loaded probe kernels.  `rounds` and `threads` are at least 1; addresses are multiples of 64.

    Attributes:
        flops_per_round: floating-point operations of one round of `multiply_add` on one thread.
        dot_operations: operations of one round of `dot_product` on one thread, by instruction: dot products and products of tiles.
        step_bytes: slices of `read` and `fill` must be multiples of this.
    """

    flops_per_round: int
    dot_operations: Mapping[str, int]
    step_bytes: int
    _code: LoadedObject

    def multiply_add(self, rounds: int, out: int, threads: int) -> None:
        """Run independent chains of vector multiply-adds in registers.

        Args:
            rounds: rounds of `flops_per_round` operations on every thread.
            out: address of `threads * OUT_BYTES` bytes, which receive the sums.
            threads: team size.
        """
        self._team("multiply_add", out, 0, rounds, out, threads)

    def dot_product(self, instruction: str, rounds: int, out: int, threads: int) -> None:
        """Run independent chains of an instruction of `dot_operations` in registers; arguments are those of `multiply_add`."""
        self._team(instruction, out, 0, rounds, out, threads)

    def read(self, data: int, nbytes: int, rounds: int, out: int, threads: int) -> None:
        """Read `nbytes` on each thread, repeated `rounds` times; thread t starts at `data + t * nbytes`."""
        self._team("read", data, self._whole(nbytes), rounds, out, threads)

    def fill(self, data: int, nbytes: int, out: int, threads: int) -> None:
        """Write ones to the slices of `read` from the same threads, so that first-touch places the pages near their readers."""
        self._team("fill", data, self._whole(nbytes), 1, out, threads)

    def fork_join(self, rounds: int, threads: int) -> None:
        """Start and join an empty team, `rounds` times."""
        function = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int32)(self._code.address("fork_join"))
        function(rounds, threads)

    def _team(self, kernel: str, data: int, nbytes: int, rounds: int, out: int, threads: int) -> None:
        pointer, size = ctypes.c_void_p, ctypes.c_int64
        function = ctypes.CFUNCTYPE(None, pointer, pointer, size, size, pointer, ctypes.c_int32)(self._code.address("team"))
        function(self._code.address(kernel), data, nbytes, rounds, out, threads)

    def _whole(self, nbytes: int) -> int:
        if nbytes < self.step_bytes or nbytes % self.step_bytes:
            raise UserError(f"a slice of {nbytes} bytes cannot be probed: give a positive multiple of {self.step_bytes}")
        return nbytes


def load_probe(target: Target) -> ProbeKernels:
    """Compile the kernels for `target` with its widest vectors and load them, in about 20 ms.

    Raises:
        BuildError: the target's code cannot run on this machine.
        RunError: there is no OpenMP runtime.
    """
    check_runs_here(target)
    chains = target.vector_registers - 4
    lanes = target.vector_lanes("float32")
    operations = {name: 8 // dt.nbytes(dtype) * chains * lanes for name, dtype in instructions(target).items()}
    for name, dtype in tile_instructions(target).items():
        operations[name] = SUM_REGISTERS * TILE_ROWS * TILE_ROWS * ROW_BYTES // dt.nbytes(dtype) * 2
    return ProbeKernels(2 * chains * lanes, operations, _STREAMS * lanes * 4, load_object(_object_code(probe_text(target), target)))


def instructions(target: Target) -> dict[str, str]:
    """The dot-product instructions of the target at its full vector width, with the types of their operands."""
    found = {}
    for instruction, dtype in (("vpdpbusd", "int8"), ("vdpbf16ps", "bfloat16")):
        name = f"x86.{instruction}.{target.vector_bits}"
        if name in TENSOR_INTRINSICS and TENSOR_INTRINSICS.get(name).is_available(target.features):
            found[instruction] = dtype
    return found


def tile_instructions(target: Target) -> dict[str, str]:
    """Products of tiles of the target that this process may execute, with the types of their operands."""
    named = {"tdpbf16ps": "bfloat16", "tdpbssd": "int8", "tdpbusd": "int8"}
    found = {name: dtype for name, dtype in named.items() if TENSOR_INTRINSICS.get(f"x86.{name}").is_available(target.features)}
    return found if found and request_tile_permission() else {}


def probe_text(target: Target) -> str:
    """LLVM IR of the module of probe kernels."""
    lanes = target.vector_lanes("float32")
    # Without the instruction LLVM would call libm for each element.
    fused = "fma" in target.features or "neon" in target.features
    chains = target.vector_registers - 4
    kernels = [_multiply_add(lanes, chains, fused), *[_dot_product(name, lanes, chains) for name in instructions(target)]]
    if tiles := tile_instructions(target):
        kernels += [_TILES, configuration_text(), *[_tile_product(name) for name in tiles]]
    kernels += [_read(lanes), _fill(lanes)]
    return "\n".join([*kernels, _TEAM])


def _object_code(text: str, target: Target) -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    disable_antidependency_breaking()
    options = llvm_options(target)
    machine = llvm.Target.from_triple(options.triple).create_target_machine(cpu=options.cpu, features=options.features, opt=2, reloc="pic")
    return bytes(machine.emit_object(llvm.parse_assembly(text)))


def _multiply_add(lanes: int, chains: int, fused: bool) -> str:
    """One multiply-add per round on each of `chains` registers: enough chains to hide the latency."""
    vector = f"<{lanes} x float>"
    phis, steps, stores = [], [], []
    for c in range(chains):
        phis.append(f"  %a{c} = phi {vector} [{_splat(lanes, 1.0)}, %entry], [%b{c}, %loop]")
        if fused:
            steps.append(f"  %b{c} = call {vector} @llvm.fma.v{lanes}f32({vector} %a{c}, {vector} %half, {vector} %half)")
        else:
            steps.append(f"  %m{c} = fmul {vector} %a{c}, %half\n  %b{c} = fadd {vector} %m{c}, %half")
        stores.append(f"  %p{c} = getelementptr {vector}, ptr %out, i64 {c}\n  store {vector} %b{c}, ptr %p{c}, align 4")
    # The factor is loaded so that it stays in a register; a constant would be a memory operand.
    return "\n".join(
        [
            f"declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})",
            f"define void @multiply_add{_KERNEL} {{\nentry:",
            f"  store volatile {vector} {_splat(lanes, 0.5)}, ptr %out, align 4",
            f"  %half = load volatile {vector}, ptr %out, align 4",
            "  br label %loop\nloop:",
            "  %i = phi i64 [0, %entry], [%next, %loop]",
            *phis,
            *steps,
            "  %next = add i64 %i, 1\n  %more = icmp ult i64 %next, %rounds",
            "  br i1 %more, label %loop, label %end\nend:",
            *stores,
            "  ret void\n}",
        ]
    )


def _dot_product(instruction: str, lanes: int, chains: int) -> str:
    """As `_multiply_add`, with a dot-product instruction."""
    total, operand, name = declared(instruction, lanes)
    lines = [
        f"declare {total} @{name}({total}, {operand}, {operand})",
        f"define void @{instruction}{_KERNEL} {{\nentry:",
        f"  store volatile {total} zeroinitializer, ptr %out, align 4",
        f"  %x = load volatile {operand}, ptr %out, align 4",
        "  br label %loop\nloop:",
        "  %i = phi i64 [0, %entry], [%next, %loop]",
        *[f"  %a{c} = phi {total} [zeroinitializer, %entry], [%b{c}, %loop]" for c in range(chains)],
        *[f"  %b{c} = call {total} @{name}({total} %a{c}, {operand} %x, {operand} %x)" for c in range(chains)],
        "  %next = add i64 %i, 1\n  %more = icmp ult i64 %next, %rounds",
        "  br i1 %more, label %loop, label %end\nend:",
        *[f"  %p{c} = getelementptr {total}, ptr %out, i64 {c}\n  store {total} %b{c}, ptr %p{c}, align 4" for c in range(chains)],
        "  ret void\n}",
    ]
    return "\n".join(lines)


def _tile_product(instruction: str) -> str:
    """As `_multiply_add`, with a product of tiles: a chain in each register that the operands do not need."""
    *sums, a, b = range(TILE_REGISTERS)
    lines = [
        f"declare void @llvm.x86.{instruction}(i8, i8, i8)",
        f"define void @{instruction}{_KERNEL} {{\nentry:",
        f"  call void @llvm.x86.ldtilecfg(ptr @{CONFIGURATION})",
        *[f"  call void @llvm.x86.tilezero(i8 {t})" for t in range(TILE_REGISTERS)],
        "  br label %loop\nloop:",
        "  %i = phi i64 [0, %entry], [%next, %loop]",
        *[f"  call void @llvm.x86.{instruction}(i8 {t}, i8 {a}, i8 {b})" for t in sums],
        "  %next = add i64 %i, 1\n  %more = icmp ult i64 %next, %rounds",
        "  br i1 %more, label %loop, label %end\nend:",
        *[f"  call void @llvm.x86.tilestored64(i8 {t}, ptr %out, i64 {ROW_BYTES})" for t in sums],
        "  call void @llvm.x86.tilerelease()\n  ret void\n}",
    ]
    return "\n".join(lines)


def _read(lanes: int) -> str:
    """Sums in several registers, so that loads and not a chain of additions limit the rate."""
    vector, nbytes = f"<{lanes} x float>", 4 * lanes
    outer, inner, steps, stores = [], [], [], []
    for k in range(_STREAMS):
        outer.append(f"  %s{k} = phi {vector} [zeroinitializer, %entry], [%b{k}, %round.end]")
        inner.append(f"  %a{k} = phi {vector} [%s{k}, %round], [%b{k}, %loop]")
        steps.append(f"  %p{k} = getelementptr i8, ptr %here, i64 {k * nbytes}\n  %x{k} = load {vector}, ptr %p{k}, align 4")
        steps.append(f"  %b{k} = fadd {vector} %a{k}, %x{k}")
        stores.append(f"  %q{k} = getelementptr i8, ptr %out, i64 {k * nbytes}\n  store {vector} %b{k}, ptr %q{k}, align 4")
    return "\n".join(
        [
            f"define void @read{_KERNEL} {{\nentry:\n  br label %round\nround:",
            "  %i = phi i64 [0, %entry], [%i.next, %round.end]",
            *outer,
            "  br label %loop\nloop:",
            "  %offset = phi i64 [0, %round], [%offset.next, %loop]",
            *inner,
            "  %here = getelementptr i8, ptr %data, i64 %offset",
            *steps,
            f"  %offset.next = add i64 %offset, {_STREAMS * nbytes}\n  %inside = icmp ult i64 %offset.next, %bytes",
            "  br i1 %inside, label %loop, label %round.end\nround.end:",
            "  %i.next = add i64 %i, 1\n  %more = icmp ult i64 %i.next, %rounds",
            "  br i1 %more, label %round, label %end\nend:",
            *stores,
            "  ret void\n}",
        ]
    )


def _fill(lanes: int) -> str:
    vector = f"<{lanes} x float>"
    return f"""define void @fill{_KERNEL} {{
entry:
  br label %loop
loop:
  %offset = phi i64 [0, %entry], [%next, %loop]
  %here = getelementptr i8, ptr %data, i64 %offset
  store {vector} {_splat(lanes, 1.0)}, ptr %here, align 4
  %next = add i64 %offset, {4 * lanes}
  %inside = icmp ult i64 %next, %bytes
  br i1 %inside, label %loop, label %end
end:
  ret void
}}"""


def _splat(lanes: int, value: float) -> str:
    return "<" + ", ".join([f"float {value!r}"] * lanes) + ">"
