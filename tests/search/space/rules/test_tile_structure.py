"""The levels of a contraction's nest follow the target's `tile_structure`, and its results are right for each structure."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

import tunesmith
from tunesmith.driver.compiled import CompiledModule
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.target.target import Target
from tunesmith.ops.workload import workload
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules import contraction
from tunesmith.search.space.rules_table import generate
from tunesmith.search.space.sketch import Sketch
from tunesmith.support.errors import BuildError, TargetError
from tunesmith.support.seeds import stream

DEFAULT = Target("llvm -mcpu=x86-64-v3 -num-cores=2")
STRUCTURES = ("SSRS", "SSSSRS", "SSRSRS", "SRSSRS")
MATMUL = "matmul(m=50,n=70,k=150)"
CONV = "conv2d(n=1,h=9,w=10,ci=24,co=20,kh=3,kw=3,pad=1)"


def of(structure: str) -> Target:
    return DEFAULT.with_attributes(tile_structure=structure)


def levels(sketch: Sketch) -> str:
    """S or R for each loop around the accumulating block that has more than one iteration in some configuration, equal neighbours once."""
    s = Schedule(sketch.func)
    main = max(s.blocks(), key=lambda b: len(s.get_loops(s.get_block(b.name))))
    reduced = {v for i, e in zip(main.iters, main.bindings, strict=True) if i.kind == "R" for v in e.vars}
    kinds = ["R" if s.loop(x).var in reduced else "S" for x in s.get_loops(s.get_block(main.name))]
    return "".join([k for n, k in enumerate(kinds) if n == 0 or kinds[n - 1] != k])


@pytest.mark.parametrize("text", [MATMUL, CONV, "dense(m=20,n=40,k=300,activation=gelu)"])
def test_the_default_is_the_structure_without_the_attribute(text: str) -> None:
    assert DEFAULT.tile_structure == "SSSRS" and of("SSSRS") == DEFAULT
    usual, named = generate(workload(text).func, DEFAULT), generate(workload(text).func, of("SSSRS"))
    assert [(s.name, s.trace.to_json()) for s in usual.sketches] == [(s.name, s.trace.to_json()) for s in named.sketches]


def built(sketch: Sketch) -> CompiledModule:
    """The program of the first of some random rows whose unrolled code is not too large."""
    for row in sketch.space.sample(8, stream(0, sketch.name)):
        with suppress(BuildError):
            return tunesmith.build(sketch.concretize(tuple(row.tolist())), "llvm -num-cores=2")
    raise AssertionError(f"no row of {sketch.name} can be built")


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("text", [MATMUL, CONV])
def test_each_structure_computes_right_results(text: str, structure: str) -> None:
    w = workload(text)
    assert w.reference is not None
    space = generate(w.func, of(structure), rules=[contraction.sketches])
    assert not space.refused
    shapes = [[e.const or 0 for e in p.shape] for p in w.func.params if isinstance(p, Buffer)]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(p, dtype=np.float32) for p in shapes]
    (expected,) = w.reference(arrays[:-1])
    tried = [s for s in space.sketches if "serial" not in s.name]
    for sketch in {s.name: s for s in tried[:4] + tried[-2:]}.values():
        arrays[-1].fill(np.nan)
        built(sketch)(*arrays)
        np.testing.assert_allclose(arrays[-1], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_matmul_has_the_levels_of_the_structure(structure: str) -> None:
    for sketch in generate(workload(MATMUL).func, of(structure)).sketches:
        splits = sum(1 for p in sketch.params if p.name.startswith("i"))
        assert splits == structure.count("S") - 1, "one size for each level but the outermost"
        assert ("blocked" in sketch.name) == (levels(sketch) == "SRSRS")
        if structure.count("R") == 2:
            assert "blocked" in sketch.name


def test_places_of_the_outer_reduction_differ() -> None:
    early, late = [generate(workload(MATMUL).func, of(x)).sketches[0] for x in ("SRSSRS", "SSRSRS")]
    assert len(early.params) == len(late.params) and early.trace.to_json() != late.trace.to_json()


def test_an_epilogue_keeps_one_reduction_level() -> None:
    func = workload("dense(m=20,n=40,k=300,activation=gelu)").func
    assert [s.name for s in generate(func, of("SSRSRS")).sketches] == [s.name for s in generate(func, DEFAULT).sketches]


@pytest.mark.parametrize("text", ["", "S", "SRS", "SSS", "SSSR", "RSSRS", "SSRRS", "SRSRSRS", "SSSSSSRS", "sssrs", "SSXRS"])
def test_other_structures_are_refused(text: str) -> None:
    with pytest.raises(TargetError, match=f"attribute 'tile_structure' .*expected levels of loops .*such as SSSRS or SSRSRS, got '{text}'"):
        of(text)


def test_gpus_have_no_tile_structure() -> None:
    with pytest.raises(TargetError, match="attribute 'tile_structure' belongs to llvm, c targets, not to cuda"):
        Target("cuda -model=h200").with_attributes(tile_structure="SSSRS")


def test_the_structure_is_no_part_of_the_identity() -> None:
    assert of("SSRS").key == DEFAULT.key and Target("llvm -mcpu=x86-64-v3 -num-cores=2 -tile-structure=SSRS").tile_structure == "SSRS"
    assert Target.from_json(of("SSRS").to_json(facts=True)).tile_structure == "SSRS"
