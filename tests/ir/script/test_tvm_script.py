"""Read scripts as TVM 0.27 prints them (tests/golden/tvm_scripts): results, round trips, search spaces, refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tunesmith
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.interpreter.threads import run_threads
from tunesmith.ir.poly import Var
from tunesmith.ir.script.parser import parse
from tunesmith.ir.structural import equal
from tunesmith.ir.target.target import Target
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules_table import generate
from tunesmith.support.errors import ScriptError
from tunesmith.support.seeds import stream

SCRIPTS = Path(__file__).parents[2] / "golden" / "tvm_scripts"
Arrays = list[np.ndarray]


def convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return np.einsum("nchwrs,fcrs->nfhw", windows, w)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def pooled(x: np.ndarray) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2].max((4, 5))


def elementwise(x: np.ndarray) -> np.ndarray:
    wide = x.T.astype(np.float32)
    return np.maximum(wide, 0) * 2 + np.where(np.arange(7)[:, None] < 3, np.float32(1), np.sqrt(wide * wide))


EXPECTED: dict[str, Callable[..., np.ndarray]] = {
    "matmul": np.matmul,
    "matmul_scheduled": np.matmul,
    "matmul_threads": np.matmul,
    "convolution": convolved,
    "softmax": softmax,
    "dynamic_sum": lambda x: x.sum(1),
    "max_pool": pooled,
    "elementwise": elementwise,
    "elementwise_guarded": elementwise,
}


def read(name: str) -> PrimFunc:
    made = parse((SCRIPTS / f"{name}.txt").read_text(encoding="utf-8"))
    return made["main"] if isinstance(made, IRModule) else made


def inputs(f: PrimFunc) -> tuple[Arrays, dict[Var, int]]:
    rng, buffers = stream(0, "tvm scripts"), [p for p in f.params if isinstance(p, Buffer)]
    sizes = {v: 5 for b in buffers for e in b.shape for v in e.vars}
    shapes = [([5 if e.const is None else e.const for e in b.shape], b.dtype) for b in buffers[:-1]]
    return [rng.integers(-9, 9, s).astype(t) if t == "int8" else rng.standard_normal(s).astype(t) for s, t in shapes], sizes


@pytest.mark.parametrize("name", EXPECTED)
def test_scripts_of_tvm_compute_the_same(name: str) -> None:
    f = read(name)
    given, sizes = inputs(f)
    assert equal(parse(str(f)), f)
    want = EXPECTED[name](*given)
    got = (run_threads(f, given) if name == "matmul_threads" else run(f, given, sizes))[-1]
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)
    if name != "matmul_threads":
        out = np.zeros(want.shape, want.dtype)
        tunesmith.build(f)[f.name](*given, out, *sizes.values())
        np.testing.assert_allclose(out, want, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["matmul", "convolution", "softmax", "max_pool", "elementwise"])
def test_scripts_of_tvm_have_a_search_space(name: str) -> None:
    space = generate(read(name), Target("llvm -mcpu=znver5 -num-cores=2"))
    assert space.sketches and not space.plain


def test_steps_apply_to_a_script_of_tvm() -> None:
    s = Schedule(read("convolution"))
    s.compute_at(s.get_block("pad"), s.get_loops(s.get_block("Y"))[0])
    given, _ = inputs(s.func)
    np.testing.assert_allclose(run(s.func, given)[-1], convolved(*given), rtol=1e-3, atol=1e-5)


def test_a_module_of_tvm() -> None:
    made = parse((SCRIPTS / "module.txt").read_text(encoding="utf-8"))
    assert isinstance(made, IRModule) and sorted(made) == ["matmul", "softmax"]
    assert equal(made["matmul"], read("matmul"))


OLD = """
import tvm
from tvm.script import tir as T

@T.prim_func(private=True)
def add(a: T.handle, b: T.handle):
    T.func_attr({"global_symbol": "add", "tir.noalias": T.bool(True)})
    n = T.int64()
    A = T.match_buffer(a, ("n", 4))
    B = T.match_buffer(b, (n, 4), "float32")
    with T.block("root"):
        T.reads()
        T.writes()
        C = T.alloc_buffer((n, 4))
        for i, j in T.grid(n, 4):
            with T.block("C"):
                vi = T.axis.spatial(n, i)
                vj = T.axis.opaque(4, j)
                T.reads(A[vi, vj])
                T.writes(C[vi, vj])
                C[vi, vj] = A[vi, vj] * 2.0
        for i, j in T.grid(n, 4):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = C[vi, 3 - vj] + T.Select(vj < 2, T.float32(1.0), T.float32(0.0))
"""


def test_a_handle_is_matched_before_its_buffer_is_used() -> None:
    text = """
# from tvm.script import tir as T
@T.prim_func
def f(a: T.handle, c: T.handle):
    A = T.match_buffer(a, (16,), "float32")
    for i in range(16):
        C[i] = A[i]
    C = T.match_buffer(c, (16,), "float32")
"""
    with pytest.raises(ScriptError, match="`C` is used before its T.match_buffer"):
        parse(text)


def test_handles_quoted_sizes_and_the_root_block() -> None:
    f = parse(OLD)
    assert [getattr(p, "name", "") for p in f.params] == ["A", "B", "n"] and [b.name for b in f.allocs] == ["C"] and not f.attrs
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    (n,) = f.params[0].shape[0].vars
    np.testing.assert_array_equal(run(f, [a], {n: 3})[1], 2 * a[:, ::-1] + np.float32([1, 1, 0, 0]))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("C[vi, vj] = A[vi, vj] * 2.0", 'T.evaluate(T.call_extern("float32", "f", 1))', "the external function 'f' has no meaning"),
        ("C[vi, vj] = A[vi, vj] * 2.0", "while A[vi, vj]:\n                    C[vi, vj] = 0.0", "a condition is needed here"),
        ("C[vi, vj] = A[vi, vj] * 2.0", "x = T.let(A[vi, vj])\n                C[vi, vj] = x", "only elements of buffers can be assigned"),
        ('B = T.match_buffer(b, (n, 4), "float32")', "", "the parameter `b` has an unsupported type"),
        ("private=True", "inline=True", "needs the decorator @T.prim_func"),
        ("import tvm\n", "x = 1\n", "one function or module is expected"),
    ],
)
def test_what_has_no_equivalent_is_refused(old: str, new: str, message: str) -> None:
    assert old in OLD
    with pytest.raises(ScriptError, match=message):
        parse(OLD.replace(old, new))


def test_attributes_of_modules_and_functions() -> None:
    plain = OLD.split("\n\n", 1)[1].replace("\n", "\n    ")
    head = "# from tvm.script import ir as I\n\n@I.ir_module\nclass Module:\n"
    attributes = '    I.module_attrs({"version": 1})\n    I.module_global_infos({"vdevice": [I.vdevice("llvm")]})\n'
    made, same = parse(f"{head}{attributes}    {plain}"), parse(f"{head}    {plain}")
    assert isinstance(made, IRModule) and isinstance(same, IRModule) and equal(made["add"], same["add"])
    given = '{"target": T.target({"kind": "llvm"}), "s_tir": True, "op_pattern": 2, "a": True, "b": T.bool(False), "global_symbol": "add"}'
    f = parse(OLD.replace('{"global_symbol": "add", "tir.noalias": T.bool(True)}', given))
    assert dict(f.attrs) == {"op_pattern": 2, "a": 1, "b": 0}
    f = parse(OLD.replace('"tir.noalias": T.bool(True)', '"list": [1, 2], "none": None, "part": T.float32(0.5)'))
    assert dict(f.attrs) == {"list": "[1, 2]", "none": "None", "part": "T.float32(0.5)"}  # annotations are hints, here text
