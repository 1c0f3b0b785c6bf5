"""Test refusals common to all primitives (stale handles, unknown names), and that every precondition has a test.

The other refusals are in the neighbouring test_schedule_*.py, which `test_every_label_has_a_test` reads.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunesmith.ir.script.parser import parse
from tunesmith.schedule.primitive import PRIMITIVES
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import ScheduleError

On = Callable[[str], Schedule]
Refuse = Callable[..., None]


def loops(s: Schedule, block: str) -> list[Any]:
    """The loops around the block, outermost first."""
    return s.get_loops(s.get_block(block))


# ---- every label has a test ---------------------------------------------------------------------------------------------


def promised() -> set[tuple[str, str]]:
    """(primitive, label) of all `Requires:` lists."""
    out = set()
    for name, p in PRIMITIVES.items():
        part = (inspect.getdoc(p.function) or "").partition("Requires:")[2].partition("\nKeeps:")[0]
        out |= {(name, label) for label in re.findall(r"^    ([a-z-]+): ", part, re.MULTILINE)}
    return out


def covered() -> set[tuple[str, str]]:
    """(primitive, label) of all calls `refuse("primitive", "label", ...)`, and of the tables below."""
    out = {(name, "block-exists") for name in GONE_BLOCK} | {(name, "loop-exists") for name in GONE_LOOP}
    for path in Path(__file__).parent.glob("test_schedule_*.py"):
        for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "refuse":
                first = [a.value for a in n.args[:2] if isinstance(a, ast.Constant)]
                if len(first) == 2:
                    out.add((first[0], first[1]))
    return out


def test_every_label_has_a_test() -> None:
    assert not promised() - covered(), "labels of docstrings without a refusal: add one to a test_schedule_*.py"
    assert not covered() - promised(), "refusals that no docstring promises: name them in its Requires list"


# ---- stale handles -----------------------------------------------------------------------------------------------------

GONE_BLOCK: dict[str, Callable[[Schedule, Any, Any], object]] = {
    "get_loops": lambda s, b, x: s.get_loops(b),
    "get_producers": lambda s, b, x: s.get_producers(b),
    "get_consumers": lambda s, b, x: s.get_consumers(b),
    "cache_read": lambda s, b, x: s.cache_read(b, "A", "global"),
    "cache_write": lambda s, b, x: s.cache_write(b, "global"),
    "cache_reduction": lambda s, b, x: s.cache_reduction(b, x, "global"),
    "read_at": lambda s, b, x: s.read_at(x, b, "A", "global"),
    "write_at": lambda s, b, x: s.write_at(x, b, "B", "global"),
    "set_scope": lambda s, b, x: s.set_scope(b, "global"),
    "compute_at": lambda s, b, x: s.compute_at(b, x),
    "reverse_compute_at": lambda s, b, x: s.reverse_compute_at(b, x),
    "compute_inline": lambda s, b, x: s.compute_inline(b),
    "reverse_compute_inline": lambda s, b, x: s.reverse_compute_inline(b),
    "sample_compute_location": lambda s, b, x: s.sample_compute_location(b),
    "rolling_buffer": lambda s, b, x: s.rolling_buffer(b, "B"),
    "decompose_padding": lambda s, b, x: s.decompose_padding(b, x),
    "pad_einsum": lambda s, b, x: s.pad_einsum(b, [1, 4]),
    "winograd": lambda s, b, x: s.winograd(b, 2),
    "strassen": lambda s, b, x: s.strassen(b, [0, 1, 2]),
    "fission": lambda s, b, x: s.fission(x, b),
    "restrict_reduction": lambda s, b, x: s.restrict_reduction(b, 1),
    "decompose_reduction": lambda s, b, x: s.decompose_reduction(b, x),
    "annotate": lambda s, b, x: s.annotate(b, "prefetch", 4),
    "unannotate": lambda s, b, x: s.unannotate(b, "prefetch"),
    "reindex": lambda s, b, x: s.reindex(b, "A", "read"),
    "cache_index": lambda s, b, x: s.cache_index(b, "global"),
    "unsafe_set_dtype": lambda s, b, x: s.unsafe_set_dtype(b, "float16"),
    "storage_align": lambda s, b, x: s.storage_align(b, "B", 0, 8),
    "transform_block_layout": lambda s, b, x: s.transform_block_layout(b, [1, 0]),
    "transform_layout": lambda s, b, x: s.transform_layout(b, "B", [1, 0]),
}
"""Each primitive that takes a block, on a block that was inlined."""

GONE_LOOP: dict[str, Callable[[Schedule, Any, Any], object]] = {
    "get_child_blocks": lambda s, x, b: s.get_child_blocks(x),
    "sample_tile": lambda s, x, b: s.sample_tile(x, 2),
    "sample_perfect_tile": lambda s, x, b: s.sample_perfect_tile(x, 2),
    "split": lambda s, x, b: s.split(x, [None, 2]),
    "fuse": lambda s, x, b: s.fuse([s.get_loops(b)[0], x]),
    "fission": lambda s, x, b: s.fission(x, b),
    "loop_partition": lambda s, x, b: s.loop_partition(x, [2]),
    "reorder": lambda s, x, b: s.reorder([s.get_loops(b)[0], x]),
    "parallel": lambda s, x, b: s.parallel(x),
    "vectorize": lambda s, x, b: s.vectorize(x),
    "unroll": lambda s, x, b: s.unroll(x),
    "tensorize": lambda s, x, b: s.tensorize(x, "x86.vpdpbusd.512"),
    "compute_at": lambda s, x, b: s.compute_at(b, x),
    "reverse_compute_at": lambda s, x, b: s.reverse_compute_at(b, x),
    "decompose_padding": lambda s, x, b: s.decompose_padding(b, x),
    "decompose_reduction": lambda s, x, b: s.decompose_reduction(b, x),
    "cache_reduction": lambda s, x, b: s.cache_reduction(b, x, "global"),
    "read_at": lambda s, x, b: s.read_at(x, b, "A", "global"),
    "write_at": lambda s, x, b: s.write_at(x, b, "B", "global"),
    "rfactor": lambda s, x, b: s.rfactor(x),
    "annotate": lambda s, x, b: s.annotate(x, "prefetch", 4),
    "unannotate": lambda s, x, b: s.unannotate(x, "prefetch"),
}
"""Each primitive that takes a loop, on a loop that was split."""


@pytest.mark.parametrize("name", sorted(GONE_BLOCK))
def test_a_block_that_was_inlined(on: On, refuse: Refuse, name: str) -> None:
    s = on("chain")
    b = s.get_block("B")
    other = loops(s, "C")[0]
    s.compute_inline(b)
    refuse(name, "block-exists", "there is no block 'B'; the function has C, D", s, lambda: GONE_BLOCK[name](s, b, other))


@pytest.mark.parametrize("name", sorted(GONE_LOOP))
def test_a_loop_that_was_split(on: On, refuse: Refuse, name: str) -> None:
    s = on("sums")
    i, _ = loops(s, "C")
    s.split(i, [None, 2])
    b = s.get_block("C")
    refuse(name, "loop-exists", "loop i (l0) was consumed by split (step 2)", s, lambda: GONE_LOOP[name](s, i, b))


def test_annotate_known_key(on: On, refuse: Refuse) -> None:
    s = on("row")
    refuse("annotate", "known-key", "unknown annotation 'unrol'; known are", s, lambda: s.annotate(s.get_block("C"), "unrol", 4))


def test_annotate_value(on: On, refuse: Refuse) -> None:
    s = on("row")
    b = s.get_block("C")
    for key, value, message in (
        ("prefetch", 2**62, "prefetch is at most 16777216"),
        ("prefetch", -1, "prefetch is at least 0; found -1"),
        ("prefetch", "x", "the value of prefetch is 'x'; an integer from 0 to 16777216 is needed"),
        ("prefetch_ahead", 2**17, "prefetch_ahead is at most 65536"),
        ("double_buffer", 3, "double_buffer is at most 2"),
        ("prefetch_operand", 3, "the value of prefetch_operand is 3; the name of a buffer is needed"),
    ):
        refuse("annotate", "value", message, s, lambda key=key, value=value: s.annotate(b, key, value))


def test_unannotate_present(on: On, refuse: Refuse) -> None:
    s = on("row")
    refuse("unannotate", "present", "there is no annotation 'prefetch'", s, lambda: s.unannotate(loops(s, "C")[0], "prefetch"))


def test_get_block_block_exists(on: On, refuse: Refuse) -> None:
    s = on("chain")
    refuse("get_block", "block-exists", "there is no block 'c'; the function has B, C, D", s, lambda: s.get_block("c"))


def test_parallel_loop_exists(on: On, refuse: Refuse) -> None:
    s = on("sums")
    b = s.get_block("C")
    refuse("parallel", "loop-exists", "a loop handle is needed, got the block handle b0", s, lambda: s.parallel(b))  # type: ignore[arg-type]


def test_parallel_loop_exists_2(on: On, refuse: Refuse) -> None:
    s = on("chain")
    gone = loops(s, "B")[0]
    s.compute_inline(s.get_block("B"))
    refuse("parallel", "loop-exists", f"loop i ({gone.name}) was consumed by compute_inline", s, lambda: s.parallel(gone))


def test_arguments_as_other_systems_take_them(on: On) -> None:
    s = on("sums")
    b = s.get_block("C")
    i, k = loops(s, "C")
    for step, message in (
        (lambda: s.reorder(k, i), r"Write reorder\(\[l1, l0\]\)"),
        (lambda: s.fuse(i, k), r"Write fuse\(\[l0, l1\]\)"),
        (lambda: s.cache_write(b, 0, "local"), "scope is 0; its type is str"),
        (lambda: s.cache_read(b, 0, "local"), "buffer is 0; its type is str, the name of a buffer of the block: C, A"),
        (lambda: s.cache_read(0, 0, "local"), "buffer is 0; its type is str"),
        (lambda: s.sample_tile(i, 2, domains=0), r"domains is 0; a list is needed, such as \[0\]"),
        (lambda: s.sample_tile(i, 2, domains=[0]), r"domains is \[0\]; its type is Sequence\[Sequence\[int\]\] \| None"),
    ):
        with pytest.raises(ScheduleError, match=rf"refused \[arguments\]: .*{message}$"):
            step()


def test_a_function_without_blocks(refuse: Refuse) -> None:
    s = Schedule(parse('@T.prim_func\ndef f(A: T.Buffer((8,), "float32")):\n    for i in range(8):\n        A[i] = 0.0\n'))
    refuse(
        "get_block",
        "block-exists",
        'the function has none: put the statements to schedule into `with T.block("name"):`',
        s,
        lambda: s.get_block("C"),
    )


# ---- what refusals have in common --------------------------------------------------------------------------------------


def snapshot(s: Schedule) -> tuple[object, ...]:
    return s.func, s.trace, list(s.params), list(s.constraints), s.depth


def test_a_precondition_of_numbers_is_a_constraint_of_params(on: On) -> None:
    """A step that refuses a number adds the condition as a constraint in parametric mode."""
    s = Schedule(on("row").func, parametric=True)
    (i,) = loops(s, "C")
    (t,) = s.sample_tile(i, 2, waste=0.5)
    _, inner = s.split(i, [4, t])
    s.unroll(inner, 8)
    s.unroll(inner, 8)
    assert [(c.kind, c.label) for c in s.constraints] == [("le0", "decision"), ("le0", "waste"), ("le0", "covers"), ("le0", "length")]


def test_a_refused_step_of_a_symbolic_schedule_leaves_no_params_and_constraints(on: On) -> None:
    s = Schedule(on("row").func, parametric=True)
    (i,) = loops(s, "C")
    s.sample_tile(i, 2)
    before = snapshot(s)
    with pytest.raises(ScheduleError):
        s.split(i, [None, s.value(4)])  # type: ignore[list-item]
    with pytest.raises(ScheduleError):
        s.vectorize(i, 8)
    assert snapshot(s) == before


def test_the_place_is_underlined(on: On) -> None:
    s = on("chain")
    i, j = loops(s, "C")
    s.vectorize(j)
    with pytest.raises(ScheduleError) as caught:
        s.fuse([i, j])
    lines = str(caught.value).split("\n")
    at = next(n for n, line in enumerate(lines) if set(line.strip()) == {"^"})
    assert "T.vectorized(6)" in lines[at - 1]


def test_a_refusal_is_rendered_only_when_printed(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search catches thousands of refusals."""
    s = on("chain")
    monkeypatch.setattr("tunesmith.ir.script.printer.script", lambda *_, **__: pytest.fail("rendered"))
    with pytest.raises(ScheduleError) as caught:
        s.set_scope(s.get_block("C"), "workspace")
    assert caught.value.requirement == "intermediate"
