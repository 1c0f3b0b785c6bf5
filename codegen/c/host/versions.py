"""Print the versions of a function with dynamic shapes: a kernel for each, and one that calls the version for the sizes of a call."""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.codegen.c.host.expr import ExprPrinter
from tunesmith.codegen.c.host.kernel import Kernel, pointer, print_kernel
from tunesmith.codegen.c.host.module import CModule
from tunesmith.codegen.c.host.names import Names
from tunesmith.codegen.params import written_buffers
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Expr
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.specialize import sizes_of


def print_versions(versions: Sequence[tuple[Expr, PrimFunc]], rest: PrimFunc, module: CModule) -> Kernel:
    """Print the kernel `int64_t <name>_kernel(T *, ..., int64_t, ...)`: one pointer for each tensor, then the sizes.

    Args:
        versions: lowered functions and the conditions on the sizes of `rest` under which they run; the first that is true counts.
        rest: the lowered function for all other sizes.
        module: receives the kernels.
    Raises:
        BuildError: a version cannot be compiled for the target.
    """
    if not versions:
        return print_kernel(rest, module)
    names, written = Names(), written_buffers(rest)
    tensors = {b: names.take(b.name) for b in rest.params if isinstance(b, Buffer)}
    sizes = {v: names.take(v.name) for v in sizes_of(rest)}
    by_name = {v.name: n for v, n in sizes.items()}  # a version lacks the sizes that are constants in it
    e = ExprPrinter(rest.name, module.prelude)
    e.env = dict(sizes)
    details: list[str] = []
    for k, (condition, version) in enumerate([*versions, (None, rest)]):
        kernel = print_kernel(version, module, f"_v{k}")
        details.append(kernel.detail)
        count = sum([isinstance(p, Buffer) for p in version.params])  # versions without index checks take no report
        given = ", ".join([*[*tensors.values()][:count], *[by_name[v.name] for v in sizes_of(version)]])
        text = f"return {kernel.name}({given});" if kernel.refuses else f"{{ {kernel.name}({given}); return 0; }}"
        if condition is None:
            e.line(text.strip("{} ") if kernel.refuses else f"{kernel.name}({given});")
            if not kernel.refuses:
                e.line("return 0;")
        else:
            e.begin(condition)
            e.line(f"if ({e.value(condition)}) {text}")
    name = f"{rest.name}_kernel"
    params = [*[pointer(b, n, b in written) for b, n in tensors.items()], *[f"int64_t {n}" for n in sizes.values()]]
    declaration = f"{'' if module.exported else 'static '}int64_t {name}({', '.join(params)})"
    module.functions.append("\n".join([f"{declaration} {{", *e.lines, "}"]))
    return Kernel(name, declaration, True, next((d for d in details if d), ""))
