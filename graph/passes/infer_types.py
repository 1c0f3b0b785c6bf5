"""infer_types: the types of all results follow from those of the parameters, whatever is stored."""

from __future__ import annotations

from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, Call, Value
from tunesmith.graph.ir.rewrite import Rewriter
from tunesmith.graph.ir.verify import infer
from tunesmith.ir.function import IRModule


def infer_types(mod: IRModule) -> IRModule:
    """Types of results of operators are inferred anew, in order; calls of functions keep theirs.

    For passes and people that change the types of parameters, or the attributes of calls.

    Raises:
        ScriptError: an operator does not take its operands any more.
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
