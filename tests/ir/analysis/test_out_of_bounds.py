"""Test that provable out-of-bounds accesses are rejected with a witness, and that guarded or data-dependent accesses are not."""

from __future__ import annotations

import pytest

import tunesmith
from tunesmith.ir.analysis.out_of_bounds import check_out_of_bounds
from tunesmith.ir.script.parser import parse
from tunesmith.support.errors import BuildError, ScriptError

PROGRAM = """
@T.prim_func
def f(A: T.Buffer((12, 5), "int32"), I: T.Buffer((16,), "int64"), C: T.Buffer((16, 5), "int32")):
    for i, j in T.grid(16, 5):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            {}
"""


def program(statement: str) -> str:
    return PROGRAM.format(statement)


REFUSED = {
    "C[vi, vj] = A[vi, vj]": "index 0 of the load of A is out of bounds: it is 12 where i = 12, and the extent is 12",
    "C[vi + 1, vj] = 0": "index 0 of the store to C is out of bounds: it is 16 where i = 15",
    "C[vi, vj - 1] = 0": "index 1 of the store to C is out of bounds: it is -1 where j = 0",
    "C[vi, vj] = A[vi, vj] if vi < 13 else 0": "it is 12 where i = 12",
    "C[vi, vj] = A[vi - 4, vj] if vi > 2 or vj == 0 else 0": "it is -4 where i = 0, j = 0",
    "C[vi, vj] = A[11, vj] if vi < 12 else A[vi, vj]": "it is 12 where i = 12",
    "C[vi // 2 * 3, vj] = 0": "it is 18 where i = 12",
    "C[vi, vj] = A[11, vj] + A[vi % 13, 0]": "it is 12 where i = 12",
    "C[vi, vj] = T.lookup(I[vi], 12, lambda q: A[q, vj + 1])": "index 1 of the load of A is out of bounds: it is 5 where j = 4",
}
ACCEPTED = [
    "C[vi, vj] = A[vi, vj] if vi < 12 else 0",
    "C[vi, vj] = A[vi - 4, vj] if vi >= 4 and vi - 4 < 12 else 0",
    "C[vi, vj] = A[vi - 4, vj] if not vi < 4 else 0",
    "C[vi, vj] = A[vi, vj] if I[vi] > 0 else 0",
    "C[vi, vj] = T.lookup(I[vi], 100, lambda q: A[q, vj])",
    "C[vi, vj] = A[T.min(vi, 11), vj] + A[vi % 12, (vi + vj) % 5]",
    "C[vi, vj] = A[vi // vj, 0] if vj > 1 else 0",
]


@pytest.mark.parametrize("statement", REFUSED)
def test_provable_out_of_bounds_accesses_are_refused(statement: str) -> None:
    with pytest.raises(ScriptError) as caught:
        tunesmith.build(parse(program(statement)))
    assert REFUSED[statement] in str(caught.value)
    assert "in function f, at /i/j/C" in str(caught.value)


@pytest.mark.parametrize("statement", ACCEPTED)
def test_possibly_in_bounds_accesses_are_accepted(statement: str) -> None:
    check_out_of_bounds(parse(program(statement)))


def test_a_binding_outside_of_its_domain_is_refused() -> None:
    text = """
@T.prim_func
def f(C: T.Buffer((16,), "int32")):
    for i, j in T.grid(4, 4):
        with T.block("C"):
            vi = T.axis.spatial(13, i * 4 + j)
            {}C[vi] = 1
"""
    for use in (tunesmith.build, tunesmith.compile):
        with pytest.raises(ScriptError, match=r"iteration variable vi of block C is out of bounds: it is 13 where i = 3, j = 1"):
            use(parse(text.format("")))
    check_out_of_bounds(parse(text.format("T.where(i * 4 + j < 13)\n            ")))


def test_an_init_runs_at_the_first_step_only_and_an_empty_loop_never() -> None:
    check_out_of_bounds(
        parse("""
@T.prim_func
def f(A: T.Buffer((4, 0), "int32"), B: T.Buffer((4, 8), "int32"), C: T.Buffer((4,), "int32")):
    for i in T.serial(4):
        for e in T.serial(0):
            with T.block("never"):
                vi = T.axis.spatial(4, i)
                C[vi + 100] = 0
        for k in T.serial(8):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = 0
                C[vi] += B[vi, vk]
""")
    )


def test_dynamic_shapes_are_checked_at_run_time() -> None:
    check_out_of_bounds(
        parse("""
@T.prim_func
def f(n: T.int64, A: T.Buffer((n,), "int32"), C: T.Buffer((n,), "int32")):
    for i in T.serial(n):
        C[i] = A[i + 1]
""")
    )


def test_padded_parameters_are_refused() -> None:
    f = parse("""
@T.prim_func
def f(A: T.Buffer((8, 16), "float32"), C: T.Buffer((8, 16), "float32", pad=4)):
    for i, j in T.grid(8, 16):
        C[i, j] = A[i, j]
""")
    with pytest.raises(BuildError, match="parameter C has pad=4; arrays of a caller have no padding"):
        tunesmith.build(f)


def test_both_sides_of_a_conjunction_are_evaluated() -> None:
    func = parse(program("if vi >= 4 and A[vi - 4, vj] > 0:\n                C[vi, vj] = 1"))
    with pytest.raises(ScriptError, match=r"is -4 where i = 0, .*; both sides of `and` are evaluated, so guard it with a second `if`"):
        check_out_of_bounds(func)
    nested = "if vi >= 4:\n                if A[vi - 4, vj] > 0:\n                    C[vi, vj] = 1"
    check_out_of_bounds(parse(program(nested)))


@pytest.mark.parametrize("options", ["", ", stride=2", ", mask=3"])
def test_vectors_are_not_examined(options: str) -> None:
    """Their elements are checked by the run-time checks."""
    check_out_of_bounds(parse(program(f"C.vstore([vi, 0], A.vload([vi, 0], 4){options})")))
