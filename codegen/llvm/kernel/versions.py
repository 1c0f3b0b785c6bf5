"""Emit the versions of a function with dynamic shapes: a kernel for each, and one that calls the version for the sizes of a call.

Each version is an LLVM function: compile time grows faster than the size of a function, and memory is allocated for the version that runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.codegen.llvm.kernel.expr import ExprEmitter
from tunesmith.codegen.llvm.kernel.function import Kernel, Module, emit_kernel
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Expr
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Var
from tunesmith.ir.specialize import sizes_of


def emit_versions(versions: Sequence[tuple[Expr, PrimFunc]], rest: PrimFunc, module: Module) -> Kernel:
    """Emit the kernel `i64 <name>_kernel(ptr, ..., i64, ...)`: one data pointer for each tensor, then the sizes.

    Args:
        versions: lowered functions and the conditions on the sizes of `rest` under which they run; the first that is true counts.
        rest: the lowered function for all other sizes.
        module: receives the kernels.

    Raises:
        BuildError: a version cannot be compiled for the target.
    """
    if not versions:
        return emit_kernel(rest, module)
    name = f"{rest.name}_kernel"
    tensors = [f"ptr %a{i}" for i, p in enumerate([p for p in rest.params if isinstance(p, Buffer)])]
    sizes = {v.name: f"%z{i}" for i, v in enumerate(sizes_of(rest))}
    e = ExprEmitter(module.declares, has_avx512=False)
    e.env = {v: sizes[v.name] for v in sizes_of(rest)}
    details: list[str] = []
    for k, (condition, version) in enumerate([*versions, (None, rest)]):
        kernel = emit_kernel(version, module, f".v{k}")
        details.append(kernel.detail)
        count = sum([isinstance(p, Buffer) for p in version.params])  # versions without index checks take no report
        given = ", ".join([*tensors[:count], *[f"i64 {sizes[p.name]}" for p in version.params if isinstance(p, Var)]])
        after = ""
        if condition is not None:
            mine, after = e.label("version"), e.label("other")
            e.do(f"br i1 {e.value(condition)}, label %{mine}, label %{after}")
            e.start(mine)
        if kernel.refuses:
            e.do(f"ret i64 {e.op(f'call i64 @{kernel.name}({given})')}")
        else:
            e.do(f"call void @{kernel.name}({given})")
            e.do("ret i64 0")
        if after:
            e.start(after)
    linkage = "" if module.exported else "internal "
    params = ", ".join([*[t.replace("ptr", "ptr noalias") for t in tensors], *[f"i64 {z}" for z in sizes.values()]])
    module.functions.append("\n".join([f"define {linkage}i64 @{name}({params}) #0 {{", "entry:", *e.lines, "}"]))
    return Kernel(name, True, next((d for d in details if d), ""))
