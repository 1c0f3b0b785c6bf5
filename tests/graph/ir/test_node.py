"""Test that bindings with regions are rewritten only where a region changed."""

from __future__ import annotations

from types import SimpleNamespace

from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.node import If, Region, with_branches


def test_branches_are_rewritten_only_if_one_changes(graphs: SimpleNamespace) -> None:
    b = GraphBuilder("f")
    x, c = b.input("x", (2,)), b.input("c", (), "bool")
    y = b.branch(c, lambda r: r.probe_neg(x, name="z"), lambda r: x, name="y")
    branch = b.finish(y).body.bindings[-1]
    assert isinstance(branch.operation, If)
    assert with_branches(branch, lambda r: r) is branch
    changed = with_branches(branch, lambda r: Region((), (x,)) if r.bindings else r)
    assert isinstance(changed.operation, If) and changed.results == branch.results and changed.operation.condition is c
    assert changed.operation.then.bindings == () and changed.operation.otherwise is branch.operation.otherwise
    (call,) = branch.operation.then.bindings
    assert with_branches(call, lambda r: Region((), ())) is call
