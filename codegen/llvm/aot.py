"""Compile a model ahead of time to one C function, in the same module as its kernels, so that calls are direct.

The object defines, for a model called `m`:

    int32_t  m_run_with(const void *parameters, const void *const *inputs, void *const *outputs, void *workspace)
    uint64_t m_signature(void)       size_t m_workspace_bytes(void)       uint32_t m_num_inputs(void), m_num_outputs(void)

and a weak symbol that names its instruction sets; it needs at most libc, libm and libgomp.  Kernels and their data have internal linkage,
so that objects of several models link.  Only outputs, workspace and the kernels' scratch memory are written, and concurrent calls share
none of them: the model is reentrant.

A library adds a *front*, once the location of the parameters is decided: `m_run`, which is `m_run_with` on the parameters inside the
library; or `m_parameters`, which recognises the parameter file beside it.  `codegen.cpu.c_header` documents the functions for callers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunesmith.codegen.cpu.model import CONTROL, ELSE, END, IF, LEAVE, LOOP, aot_program, check_complete
from tunesmith.codegen.llvm.compile import compile_object
from tunesmith.codegen.llvm.host import llvm_options
from tunesmith.codegen.llvm.kernel.function import Kernel, Module, emit_kernel
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_infra import Pipeline
from tunesmith.lower.pipelines import CPU
from tunesmith.runtime.arrays import ALIGNMENT, nbytes
from tunesmith.runtime.executor.aot_executor import (
    FORKED,
    MISALIGNED,
    NO_MEMORY,
    NULL_POINTER,
    RUN_WITH,
    SIGNATURE,
    signature,
)
from tunesmith.runtime.executor.bound_program import ARENA, CONSTANT, COPY, INPUT
from tunesmith.runtime.executor.executable import NamedArrays, container_size, payload_offset, table
from tunesmith.runtime.generic_code import generic_object
from tunesmith.runtime.thread_support import FORKED as REFUSED_FORKED
from tunesmith.support import dtype as dt

Program = dict[str, Any]

_THROUGH_TABLE = '!llvm.module.flags = !{!0}\n!0 = !{i32 7, !"RtLibUseGOT", i32 1}\n'
"""With `nonlazybind`: external functions are called through the global offset table, including those that LLVM inserts (memcpy).
LLVM's loader reserves memory for that table but none for the table behind stubs: an object without writable data would make it abort
the process."""


def build_aot(
    funcs: Sequence[PrimFunc], program: Program, constants: NamedArrays, name: str, target: Target, pipeline: Pipeline = CPU
) -> tuple[Program, bytes]:
    """Compile a model.

    Args:
        funcs: the functions that it calls.
        program: program of the graph executor (`runtime.executor.graph_executor`): the calls and their storage.
        constants: constants of the program.
        name: prefix of the C functions.
        target: kind llvm.
        pipeline: the lowering pipeline.
    Returns:
        The program of an executable of kind "aot", with the same constants, and object code.
    Raises:
        BuildError: the name is not a C identifier, a function cannot be compiled for the target, or one is missing.
    """
    made = aot_program(program, name, target)
    return made, compile_object(emit_aot(funcs, program, constants, made, target, pipeline), llvm_options(target))


def emit_aot(
    funcs: Sequence[PrimFunc], program: Program, constants: NamedArrays, made: Program, target: Target, pipeline: Pipeline = CPU
) -> str:
    """LLVM IR text that `build_aot` compiles; `made` is the program that it returns."""
    check_complete(program, funcs)
    module = Module(target, exported=False)
    kernels = {f.name: emit_kernel(pipeline(f, target), module) for f in funcs}
    module.functions.append("\n".join(_Run(program, constants, made["name"], kernels, module).lines))
    facts = {
        SIGNATURE: ("i64", signature(made, constants)),
        "_workspace_bytes": ("i64", made["workspace"]),
        "_num_inputs": ("i32", len(made["inputs"])),
        "_num_outputs": ("i32", len(made["outputs"])),
    }
    for suffix, (kind, value) in facts.items():
        module.functions.append(f'define {kind} @"{made["name"]}{suffix}"() #0 {{\n  ret {kind} {value}\n}}')
    module.declares = {d if "@llvm." in d else f"{d} nonlazybind" for d in module.declares}
    return module.text() + _THROUGH_TABLE


class _Run:
    """The function that runs the model.

    All pointers are checked for null and alignment before anything is written.  The workspace is allocated if the caller passes none.
    A kernel may fail to allocate memory, and kernels with parallel loops refuse to run in a forked child; either ends the run.
    """

    def __init__(self, program: Program, constants: NamedArrays, name: str, kernels: dict[str, Kernel], module: Module) -> None:
        self._program, self._module, self._kernels = program, module, kernels
        self._offsets = [row["offset"] for row in table(constants)]
        self._ends = [(NULL_POINTER, "start")]
        self._refusals: list[str] = []
        self._values = 0
        self._pointers: dict[tuple[str, int], str] = {}
        self.lines = [f'define i32 @"{name}{RUN_WITH}"(ptr %parameters, ptr %inputs, ptr %outputs, ptr %workspace) #0 {{', "start:"]
        self._check(any(a.nbytes for _, a in constants))
        self._acquire()
        self._open: list[str] = []
        """Labels at the end of the branches and loops around the current call."""
        if any(call[0] in CONTROL for call in program["calls"]):
            for t in range(len(program["tensors"])):  # here, where they dominate all blocks
                self._pointer(t)
        last = "run"
        for i, call in enumerate(program["calls"]):
            last = self._control(i, call) if call[0] in CONTROL else self._call(i, call, last)
        self._release(last)

    def _check(self, constants: bool) -> None:
        inputs, outputs = self._program["inputs"], self._program["outputs"]
        tables = [("%inputs", inputs), ("%outputs", outputs)]
        given = [start for start, specs in tables if specs] + (["%parameters"] if constants else [])
        self._branch(self._any([f"icmp eq ptr {p}, null" for p in given]), "tables")
        pointers = []
        for start, specs in tables:
            for i, (_, dtype, _) in enumerate(specs):
                slot = self._value(f"getelementptr inbounds ptr, ptr {start}, i64 {i}")
                self.lines.append(f"  {start}{i} = load ptr, ptr {slot}, align 8")
                pointers.append((f"{start}{i}", dt.nbytes(dtype)))
        self._ends.append((NULL_POINTER, "tables"))
        self._branch(self._any([f"icmp eq ptr {p}, null" for p, _ in pointers]), "addresses")
        self._ends.append((MISALIGNED, "addresses"))
        pointers += [("%workspace", ALIGNMENT), ("%parameters", ALIGNMENT)]
        bits = []
        for pointer, alignment in pointers:
            if alignment > 1:
                bits.append(f"and i64 {self._value(f'ptrtoint ptr {pointer} to i64')}, {alignment - 1}")
        odd = self._joined("i64", bits)
        self._branch(self._value(f"icmp ne i64 {odd}, 0"), "memory")

    def _acquire(self) -> None:
        size = self._program["arena"]
        if not size:
            self.lines += ["  br label %run", "run:"]
            return
        self._ends.append((NO_MEMORY, "take"))
        self._module.declares |= {"declare ptr @aligned_alloc(i64, i64)", "declare void @free(ptr)"}
        self.lines += [
            "  %own = icmp eq ptr %workspace, null",
            "  br i1 %own, label %take, label %run",
            "take:",
            f"  %block = call ptr @aligned_alloc(i64 {ALIGNMENT}, i64 {size})",
            "  %none = icmp eq ptr %block, null",
            "  br i1 %none, label %end, label %run",
            "run:",
            "  %arena = phi ptr [ %workspace, %memory ], [ %block, %take ]",
        ]

    def _call(self, i: int, call: list[Any], block: str) -> str:
        """Emit a call; returns the label of the current block after it."""
        function, operands, results, sizes = call
        pointers = [self._pointer(t) for t in (*operands, *results)]
        if function == COPY:
            self._module.declares.add("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
            size = nbytes(*self._program["tensors"][results[0]][2:])
            self.lines.append(f"  call void @llvm.memcpy.p0.p0.i64(ptr {pointers[1]}, ptr {pointers[0]}, i64 {size}, i1 false)")
            return block
        arguments = ", ".join([f"ptr {p}" for p in pointers] + [f"i64 {s}" for s in sizes])
        kernel = self._kernels[function]
        if not kernel.refuses:
            self.lines.append(f"  call void @{kernel.name}({arguments})")
            return block
        refused = self._value(f"call i64 @{kernel.name}({arguments})")
        good = self._value(f"icmp eq i64 {refused}, 0")
        self.lines += [f"  br i1 {good}, label %run{i}, label %refused{i}", f"refused{i}:"]
        forked = self._value(f"icmp eq i64 {refused}, {REFUSED_FORKED}")
        self._refusals.append(f"[ {self._value(f'select i1 {forked}, i32 {FORKED}, i32 {NO_MEMORY}')}, %refused{i} ]")
        self.lines += ["  br label %leave", f"run{i}:"]
        return f"run{i}"

    def _control(self, i: int, row: list[Any]) -> str:
        """Emit a row of a branch or a loop; returns the label of the current block after it."""
        word, operands = row[:2]
        holds = self._value(f"load i8, ptr {self._pointer(operands[0])}, align 1") if operands else ""
        holds = self._value(f"icmp ne i8 {holds}, 0") if operands else ""
        if word == IF:
            self._open += [f"end{i}", f"else{i}"]
            return self._block(f"br i1 {holds}, label %then{i}, label %else{i}", f"then{i}")
        if word == ELSE:
            return self._block(f"br label %{self._open[-2]}", self._open.pop())
        if word == END:
            label = self._open.pop()
            return self._block(f"br label %{label}", label)
        if word == LOOP:
            self._open += [f"left{i}", f"loop{i}"]
            return self._block(f"br label %loop{i}", f"loop{i}")
        if word == LEAVE:
            return self._block(f"br i1 {holds}, label %body{i}, label %{self._open[-2]}", f"body{i}")
        return self._block(f"br label %{self._open.pop()}", self._open.pop())

    def _block(self, end: str, label: str) -> str:
        """End the current block, and start the next one."""
        self.lines += [f"  {end}", f"{label}:"]
        return label

    def _release(self, last: str) -> None:
        statuses = ", ".join([f"[ 0, %{last} ]", *self._refusals])
        self.lines += ["  br label %leave", "leave:", f"  %status = phi i32 {statuses}"]
        if self._program["arena"]:
            self.lines += ["  br i1 %own, label %give, label %end", "give:", "  call void @free(ptr %arena)"]
            leaving = ["leave", "give"]
        else:
            leaving = ["leave"]
        ends = ", ".join([f"[ %status, %{b} ]" for b in leaving] + [f"[ {s}, %{b} ]" for s, b in self._ends])
        self.lines += ["  br label %end", "end:", f"  %result = phi i32 {ends}", "  ret i32 %result", "}"]

    def _pointer(self, number: int) -> str:
        storage, at, _, _ = self._program["tensors"][number]
        if storage not in (ARENA, CONSTANT):
            return f"%inputs{at}" if storage == INPUT else f"%outputs{at}"
        base, offset = ("%arena", at) if storage == ARENA else ("%parameters", self._offsets[at])
        if (base, offset) not in self._pointers:
            self._pointers[base, offset] = self._value(f"getelementptr inbounds i8, ptr {base}, i64 {offset}")
        return self._pointers[base, offset]

    def _branch(self, bad: str, good: str) -> None:
        """Branch to the end if a flag is set, else to the next block."""
        self.lines += [f"  br i1 {bad}, label %end, label %{good}", f"{good}:"]

    def _any(self, conditions: Sequence[str]) -> str:
        return self._joined("i1", conditions) if conditions else "false"

    def _joined(self, kind: str, operations: Sequence[str]) -> str:
        found = self._value(operations[0])
        for operation in operations[1:]:
            found = self._value(f"or {kind} {found}, {self._value(operation)}")
        return found

    def _value(self, operation: str) -> str:
        self._values += 1
        self.lines.append(f"  %v{self._values} = {operation}")
        return f"%v{self._values}"


def front_inside(name: str, constants: str, machine: str) -> bytes:
    """An object that defines `<name>_run` for a library of a machine with the parameters at the symbol `constants`."""
    text = f"""
@"{constants}" = external constant i8
declare i32 @"{name}{RUN_WITH}"(ptr, ptr, ptr, ptr)
define i32 @"{name}_run"(ptr %inputs, ptr %outputs, ptr %workspace) nounwind {{
  %status = tail call i32 @"{name}{RUN_WITH}"(ptr @"{constants}", ptr %inputs, ptr %outputs, ptr %workspace)
  ret i32 %status
}}
"""
    return generic_object(text, machine)


def front_beside(name: str, head: bytes, machine: str) -> bytes:
    """An object that defines `<name>_parameters` for a library of a machine whose parameters are in the file that starts with `head`.

    `const void *<name>_parameters(const void *file, size_t size)` returns the parameters in the bytes of the file; NULL if they belong to
    another model or are truncated.  The head contains the digest of the file, which is compared, not recomputed.
    """
    known = "".join(f"\\{byte:02x}" for byte in head)
    text = f"""
@head = private constant [{len(head)} x i8] c"{known}"
declare i32 @memcmp(ptr, ptr, i64)
define ptr @"{name}_parameters"(ptr %file, i64 %size) nounwind {{
  %some = icmp ne ptr %file, null
  %whole = icmp eq i64 %size, {container_size(head)}
  %readable = and i1 %some, %whole
  br i1 %readable, label %compare, label %refuse
compare:
  %order = call i32 @memcmp(ptr %file, ptr @head, i64 {len(head)})
  %known = icmp eq i32 %order, 0
  br i1 %known, label %accept, label %refuse
accept:
  %parameters = getelementptr inbounds i8, ptr %file, i64 {payload_offset(head)}
  ret ptr %parameters
refuse:
  ret ptr null
}}
"""
    return generic_object(text, machine)
