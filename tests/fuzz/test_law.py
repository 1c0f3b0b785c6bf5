"""Fuzz the law of docs/design/001-parametric.md: concretizing a sketch with a configuration equals applying its trace with it.

Tested for all operators, end to end and step by step, with configurations biased to 1, extents, extents + 1 and primes.  Some are also
compiled, run and compared with numpy, since both sides of the law could have the same error.  Three ablations of the rules behind the
law must be detected, to show that the test is sensitive (a fourth, of the normal form, is in test_poly.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build
from tunesmith.ir import structural
from tunesmith.ir.analysis import access_regions
from tunesmith.ir.arith.interval import bounds
from tunesmith.ir.poly import Poly, minimum
from tunesmith.ir.stmt import Block, For, nest
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify
from tunesmith.ir.visit import transform, walk
from tunesmith.measure.evaluator.correctness import mismatch, tolerance_of
from tunesmith.runtime.module import Module
from tunesmith.schedule import placement
from tunesmith.schedule.primitives import split as split_module
from tunesmith.schedule.schedule import concretize, replay
from tunesmith.support.seeds import stream

END_TO_END = 20
"""Configurations for each of the 19 workloads: 380 pairs."""
STEPWISE = 2
COMPILED = 4
WALKS = 6
"""Random walks over all primitives per workload."""


@cache
def cases_of(schedules: ModuleType, text: str) -> list[Any]:
    """The sketches of the rules, which several tests share."""
    return list(schedules.rule_cases(text))


def pairs(schedules: ModuleType, text: str, count: int, seed: int, fresh: bool = False) -> Iterator[tuple[Any, tuple[int, ...]]]:
    """(case, configuration) pairs, spread evenly over the sketches of rules and random walks; `fresh` makes the sketches again."""
    made = schedules.rule_cases(text) if fresh else cases_of(schedules, text)
    cases = made + [schedules.walk_case(text, seed * 100 + k) for k in range(WALKS)]
    rng = stream(seed, "law", text)
    each = -(-count // len(cases))
    for case in cases:
        for row in schedules.biased_rows(case.sketch, case.workload.func, each, rng):
            yield case, row


def difference(case: Any, row: tuple[int, ...]) -> str | None:
    """The difference between the two sides of the law, or None."""
    sketch = case.sketch
    return structural.difference(sketch.concretize(row), replay(sketch.trace_of(row), case.workload.func).func)


@pytest.fixture(params=range(19))
def text(request: pytest.FixtureRequest, schedules: ModuleType) -> str:
    return str(schedules.WORKLOADS[request.param])


def test_end_to_end(text: str, schedules: ModuleType) -> None:
    tried = 0
    for case, row in pairs(schedules, text, END_TO_END, 1):
        assert (found := difference(case, row)) is None, f"{case.name}, row {row}: {found}"
        tried += 1
    assert tried >= END_TO_END // 2


def test_step_by_step(text: str, schedules: ModuleType) -> None:
    """Each primitive commutes with substitution of Params.  Every third step of a case is compared."""
    for n, (case, row) in enumerate(pairs(schedules, text, STEPWISE, 2)):
        trace = case.sketch.trace_of(row)
        symbolic, after = schedules.programs_of(trace, case.workload.func, parametric=True)
        _, concrete = schedules.programs_of(trace, case.workload.func, parametric=False)
        values = dict(zip(symbolic.params, row, strict=True))
        for i, (a, b) in enumerate(zip(after, concrete, strict=True)):
            if (i - n) % 3:
                continue
            found = structural.difference(concretize(a, values), b)
            assert found is None, f"{case.name}, row {row}, step {i} ({trace.instructions[i].kind}): {found}"
        verify(concrete[-1])


def test_compiled_programs_are_right(text: str, schedules: ModuleType) -> None:
    target = Target("llvm").with_attributes(num_cores=2)
    w = schedules.named(text)
    inputs = schedules.integers(w, 1)
    expected = w.reference(inputs)
    for n, (case, row) in enumerate(pairs(schedules, text, COMPILED, 3)):
        if n == COMPILED:
            break
        artifact = build(case.sketch.concretize(row), target)
        outputs = [np.full(r.shape, np.nan, r.dtype) for r in expected]
        Module.from_object(artifact.data)[artifact.functions[0]](*inputs, *outputs)
        for actual, reference in zip(outputs, expected, strict=True):
            found = mismatch(actual, reference, tolerance_of(w.func))
            assert found is None, f"{case.name}, row {row}: {found}"


# ---- ablations: without one of the rules the law must be violated -----------------------------------------------------


def violations(schedules: ModuleType) -> Iterator[str]:
    """Configurations of a few workloads that violate the law, including crashes."""
    for text in ("matmul(m=17,n=19,k=5)", "conv2d(n=1,h=5,w=6,ci=3,co=5,kh=3,kw=3,pad=1,stride=2,bias=1,relu=1)", "softmax(m=5,n=13)"):
        for case, row in pairs(schedules, text, END_TO_END, 4, fresh=True):
            try:
                found = difference(case, row)
            except Exception as error:
                found = repr(error)
            if found is not None:
                yield f"{case.name}, row {row}: {found}"


def test_no_violations_without_ablation(schedules: ModuleType) -> None:
    assert list(violations(schedules)) == []


def test_ablation_of_unconditional_guards(schedules: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Split drops provable guards, and numbers allow more proofs than Params."""
    original = split_module.split.function

    def proving(s: Any, loop: Any, factors: Any) -> Any:
        out = original(s, loop, factors)
        ranges = {n.var: (0, n.extent.const - 1) for n in walk(s.func.body) if type(n) is For and n.extent.const is not None}

        def holds(p: Poly) -> bool:
            return all(v in ranges for v in p.vars) and bounds(p, ranges)[1] < 0

        def drop(b: Block, _: Any) -> Block:
            return b.with_(predicate=tuple([p for p in b.predicate if not holds(p)]))

        s.set_body(transform(s.func.body, {Block: drop}))
        return out

    monkeypatch.setattr(split_module.split, "function", proving)
    assert any(violations(schedules))


def test_ablation_of_unit_loops(schedules: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """compute_at omits loops of extent 1, which cannot be identified with Params."""
    monkeypatch.setattr(placement, "nest", lambda loops, body: nest([(v, e) for v, e in loops if e != 1], body))
    assert any(violations(schedules))


def test_ablation_of_unclipped_regions(schedules: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = access_regions.union

    def clipped(boxes: list[Any]) -> Any:
        # Clip where provable; numbers allow more proofs than Params.
        return tuple([(low, minimum(extent, 3) if (extent - 3).const is not None else extent) for low, extent in plain(boxes)])

    for user in ("compute_at", "reverse_compute_at"):
        monkeypatch.setattr(f"tunesmith.schedule.primitives.{user}.union", clipped, raising=False)
    assert any(violations(schedules))
