"""Lower each primitive function to a TIR function, so that graph functions contain only calls of functions.

The tensor expressions of the operators of a group are composed, so a fused group is one PrimFunc with a block for each stage.  The search
decides how stages are scheduled (inlined, or computed at the register tile).
"""

from __future__ import annotations

from typing import Any

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.instantiate import Instance
from tunesmith.graph.ir.node import Call, Constant, Operand
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.graph.passes.fuse_operators import fuse_operators
from tunesmith.graph.passes.store_rows import COPIES_ROW, with_stores
from tunesmith.ir.expr import Expr, const
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Var, poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import InternalError
from tunesmith.support.unique_names import unique_names


def legalise(mod: IRModule) -> IRModule:
    """Lower all primitive functions to PrimFuncs of the same name; each call that is not fused gets its own PrimFunc.

    The parameters of a PrimFunc are the operands, the results, and the sizes of the primitive function, in this order.  Its attribute
    `constants` lists the operands that are constants in its calls.
    """
    alone = fuse_operators(mod, most=1)
    lowered = alone.update({name: prim_func(f) for name, f in alone.items() if isinstance(f, GraphFunc) and f.is_primitive})
    return with_stores(lowered)


def prim_func(func: GraphFunc) -> PrimFunc:
    """Lower a graph function of operator calls to a TIR function, whose sizes have different names."""
    func = _with_size_names(func)
    inputs = [te.placeholder(p.type.shape, p.type.dtype, p.name) for p in func.params]
    env: dict[Operand, Tensor] = dict(zip(func.params, inputs, strict=True))
    for b in func.body.bindings:
        call = b.operation
        if not isinstance(call, Call):
            raise InternalError(f"the primitive function {func.name} contains a {type(call).__name__}, only operator calls can be lowered")
        args = [_Literal(a) if isinstance(a, Constant) else env[a] for a in call.args]
        env.update(zip(b.results, GRAPH_OPERATORS.get(call.operator).apply(args, call.attrs), strict=True))
    made = te.create_prim_func([*inputs, *[env[r] for r in func.results]], func.name)
    buffers = made.params[: len(inputs) + len(func.results)]
    constants = [buffers[int(i)].name for i in (func.attr("constants") or "").split()]
    attrs = [("constants", " ".join(constants))] if constants else []
    if any(isinstance(b.operation, Call) and b.operation.operator == "row" and func.sizes for b in func.body.bindings):
        attrs.append((COPIES_ROW, "1"))
    return made.with_(params=(*buffers, *func.sizes), attrs=tuple(attrs))


def _with_size_names(func: GraphFunc) -> GraphFunc:
    """The function with new names for sizes of one name, such as two that are read from tensors: versions for sizes go by names."""
    names = unique_names([v.name for v in func.sizes])
    renamed = {v: poly(Var(n)) for v, n in zip(func.sizes, names, strict=True) if v.name != n}
    if not renamed:
        return func
    copy = Instance({}, renamed)
    return func.with_(params=tuple([copy.value(p) for p in func.params]), body=copy.region(func.body))


class _Literal(Tensor):
    """A tensor of one element; indexing it gives the number."""

    __slots__ = ("number",)

    def __init__(self, constant: Constant) -> None:
        super().__init__(constant.name, constant.type.shape, constant.type.dtype)
        self.number = const(constant.data.reshape(()).item(), constant.type.dtype)

    def __getitem__(self, indices: Any) -> Expr:  # type: ignore[override]
        return self.number
