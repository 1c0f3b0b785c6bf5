"""Infer the types of all results again from the types of the parameters, ignoring the stored types."""

from __future__ import annotations

from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, Call, Value
from tunesmith.graph.ir.rewrite import Rewriter
from tunesmith.graph.ir.verify import infer
from tunesmith.ir.function import IRModule


def infer_types(mod: IRModule) -> IRModule:
    """Infer the result types of operators again, in order; calls of functions keep their result types.

    Use it after a change of parameter types or call attributes.

    Raises:
        ScriptError: an operator does not accept its operands any more.
    """
    return mod.update({name: _Infer()(f) for name, f in mod.items() if isinstance(f, GraphFunc)})


class _Infer(Rewriter):
    def _binding(self, b: Binding, build: RegionBuilder) -> None:
        call = b.operation
        if isinstance(call, Call):
            args = self._operands(call.args)
            types = infer(call.operator, [a.type for a in args], call.attrs)
            if list(types) != [v.type for v in b.results]:
                made = tuple([Value(v.name, t) for v, t in zip(b.results, types, strict=True)])
                build.bindings.append(Binding(made, Call(call.operator, args, call.attrs)))
                self._new.update(zip(b.results, made, strict=True))
                return
        super()._binding(b, build)
