"""A pass over graphs, and a pass over TIR programs."""

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Call, all_bindings
from tunesmith.graph.ir.rewrite import Rewriter
from tunesmith.ir.stmt import For
from tunesmith.ir.visit import transform, walk, with_body
from tunesmith.lower.pass_infra import function_pass, module_pass


class Recognise(Rewriter):
    def __init__(self, func):
        super().__init__()
        self.made = {v: b.operation for b in all_bindings(func.body) for v in b.results}

    def visit(self, operation, build):
        if not isinstance(operation, Call) or operation.operator != "square":
            return None
        before = self.made.get(operation.args[0])
        if not isinstance(before, Call) or before.operator != "relu":
            return None
        return [build.squared_relu(self.operand(before.args[0]))]


@module_pass
def recognise_squared_relu(mod):
    """square(relu(x)) becomes squared_relu(x); dead_code drops the relu if nobody else wants it."""
    return mod.update({name: Recognise(f)(f) for name, f in mod.items() if isinstance(f, GraphFunc)})


@function_pass(requires="FLAT")
def unroll_short_loops(func, target, *, most: int = 4):
    """Mark innermost loops of up to `most` rounds as unrolled; the later pass unroll_loops replaces them."""

    def on_for(n, recurse):
        innermost = not any(isinstance(below, For) for below in walk(n.body))
        short = n.kind == "serial" and n.extent.const is not None and n.extent.const <= most
        return n.with_(kind="unrolled") if innermost and short else n.map_children(recurse)

    return with_body(func, transform(func.body, {For: on_for}))
