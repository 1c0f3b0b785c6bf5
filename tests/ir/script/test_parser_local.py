"""Declarations in bodies of TVM's scripts: let-bound values, scalar variables, views, allocations, thread axes; both spellings."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tunesmith
from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.interpreter.threads import run_threads
from tunesmith.ir.script.parser import parse
from tunesmith.ir.stmt import Allocate, For
from tunesmith.ir.structural import difference
from tunesmith.ir.verify import verify
from tunesmith.ir.visit import walk
from tunesmith.support.errors import ScriptError

DUMPS = Path(__file__).parents[2] / "golden" / "tvm"
OLD_WORDS = {
    "from tvm.script import tirx as T": "from tvm.script import tir as T",
    "@T.prim_func(s_tir=True)": "@T.prim_func",
    "T.sblock_alloc_buffer(": "T.alloc_buffer(",
    "T.sblock_attr(": "T.block_attr(",
    "T.sblock(": "T.block(",
    "tirx.noalias": "tir.noalias",
}


@pytest.mark.parametrize("name", [p.stem for p in sorted(DUMPS.glob("*.txt"))])
def test_the_spelling_of_tvm_0_19_is_the_same_program(name: str) -> None:
    new = (DUMPS / f"{name}.txt").read_text(encoding="utf-8")
    old = new
    for word, earlier in OLD_WORDS.items():
        old = old.replace(word, earlier)
    old = re.sub(r": T\.let\[(T\.\w+)\] =", r": \1 =", old)
    assert old != new and "sblock" not in old
    a, b = parse(new), parse(old)
    if isinstance(a, IRModule) and isinstance(b, IRModule):
        assert all(difference(a[k], b[k]) is None for k in a)
    else:
        assert difference(a, b) is None


HEAD = """# from tvm.script import tir as T
@T.prim_func
def f(A: T.Buffer((8, 8), "float32"), I: T.Buffer((8,), "int32"), B: T.Buffer((8, 8), "float32")):
"""
A = np.arange(64, dtype=np.float32).reshape(8, 8) / 7
ROWS = np.array([3, 1, 4, 1, 5, 0, 2, 6], np.int32)


def function(body: str) -> PrimFunc:
    found = parse(HEAD + "".join(f"    {line}\n" for line in body.strip("\n").split("\n")), "dump.txt")
    assert isinstance(found, PrimFunc)
    verify(found)
    assert difference(parse(str(found)), found) is None
    return found


def result(body: str) -> np.ndarray:
    """What the interpreter and the compiled function compute."""
    f = function(body)
    want = run(f, [A, ROWS, 0 * A])[-1]
    out = np.zeros_like(A)
    tunesmith.build(f)["f"](A, ROWS, out)
    np.testing.assert_allclose(out, want, rtol=1e-6)
    return out


LOOPS = "for i, j in T.grid(8, 8):\n"


@pytest.mark.parametrize(
    ("body", "want"),
    [
        (LOOPS + "    x: T.let[T.float32] = A[i, j] * T.float32(2)\n    B[i, j] = x + x", 4 * A),
        (LOOPS + "    x: T.float32 = A[i, j]\n    y: T.let = x + T.float32(1)\n    B[i, j] = x * y", A * (A + 1)),
        (LOOPS + "    with T.LetStmt(A[i, j] + T.float32(1)) as x:\n        B[i, j] = x", A + 1),
        (LOOPS + "    with T.let(x, A[i, j] + T.float32(1)):\n        B[i, j] = x", A + 1),
        (LOOPS + "    x = T.bind(A[i, j])\n    B[i, j] = x", A),
        (LOOPS + "    k: T.int32 = 7 - i\n    B[k, j] = A[i, j]", A[::-1]),
        (LOOPS + "    k: T.let[T.int32] = I[i]\n    B[i, j] = A[k, j]", A[ROWS]),
        (LOOPS + "    B[i, j] = A[I[i] // 2 + 1, j]", A[ROWS // 2 + 1]),
        (LOOPS + "    B[i, j] = A[T.min(T.Cast('int32', A[i, 0]), 7), j]", A[A[:, 0].astype(int).clip(0, 7)]),
        (LOOPS + "    B[7 - I[j], i] = A[i, j]", None),
        ("x = T.float32()\n" + LOOPS + "    B[i, j] = T.Let(x * x + x, where={x: A[i, j]})", A * A + A),
        ("c: T.int32\n" + LOOPS + "    c = 0\n    while c < I[i]:\n        c = c + 1\n    B[i, j] = T.Cast('float32', c)", None),
        (LOOPS + "    c: T.int32 = I[j]\n    c = c + i\n    B[i, j] = T.Cast('float32', c)", None),
        ("a = A.view(64)\nb = T.decl_buffer((4, 16), data=B.data)\nfor i, j in T.grid(4, 16):\n    b[i, j] = a[i * 16 + j]", A),
        ("a = A.view(4, 8)\nfor i, j in T.grid(8, 8):\n    B[i, j] = a[i, j] if i < 4 else T.float32(0)", A * (np.arange(8)[:, None] < 4)),
        ("a = A.view(32)\nfor i in range(64):\n    if i < 32:\n        B[i // 8, i % 8] = a[i]", A * (np.arange(8)[:, None] < 4)),
        ("b = T.Buffer((64,), data=B.data)\nfor i in range(64):\n    b[i] = A[i // 8, i % 8]", A),
        (
            "c = T.allocate([64], 'float32', 'global')\nd = T.decl_buffer((8, 8), data=c)\n"
            "for i, j in T.grid(8, 8):\n    d[i, j] = A[j, i]\nfor i in range(64):\n    B[i // 8, i % 8] = c[i]",
            A.T,
        ),
        (
            "for i in range(8):\n    b = T.match_buffer(B[i, 0:8], (8,))\n    a = T.match_buffer(A[0:8, i], (8, 1), strides=[1, 1])\n"
            "    for j in range(8):\n        b[j] = a[j, 0]",
            A.T,
        ),
        (
            "for i in T.serial(0, 8, step=2):\n    for j in range(0, 8):\n        B[i, j] = A[i, j]\n        B[i + 1, j] = A[i, j]",
            A[np.arange(8) // 2 * 2],
        ),
        ("for i in range(1, 8, 3):\n    for j in range(8):\n        B[i, j] = A[i, j]", np.where(np.arange(8)[:, None] % 3 == 1, A, 0)),
        ("for i in range(8):\n    B[i, 0:8] = A[i, 0:8] + T.Broadcast(T.float32(1), 8)", A + 1),
        ("for i in range(8):\n    B[i, 0:8:2] = A[i, 1:8:2]", np.where(np.arange(8) % 2 == 0, np.roll(A, -1, 1), 0)),
        (LOOPS + "    B[i, j] = T.call_extern('float32', 'expf', A[i, j])", np.exp(A)),
        (LOOPS + "    B[i, j] = T.call_pure_extern('float32', 'fabsf', A[i, j] - T.float32(3))", np.abs(A - 3)),
        (LOOPS + "    B[i, j] = T.call_llvm_pure_intrin('float32', 'llvm.sqrt', A[i, j])", np.sqrt(A)),
        (
            "T.attr({'pragma_scope': 'seq'})\n"
            "with T.attr(0, 'pragma_unroll', 1):\n    for i, j in T.grid(8, 8):\n        B[i, j] = A[i, j]",
            A,
        ),
        (LOOPS + "    T.evaluate(0)\n    B[i, j] = A[i, j]", A),
        (LOOPS + "    B[i, j] = T.Cast('float32', T.Select(I[i] < 3, I[i], i))", None),
        (LOOPS + "    with T.block('t'):\n        B[i, j] = A[j, i]", A.T),
    ],
)
def test_declarations(body: str, want: np.ndarray | None) -> None:
    if want is None:
        i, j = np.indices((8, 8))
        if "7 - I[j]" in body:
            want = np.zeros_like(A)
            for a, b in np.ndindex(8, 8):
                want[7 - ROWS[b], a] = A[a, b]
        else:
            want = (ROWS[i] if "while" in body else ROWS[j] + i if "c + i" in body else np.where(ROWS[i] < 3, ROWS[i], i)).astype(
                np.float32
            )
    np.testing.assert_allclose(result(body), want, rtol=1e-6)


def test_a_let_is_written_where_it_is_used_up_to_a_store_that_changes_it() -> None:
    plain = function(LOOPS + "    x: T.let[T.float32] = A[i, j]\n    B[i, j] = x")
    assert not any(type(n) is Allocate for n in walk(plain.body))
    first = "    x: T.let[T.float32] = B[i, j] + T.float32(1)\n    B[i, j] = x\n"
    assert not any(type(n) is Allocate for n in walk(function(LOOPS + first).body))
    again = function(LOOPS + first + "    B[i, j] = x + T.float32(1)")
    assert any(type(n) is Allocate for n in walk(again.body))
    np.testing.assert_array_equal(run(again, [A, ROWS, 0 * A])[-1], np.full_like(A, 2))
    size = " + ".join(["A[i, j]"] * 40)
    large = function(LOOPS + f"    x: T.let[T.float32] = {size}\n    B[i, j] = x * x")
    assert any(type(n) is Allocate for n in walk(large.body))


def test_indices_of_data_have_the_extent_of_their_dimension() -> None:
    f = function(LOOPS + "    B[i, j] = A[I[i], j]")
    (found,) = [n for n in walk(f.body) if type(n) is IndirectIndex]
    assert found.extent == 8 and type(found.body) is BufferLoad
    with pytest.raises(ScriptError, match="T.lookup"):
        parse(HEAD.partition("\n")[2] + "    for i, j in T.grid(8, 8):\n        B[i, j] = A[I[i], j]\n")


def test_launched_threads() -> None:
    body = "b = T.env_thread('blockIdx.x')\nT.launch_thread(b, 8)\nwith T.launch_thread('threadIdx.x', 8) as t:\n    B[b, t] = A[t, b]"
    f = function(body)
    assert [n.thread for n in walk(f.body) if type(n) is For] == ["blockIdx.x", "threadIdx.x"]
    np.testing.assert_array_equal(run_threads(f, [A, ROWS, 0 * A])[-1], A.T)
    flat = function("t = T.launch_thread('threadIdx.x', 8)\nfor i in range(8):\n    B[i, t] = A[t, i]")
    np.testing.assert_array_equal(run_threads(flat, [A, ROWS, 0 * A])[-1], A.T)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (LOOPS + "    x: T.let[T.float32]\n    B[i, j] = x", "`x` has no value"),
        (LOOPS + "    x: T.something = A[i, j]\n    B[i, j] = x", "`T.something` is no type of a variable"),
        (LOOPS + "    x: T.let[T.int32] = A[i, j]\n    B[i, j] = x", "`x` is of type int32 and its value of type float32"),
        ("x: T.let = A[0, 0:4]\nB[0, 0:4] = x", "`x` is a vector of type float32x4"),
        ("a = A.view(65)\nB[0, 0] = a[0]", "a view of 65 elements of A, which has 64"),
        ("a = A.view(4)\nfor i in range(64):\n    B[0, 0] = a[i]", "the index i of a view takes the value 63, and its extent is 4"),
        ("a = A.view(4, 8)\nfor i, j in T.grid(4, 8):\n    B[i, j] = a[i, j - 1]", "the index -1 \\+ j of a view takes the value -1"),
        ("a = T.decl_buffer((4,), data=A.data)\na[4] = T.float32(1)", "the index 4 of a view takes the value 4, and its extent is 4"),
        ("a = T.match_buffer(A[0:4, 0:8], (4, 8))\nB[0, 0] = a[5, 0]", "the index 5 of a view takes the value 5"),
        ("a = A.view(8, axis=1)\nB[0, 0] = a[0]", "a view takes the extents of its shape only"),
        ("a = T.decl_buffer((64,), 'int32', data=A.data)\nB[0, 0] = A[0, 0]", "a view of type int32 of A, whose elements are float32"),
        ("a = T.match_buffer(A, (8, 8))\nB[0, 0] = a[0, 0]", "T.match_buffer in a body takes a region of a buffer"),
        ("a = T.match_buffer(A[0:8], (8,))\nB[0, 0] = a[0]", "the region has 1 dimensions and A has 2"),
        ("a = T.match_buffer(A[0:, 0:8], (8, 8))\nB[0, 0] = a[0, 0]", "a region has a first and a last index"),
        ("a = T.match_buffer(A[0:4, 0:8], (8, 8))\nB[0, 0] = a[0, 0]", r"a view \(8, 8\) of float32 of a region of extents \(4, 8\)"),
        ("t = T.launch_thread('threadIdx.w', 8)\nB[0, t] = A[0, t]", "unknown thread axis 'threadIdx.w'"),
        ("T.attr(0, 'async_scope', 1)\nB[0, 0] = A[0, 0]", "T.attr 'async_scope' is not supported"),
        ("T.attr()\nB[0, 0] = A[0, 0]", "T.attr needs the key of an attribute"),
        ("with T.decl_buffer((8,)):\n    B[0, 0] = A[0, 0]", "this buffer has no name"),
        ("B[0, 0] = T.Let(x, where=[A[0, 0]])", "T.Let binds names by a dict"),
        ("B[0, 0] = T.Let(A[0, 0], where={A: A[0, 0]})", "T.Let binds names that are not in use"),
        ("B[0, 0:4] = A[0, 0]", "a value of 1 lanes is stored to 4 elements"),
        ("B[0, 0:4] = A[0, 0:4] + A[0, 0]", "the operands have 4 and 1 lanes"),
        ("B[0, 0] = A[0, 0:]", "a vector of a buffer has a first and a last index"),
        ("for i in range(8):\n    B[0, 0:i] = A[0, 0:i]", "a constant number of lanes"),
        ("for i in range(0, 8, 0):\n    B[i, 0] = A[i, 0]", "the step of a loop must be an integer >= 1"),
        (
            "for i in range(0, 8, 2):\n    with T.block('b'):\n        vi = T.axis.remap('S', [i])\n        B[vi, 0] = A[vi, 0]",
            "the loop i has the step 2",
        ),
        ("T.evaluate(T.tvm_thread_allreduce(1, A[0, 0]))", "T.tvm_thread_allreduce is not supported"),
        ("T.call_packed('tvm.contrib.sort.argsort', A.data)", "T.call_packed is not supported"),
        ("T.ptx_cp_async(1)", "T.ptx_cp_async is not supported"),
        ("B[0, 0] = T.call_extern('float32', 'my_function', A[0, 0])", "the external function 'my_function' has no meaning in a program"),
        ("B[0, 0] = T.call_extern('float32')", "takes a dtype, a name and arguments"),
        ("B[0, 0] = T.call_extern('int32', 'expf', A[0, 0])", "T.call_extern of int32, but expf of these arguments is float32"),
        ("while A[0, 0] < T.float32(1):\n    B[0, 0] = A[0, 0]\nelse:\n    B[0, 0] = A[0, 0]", "`else` after a loop"),
        ("for i in range(8):\n    assert i < 9\n    B[i, 0] = A[i, 0]", "unsupported statement in a script: assert"),
        ("a = A.view(64)\na.vstore([0], T.Broadcast(T.float32(1), 4))", "a view has no vstore"),
        ("a = A.view(64)\nB[0, 0] = a.vload([0], 1)", "a view has no vload"),
    ],
)
def test_refusals_have_a_position_and_a_remedy(body: str, message: str) -> None:
    with pytest.raises(ScriptError, match=message) as caught:
        function(body)
    lines = str(caught.value).split("\n")
    assert lines[0].startswith("dump.txt:") and "^" in lines[2] and len(lines) > 3 and lines[3].strip()
