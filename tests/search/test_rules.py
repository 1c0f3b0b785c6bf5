"""Rules: which sketches each operator gets (golden), and that every one of them is complete and right."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunesmith import te
from tunesmith.ir.target import Target
from tunesmith.ops.workload import workload
from tunesmith.search.rules import fallback
from tunesmith.search.space_rules import CPU_RULES, find_rules, generate
from tunesmith.support.errors import BuildError, UserError

TARGET = Target("llvm -mcpu=znver5 -num-cores=2")
WORKLOADS = (
    "matmul(m=100,n=130,k=300)",
    "matmul(m=20,n=40,k=30,ta=1)",
    "batch_matmul(b=3,m=20,n=40,k=30,tb=1)",
    "dense(m=20,n=40,k=30,activation=gelu)",
    "conv2d(n=1,h=14,w=14,ci=16,co=32,kh=3,kw=3,pad=1,bias=1,relu=1)",
    "conv2d(n=1,h=14,w=14,ci=16,co=32,kh=1,kw=1,stride=2,layout=NCHW)",
    "conv2d(n=1,h=9,w=8,ci=20,co=20,kh=3,kw=3,pad=1,groups=20)",
    "softmax(m=37,n=100)",
    "layer_norm(m=37,n=100)",
    "sum(shape=40x50,axis=1)",
    "sum(shape=40x50,axis=0)",
    "max(shape=40x50)",
    "relu(shape=30x50)",
)


def test_sketches_of_the_operators(assert_golden: Callable[..., None]) -> None:
    lines = []
    for text in WORKLOADS:
        lines.append(text)
        lines += [f"  {s.name}: {', '.join(p.name for p in s.params)}" for s in generate(workload(text).func, TARGET).sketches]
    assert_golden("\n".join(lines) + "\n")


@pytest.mark.parametrize("text", WORKLOADS)
def test_names_are_unique_and_the_space_is_not_trivial(text: str) -> None:
    space = generate(workload(text).func, TARGET)
    names = [s.name for s in space.sketches]
    assert len(set(names)) == len(names)
    assert space.size() > 3


def test_a_function_no_rule_knows_is_refused_when_rules_are_given() -> None:
    with pytest.raises(BuildError, match="no sketch rule applies to matmul"):
        generate(workload("matmul(m=8,n=8,k=8)").func, TARGET, rules=[])


def test_rules_by_name() -> None:
    assert find_rules(["contraction", "rows", "reductions", "pointwise"]) == CPU_RULES
    assert find_rules([CPU_RULES[0]]) == CPU_RULES[:1] and find_rules(["fallback"]) == (fallback.sketches,)
    with pytest.raises(UserError, match="unknown search rule 'row'. Did you mean 'rows'"):
        find_rules(["row"])


@pytest.mark.parametrize("target", ["llvm -num-cores=2", "cuda -arch=sm_90", "opencl"])
def test_a_function_of_scalars_has_one_schedule_without_threads(target: str) -> None:
    a = te.placeholder((), name="a")
    func = te.create_prim_func([a, te.compute((), lambda: a[()] + 1.0, "Y")], "scalar")
    (sketch,) = generate(func, Target(target)).sketches
    assert "parallel" not in str(sketch.func)
