"""Check that GPU sketches accept exactly the rows that lowering accepts; see also `experiments/gpu_constraints`."""

from __future__ import annotations

import pytest

from tunesmith.ir.target.target import Target
from tunesmith.ops.workload import workload
from tunesmith.search.space.rules_table import generate
from tunesmith.support.seeds import stream
from tunesmith.testing.gpu_constraints import compare_constraints, domain_rows

ROWS = 12
"""Rows per sketch."""


@pytest.mark.parametrize("target", [Target("nvidia/l4"), Target("opencl")], ids=["l4", "opencl"])
@pytest.mark.parametrize("text", ["matmul(m=100,n=200,k=300)", "conv2d(n=1,h=28,w=28,ci=64,co=64,kh=3,kw=3,pad=1)", "softmax(m=64,n=1000)"])
def test_constraints_agree_with_lowering(text: str, target: Target) -> None:
    accepted = 0
    for sketch in generate(workload(text).func, target).sketches:
        found = compare_constraints(sketch, target, domain_rows(sketch, ROWS, stream(0, "constraints", text, sketch.name)))
        assert (list(found.wrongly_refused), list(found.wrongly_accepted)) == ([], [])
        assert found.both_accept + found.both_refuse == ROWS
        accepted += found.both_accept
    assert accepted
