"""Move chains of calls that an external code generator supports into functions that it compiles.

Source: TVM's FuseOpsByPattern and MergeComposite (BYOC).
"""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, Region, with_branches
from tunesmith.graph.ir.outline import Outlined
from tunesmith.graph.ir.pattern import Pattern, chains
from tunesmith.graph.offload.external_codegen import Codegen, ExternalCodegen, find_codegen
from tunesmith.ir.function import IRModule
from tunesmith.support.errors import UserError


def partition(mod: IRModule, codegen: Codegen, patterns: Sequence[Pattern] | None = None) -> IRModule:
    """Outline chains that match a pattern and that the code generator supports, as functions with the attribute `codegen`.

    The call of the function replaces the last call of the chain.  Its operands are all operands of the chain, including constants; equal
    chains share one function.  Calls with dynamic shapes are not moved; primitive functions and functions of other code generators are
    unchanged.

    Args:
        mod: the module.
        codegen: a name in `EXTERNAL_CODEGENS`, or a code generator.
        patterns: patterns, each tried on the whole function in this order; by default those of the code generator.
    Raises:
        UserError: the code generator does not exist, or a pattern contains an operator that does not exist.
    """
    generator = find_codegen(codegen)
    if not generator.name.isidentifier():
        raise UserError(f"{generator.name!r} is not a valid name of an external codegen: use letters, digits and underscores")
    chosen = generator.patterns if patterns is None else tuple(patterns)
    made = Outlined(mod)
    functions = {}
    for name, f in mod.items():
        if isinstance(f, GraphFunc) and not f.is_primitive and f.codegen is None:
            body = f.body
            for pattern in chosen:
                body = _region(body, pattern, generator, made)
            functions[name] = f if body is f.body else f.with_(body=body)
    return mod.update({**functions, **made.functions})


def _region(region: Region, pattern: Pattern, generator: ExternalCodegen, made: Outlined) -> Region:
    """Replace the chains of a region by calls; returns the same object if there are none."""
    calls: dict[int, Binding] = {}
    taken: set[int] = set()
    for chain in chains(region, pattern):
        members = [region.bindings[i] for i in chain]
        if taken.isdisjoint(chain) and _is_static(members) and pattern.check(members) and generator.supports(members):
            calls[chain[-1]] = made.call(members, f"{generator.name}_{pattern.name}", ("codegen", generator.name))
            taken.update(chain)
    out: list[Binding] = []
    for i, b in enumerate(region.bindings):
        if i in calls:
            out.append(calls[i])
        elif i not in taken:
            out.append(with_branches(b, lambda r: _region(r, pattern, generator, made)))
    same = not calls and all(a is b for a, b in zip(out, region.bindings, strict=True))
    return region if same else Region(tuple(out), region.results)


def _is_static(members: Sequence[Binding]) -> bool:
    return all(t.type.is_static for b in members for t in (*b.operation.args, *b.results))
