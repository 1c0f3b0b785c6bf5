"""Print a model as one C function with its kernels: what `codegen.llvm.aot` compiles, with the same functions and results.

int32_t  m_run_with(const void *parameters, const void *const *inputs, void *const *outputs, void *workspace)
uint64_t m_signature(void)       size_t m_workspace_bytes(void)       uint32_t m_num_inputs(void), m_num_outputs(void)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunesmith.codegen.c.compiler import NoCompilerError, compile_c
from tunesmith.codegen.c.host.build import required
from tunesmith.codegen.c.host.kernel import Kernel, print_kernel
from tunesmith.codegen.c.host.module import LOADED, CModule
from tunesmith.codegen.cpu.model import AGAIN, CONTROL, ELSE, END, IF, LEAVE, LOOP, aot_program, check_complete
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_infra import Pipeline
from tunesmith.lower.pipelines import CPU
from tunesmith.runtime.arrays import ALIGNMENT, nbytes
from tunesmith.runtime.executor.aot_executor import FORKED, MISALIGNED, NO_MEMORY, NULL_POINTER, RUN_WITH, SIGNATURE, signature
from tunesmith.runtime.executor.bound_program import ARENA, CONSTANT, COPY, INPUT
from tunesmith.runtime.executor.executable import NamedArrays, table
from tunesmith.runtime.thread_support import FORKED as REFUSED_FORKED
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError

Program = dict[str, Any]


def build_aot(
    funcs: Sequence[PrimFunc], program: Program, constants: NamedArrays, name: str, target: Target, pipeline: Pipeline = CPU
) -> tuple[Program, bytes | BuildError]:
    """Compile a model with a C compiler; arguments and results as those of `codegen.llvm.aot.build_aot`.

    If there is no C compiler for the target, an error in place of the code says so: the C files can be exported.

    Raises:
        BuildError: the name is not a C identifier, a function cannot be compiled for the target, or one is missing.
    """
    made = aot_program(program, name, target)
    module = print_model(funcs, program, constants, made, target, pipeline)
    head = f"int32_t {name}{RUN_WITH}(const void *parameters, const void *const *inputs, void *const *outputs, void *workspace)"
    run = f"{head} {{\n  return run(parameters, inputs, outputs, workspace);\n}}"
    text = "\n".join([module.text(LOADED), run, *required(target), ""])
    try:
        return made, compile_c(text, target, name)
    except NoCompilerError as error:
        return made, error


def print_model(
    funcs: Sequence[PrimFunc], program: Program, constants: NamedArrays, made: Program, target: Target, pipeline: Pipeline
) -> CModule:
    """Print the kernels of a model, the static function `run` that calls them, and the functions that describe the model.

    Args:
        funcs: the functions that the model calls.
        program: program of the graph executor.
        constants: constants of the program.
        made: the program of the executable.
        target: target of the code.
        pipeline: the lowering pipeline.
    Raises:
        BuildError: a function cannot be compiled for the target, or one is missing.
    """
    check_complete(program, funcs)
    module = CModule(target, exported=False)
    kernels = {f.name: print_kernel(pipeline(f, target), module) for f in funcs}
    module.functions.append(_run(program, constants, kernels))
    facts = [
        ("uint64_t", SIGNATURE, f"UINT64_C({signature(made, constants)})"),
        ("size_t", "_workspace_bytes", str(made["workspace"])),
        ("uint32_t", "_num_inputs", str(len(made["inputs"]))),
        ("uint32_t", "_num_outputs", str(len(made["outputs"]))),
    ]
    module.functions.append("\n".join([f"{t} {made['name']}{suffix}(void) {{ return {value}; }}" for t, suffix, value in facts]))
    return module


def _run(program: Program, constants: NamedArrays, kernels: dict[str, Kernel]) -> str:
    """The function that runs the model.

    All pointers are checked before anything is written.  A kernel may fail to allocate memory, and kernels with parallel loops refuse to
    run in a forked child; either ends the run.
    """
    arena = program["arena"]
    refuses = any(call[0] in kernels and kernels[call[0]].refuses for call in program["calls"])
    lines = [
        "static int32_t run(const void *parameters, const void *const *inputs, void *const *outputs, void *workspace) {",
        "  (void)parameters, (void)inputs, (void)outputs, (void)workspace;",
        *_checks(program, any(a.nbytes for _, a in constants)),
    ]
    if arena:
        lines += [
            "  const bool own = !workspace;",
            f"  if (own) workspace = aligned_alloc({ALIGNMENT}, {arena});",
            f"  if (!workspace) return {NO_MEMORY};",
            "  char *const memory = workspace;",
        ]
    lines.append("  const char *const weights = parameters;\n  (void)weights;")
    if refuses:
        lines.append("  int64_t refused = 0;")
    offsets = [row["offset"] for row in table(constants)]
    for function, operands, results, sizes in program["calls"]:
        pointers = [_pointer(program["tensors"][t], offsets) for t in (*operands, *results)]
        if function == COPY:
            lines.append(f"  __builtin_memcpy({pointers[1]}, {pointers[0]}, {nbytes(*program['tensors'][results[0]][2:])});")
            continue
        if function in CONTROL:
            lines.append("  " + _CONTROL[function].format(*pointers))
            continue
        kernel = kernels[function]
        text = f"{kernel.name}({', '.join([*pointers, *map(str, sizes)])})"
        lines.append(f"  if ((refused = {text})) goto end;" if kernel.refuses else f"  {text};")
    lines += ["end:"] if refuses else []
    lines += ["  if (own) free(workspace);"] if arena else []
    status = f"!refused ? 0 : refused == {REFUSED_FORKED} ? {FORKED} : {NO_MEMORY}" if refuses else "0"
    return "\n".join([*lines, f"  return {status};", "}"])


_CONTROL = {
    IF: "if (*(const bool *){}) {{",
    ELSE: "}} else {{",
    END: "}}",
    LOOP: "for (;;) {{",
    LEAVE: "if (!*(const bool *){}) break;",
    AGAIN: "}}",
}
"""Lines for the rows of branches and loops."""


def _checks(program: Program, constants: bool) -> list[str]:
    """Lines that return an error status for null pointers and misaligned addresses."""
    tables = [("inputs", program["inputs"]), ("outputs", program["outputs"])]
    needed = [name for name, specs in tables if specs] + (["parameters"] if constants else [])
    pointers = [(f"{name}[{i}]", dt.nbytes(dtype)) for name, specs in tables for i, (_, dtype, _) in enumerate(specs)]
    lines = [f"  if ({' || '.join(f'!{p}' for p in needed)}) return {NULL_POINTER};"] if needed else []
    lines += [f"  if (!{p}) return {NULL_POINTER};" for p, _ in pointers]
    pointers += [("workspace", ALIGNMENT), ("parameters", ALIGNMENT)]
    return [*lines, *[f"  if ((uintptr_t){p} % {size}) return {MISALIGNED};" for p, size in pointers if size > 1]]


def _pointer(tensor: Sequence[Any], offsets: Sequence[int]) -> str:
    storage, at = tensor[:2]
    if storage not in (ARENA, CONSTANT):
        return f"{'inputs' if storage == INPUT else 'outputs'}[{at}]"
    return f"(void *)(memory + {at})" if storage == ARENA else f"(const void *)(weights + {offsets[at]})"
