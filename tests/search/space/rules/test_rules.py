"""Test the CPU rules: the sketches of each operator (golden), serial variants, constraints, error messages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import pytest

from tunesmith import te
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.stmt import For
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.pipelines import CPU
from tunesmith.ops.workload import workload
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space import rules_table as space_rules
from tunesmith.search.space.rules import contraction, fallback
from tunesmith.search.space.rules_table import SketchWarning, find_rules, generate, rules_of
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


@pytest.mark.parametrize(("k", "is_blocked"), [(128, True), (129, False), (136, False), (150, False), (151, True), (300, True)])
def test_reductions_without_a_fitting_block_have_no_blocked_sketch(k: int, is_blocked: bool) -> None:
    space = generate(workload(f"matmul(m=96,n=200,k={k})").func, TARGET)
    assert any("blocked" in s.name for s in space.sketches) == is_blocked
    assert not space.missing


def test_an_operand_that_is_read_twice_is_packed_once() -> None:
    """Squared distances of rows: (x - y) * (x - y)."""
    x, y, k = te.placeholder((60, 20), name="x"), te.placeholder((50, 20), name="y"), te.reduce_axis(20, "k")
    d = te.compute((60, 50), lambda i, j: te.sum((x[i, k] - y[j, k]) * (x[i, k] - y[j, k]), axis=k), "D")
    names = [s.name for s in generate(te.create_prim_func([x, y, d]), TARGET).sketches]
    assert len(set(names)) == len(names) and any("pack(y)" in name for name in names)


SMALL = (
    "matmul(m=16,n=16,k=16)",
    "conv2d(n=1,h=4,w=4,ci=8,co=8,kh=3,kw=3,pad=1)",
    "softmax(m=4,n=3)",
    "sum(shape=40x50,axis=1)",
    "relu(shape=100)",
)


@pytest.mark.parametrize("text", SMALL)
def test_small_work_has_serial_sketches(text: str) -> None:
    """Each parallel sketch has a serial variant with the name suffix `serial`."""
    sketches = generate(workload(text).func, TARGET).sketches
    threads = {s.name: any(type(n) is For and n.kind == "parallel" for n in walk(s.func.body)) for s in sketches}
    assert {f"{name} serial" for name, several in threads.items() if several} == {name for name, several in threads.items() if not several}


def test_large_work_has_no_serial_sketches() -> None:
    assert not [s.name for s in generate(workload("matmul(m=512,n=512,k=512)").func, TARGET).sketches if "serial" in s.name]
    assert [name for name, _ in fallback.sketches(workload("softmax(m=4,n=3)").func, TARGET)] == ["fallback", "fallback serial"]
    assert [name for name, _ in fallback.sketches(workload("softmax(m=4000,n=3000)").func, TARGET)] == ["fallback"]


def test_a_function_without_matching_rule_is_rejected() -> None:
    with pytest.raises(BuildError, match=r"^rules=\[\] makes no schedule for matmul that applies\. Change the rule"):
        generate(workload("matmul(m=8,n=8,k=8)").func, TARGET, rules=[])


def test_rules_by_name() -> None:
    assert find_rules(
        ["contraction", "dot_products", "tile_products", "strassen", "winograd", "rows", "reductions", "pointwise"]
    ) == rules_of(TARGET)
    assert find_rules([rules_of(TARGET)[0]]) == rules_of(TARGET)[:1] and find_rules(["fallback"]) == (fallback.sketches,)
    with pytest.raises(UserError, match="unknown search rule 'row'. Did you mean 'rows'"):
        find_rules(["row"])


@pytest.mark.parametrize("target", ["llvm -num-cores=2", "cuda -arch=sm_90", "opencl"])
def test_a_scalar_function_has_one_serial_sketch(target: str) -> None:
    a = te.placeholder((), name="a")
    func = te.create_prim_func([a, te.compute((), lambda: a[()] + 1.0, "Y")], "scalar")
    (sketch,) = generate(func, Target(target)).sketches
    assert "parallel" not in str(sketch.func)


@pytest.mark.parametrize("groups", [2, 4])
def test_tiles_that_cannot_be_vectorised_stay_within_the_code_budget(groups: int) -> None:
    """In a group with few channels, the lanes of a vector read different input channels, so each becomes a separate statement."""
    func = workload(f"conv2d(n=1,h=8,w=8,ci=8,co={4 * groups},kh=3,kw=3,pad=1,groups={groups})").func
    sketches = generate(func, TARGET).sketches
    labels = [{c.label for c in s.constraints} for s in sketches]
    assert all("code-budget" in found for found in labels if found)
    rng = np.random.default_rng(0)
    for s in sketches:
        for row in s.space.sample(3, rng):
            CPU(s.concretize(tuple([int(x) for x in row])), TARGET)


@pytest.mark.parametrize(("n", "channels", "groups", "kernel"), [(1, 16, 2, 1), (2, 16, 2, 1), (2, 16, 4, 3), (4, 32, 4, 1), (4, 32, 2, 3)])
def test_grouped_convolutions_of_any_batch_have_rows(n: int, channels: int, groups: int, kernel: int) -> None:
    """Sketches with an unrolled window and a tile that cannot be vectorised have no admissible size and are skipped."""
    func = workload(f"conv2d(n={n},h=20,w=20,ci={channels},co={channels},kh={kernel},kw={kernel},groups={groups})").func
    space = generate(func, TARGET)
    rng = np.random.default_rng(0)
    for s in space.sketches:
        rows = s.space.sample(2, rng)
        assert s.space.admissible(rows).all()
        CPU(s.concretize(tuple(rows[0].tolist())), TARGET)
    assert any("window" not in s.name for s in space.sketches)
    names = {s.name for s in space.sketches}
    assert all(line.partition(": ")[0] not in names and "code-budget" in line for line in space.left_out)


def never(s: Schedule) -> None:
    """A schedule that applies but has no admissible sizes."""
    (loop, *_) = s.get_loops(s.get_block(s.blocks()[0].name))
    (tile,) = s.sample_tile(loop, 2, "t", [(2, 4)])
    s.require("le0", 8 - tile.expr, "never", "no size is enough")


def test_a_sketch_without_rows_is_skipped_and_the_fallback_used(monkeypatch: pytest.MonkeyPatch) -> None:
    func = workload("relu(shape=30x50)").func
    monkeypatch.setattr(space_rules, "rules_of", lambda target: (lambda func, target: [("empty", never)],))
    space = generate(func, TARGET)
    assert {s.name for s in space.sketches} == {"derived", "derived serial"}
    (line,) = space.left_out
    assert line.startswith("empty: ") and "never" in line
    with pytest.raises(BuildError, match="makes no schedule for relu that applies .*empty: .*never"):
        generate(func, TARGET, [lambda func, target: [("empty", never)]])


def refused(func: PrimFunc, target: Target) -> list[tuple[str, Callable[[Schedule], None]]]:
    """A rule with a schedule that a primitive refuses, and one that applies."""
    return [("broken", lambda s: s.vectorize(s.get_loops(s.get_block("no such block"))[0])), *fallback.sketches(func, target)]


def test_a_refused_schedule_is_reported_with_its_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    func = workload("relu(shape=30x50)").func
    with pytest.warns(
        SketchWarning, match="the rule .*:refused has a schedule for relu that is refused, 'broken': .*no such block"
    ) as found:
        space = generate(func, TARGET, [refused])
    assert len(found) == len(space.refused) == 1 and found[0].filename == __file__
    assert "\n" not in space.refused[0], "the reason without the program"
    assert {s.name for s in space.sketches} <= {"fallback", "fallback serial"} and space.sketches
    monkeypatch.setattr(space_rules, "rules_of", lambda target: (refused,))
    assert generate(func, TARGET).refused == space.refused, "the rules of a backend: a line in the space, and no warning"
    with pytest.warns(SketchWarning), pytest.raises(BuildError, match="makes no schedule for relu that applies .*no such block"):
        generate(func, TARGET, [lambda func, target: refused(func, target)[:1]])


def test_vectorised_tiles_have_no_code_budget() -> None:
    for text in WORKLOADS[:7]:
        assert not any(c.label == "code-budget" for s in generate(workload(text).func, TARGET).sketches for c in s.constraints)


def test_rules_accept_indices_that_depend_on_dynamic_shapes() -> None:
    f = parse("""
@T.prim_func
def f(A: T.Buffer((8, n), "float32"), B: T.Buffer((n, 8), "float32"), C: T.Buffer((8, 8), "float32"), n: T.int64):
    for i, j, k in T.grid(8, 8, n):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, n - 1 - vk] * B[vk, vj]
""")
    assert isinstance(f, PrimFunc)
    tried = 0
    for _, schedule in contraction.sketches(f, Target("llvm")):
        with contextlib.suppress(UserError):  # the schedule may be refused
            schedule(Schedule(f))
            tried += 1
    assert tried


@pytest.mark.parametrize("kernel", [3, 4])
def test_channels_of_a_transposed_convolution_in_nchw_are_a_vector_axis(kernel: int) -> None:
    """The filter's rows depend on the image's only by remainders, so that it is packed once for all pixels."""
    func = workload(f"conv2d_transpose(n=1,h=5,w=5,ci=4,co=32,kh={kernel},kw={kernel},stride=2,pad=1,layout=NCHW)").func
    names = [s.name for s in generate(func, TARGET).sketches]
    assert [n for n in names if "across" in n and "pack(W const)" in n]
    per_batch = [s.name for s in generate(workload("batch_matmul(b=4,m=16,n=16,k=16)").func, TARGET).sketches]
    assert not [n for n in per_batch if "across" in n]


@pytest.mark.parametrize(
    ("text", "has_rows"),
    [
        ("matmul(m=512,n=1,k=4099)", True),
        ("batch_matmul(b=4,m=64,n=1,k=96)", True),
        ("matmul(m=512,n=2,k=4099)", False),
        ("matmul(m=1,n=512,k=4099)", False),
    ],
)
def test_products_of_a_matrix_and_a_vector_reduce_rows(text: str, has_rows: bool) -> None:
    """Packing a matrix that is read once gains nothing, so its rows are reduced along memory, besides the tiles of other products."""
    names = [name for name, _ in space_rules.built_in(workload(text).func, Target("llvm -mcpu=x86-64-v3 -num-cores=2"))]
    assert ("reduction of rows" in names) is has_rows and any(name.startswith("tile") for name in names)


def test_a_dense_layer_with_one_output_and_a_bias_has_rows() -> None:
    x, w, c = te.placeholder((64, 99), name="x"), te.placeholder((1, 99), name="w"), te.placeholder((1,), name="c")
    k = te.reduce_axis(99, "k")
    product = te.compute((64, 1), lambda i, j: te.sum(x[i, k] * w[j, k], axis=k), "P")
    func = te.create_prim_func([x, w, c, te.compute((64, 1), lambda i, j: product[i, j] + c[j], "Y")], "dense")
    names = [name for name, _ in space_rules.built_in(func, Target("llvm -mcpu=x86-64-v3 -num-cores=2"))]
    assert "rows" in names and any(name.startswith("tile") for name in names)
