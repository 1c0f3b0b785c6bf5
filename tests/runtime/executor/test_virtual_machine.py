from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tunesmith.runtime.executor.executable import Executable
from tunesmith.runtime.executor.index_program import check_condition, check_index, evaluate, holds, shown, shown_condition
from tunesmith.runtime.executor.memory_pool import MemoryPool
from tunesmith.runtime.executor.virtual_machine import MAX_BOUND_PROGRAMS, VirtualMachine
from tunesmith.runtime.module import load_executable
from tunesmith.support.errors import RunError
from tunesmith.support.seeds import stream


def pick(rng: np.random.Generator, things: Sequence[Any]) -> Any:
    """A random element."""
    return things[int(rng.integers(len(things)))]


Program = dict[str, Any]


class Functions(dict[str, Callable[..., object]]):
    """numpy functions that record their calls and sizes."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        super().__init__(double=self.double, negate=self.negate, positive=self.positive, repeat=self.repeat)

    def double(self, a: np.ndarray, b: np.ndarray, *sizes: int) -> None:
        self.calls.append(("double", *sizes))
        np.multiply(a, 2, out=b)

    def negate(self, a: np.ndarray, b: np.ndarray) -> None:
        self.calls.append(("negate",))
        np.negative(a, out=b)

    def positive(self, a: np.ndarray, b: np.ndarray) -> None:
        b[...] = a.sum() > 0

    def repeat(self, a: np.ndarray, b: np.ndarray, n: int, m: int) -> None:
        b[...] = np.tile(a, m)
        assert a.size == n


def branching() -> Program:
    """y = 4 x if the sum of x is positive, else -x, as [2, n]; x: [2 * n]; z: [n + 1] is unused."""
    return {
        "version": 1,
        "inputs": [["x", "float32", [["mul", 2, "n"]]], ["z", "float32", [["add", "n", 1]]], ["w", "float32", ["n"]]],
        "outputs": [["y", "float32", [2, "n"]]],
        "code": [
            ["size", "n", 2, 0],
            ["check", 0, 0, ["mul", 2, "n"]],
            ["check", 1, 0, ["add", "n", 1]],
            ["require", ["and", ["negative", ["add", "n", -9]], ["not", ["negative", ["add", "n", -2]]]]],
            ["input", 0, 0],
            ["output", 1, 0],
            ["view", 2, 1, [["mul", "n", 2]]],
            ["alloc", 3, "bool", []],
            ["call", "positive", [0], [3], []],
            ["if", 3, 15],
            ["alloc", 4, "float32", [["mul", 2, "n"]]],
            ["call", "double", [0], [4], [["mul", 2, "n"]]],
            ["call", "double", [4], [2], ["n"]],
            ["free", 4],
            ["goto", 16],
            ["call", "negate", [0], [2], []],
            ["free", 3],
            ["ret"],
        ],
    }


def inputs(n: int, sign: int = 1) -> tuple[np.ndarray, ...]:
    return sign * np.arange(1, 2 * n + 1, dtype="float32"), np.zeros(n + 1, "float32"), np.zeros(n, "float32")


def test_sizes_views_and_branches() -> None:
    functions = Functions()
    vm = VirtualMachine(branching(), (), functions)
    assert repr(vm) == "<vm executor (x: float32[2*n], z: float32[n+1], w: float32[n]) -> (y: float32[2, n])>"
    for n in (2, 5, 8, 2):
        for sign in (1, -1):
            x = inputs(n, sign)
            want = x[0].reshape(2, n) * (4 if sign > 0 else -1)
            np.testing.assert_array_equal(vm(*x), want)
    assert functions.calls[:3] == [("double", 4), ("double", 2), ("negate",)]


def test_profile_counts_only_what_runs() -> None:
    vm = VirtualMachine(branching(), (), Functions())
    rows = {row.call: (row.function, row.calls) for row in vm.profile(*inputs(3, -1), repeats=4)}
    assert rows == {0: ("positive", 4), 1: ("double", 0), 2: ("double", 0), 3: ("negate", 4)}


def test_set_input_with_other_sizes() -> None:
    vm = VirtualMachine(branching(), (), Functions())
    for n in (2, 4, 2):
        for name, array in zip("xzw", inputs(n), strict=True):
            vm.set_input(name, array)
        vm.run()
        np.testing.assert_array_equal(vm.get_output("y"), 4 * inputs(n)[0].reshape(2, n))


def test_equal_shapes_are_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    vm = VirtualMachine(changed(3, ["require", True]), (), Functions())
    prepared: list[int] = []
    whole = VirtualMachine._prepared
    monkeypatch.setattr(VirtualMachine, "_prepared", lambda self, arrays: prepared.append(len(arrays[2])) or whole(self, arrays))
    for n in (3, 3, 40, 40, 3):  # 40 grows the arena, so that programs bound to the old one are prepared again
        np.testing.assert_array_equal(vm(*inputs(n)), 4 * inputs(n)[0].reshape(2, n))
    assert prepared == [3, 40, 3]
    for n in (3, 40, 3, 40):
        vm(*inputs(n))
    assert len(prepared) == 3


def test_the_cache_of_bound_programs_is_bounded() -> None:
    program = {
        "version": 1,
        "inputs": [["x", "float32", ["n"]]],
        "outputs": [["y", "float32", ["n"]]],
        "code": [["size", "n", 0, 0], ["input", 0, 0], ["output", 1, 0], ["call", "double", [0], [1], ["n"]], ["ret"]],
    }
    vm = VirtualMachine(program, (), Functions())
    for n in range(1, MAX_BOUND_PROGRAMS + 20):
        np.testing.assert_array_equal(vm(np.ones(n, "float32")), np.full(n, 2, "float32"))
    assert len(vm._programs) == MAX_BOUND_PROGRAMS


def test_compiled_functions_take_sizes(sized_model: Executable) -> None:
    vm = load_executable(sized_model)
    assert str(vm.inputs[0]) == "x: float32[n, 8]" and str(vm.outputs[0]) == "y: float32[16*n]"
    w, b = np.subtract.outer(np.arange(8), np.arange(16)), np.arange(16)
    for n in (1, 7, 128, 7):
        x = np.arange(n * 8, dtype="float32").reshape(n, 8) % 5
        np.testing.assert_array_equal(vm(x), (x @ w + b).ravel())
    with pytest.raises(RunError, match="the program requires n < 129, and the inputs have n = 129"):
        vm(np.zeros((129, 8), "float32"))
    with pytest.raises(RunError, match=r"input 0 \(x: float32\[n, 8\]\): got shape \[4, 9\], expected 8 at axis 1"):
        vm(np.zeros((4, 9), "float32"))


def test_the_same_model_as_the_graph_executor(model: Any) -> None:
    x = np.random.default_rng(3).integers(-4, 5, (4, 8)).astype("float32")
    for got, want in zip(load_executable(model.vm)(x), model.reference(x), strict=True):
        np.testing.assert_array_equal(got, want)


def test_refusals_of_calls() -> None:
    vm = VirtualMachine(branching(), (), Functions())
    x, z, w = inputs(3)
    with pytest.raises(RunError, match=r"input 0 \(x: float32\[2\*n\]\): got shape \[8\], expected 6 at axis 0 where n = 3"):
        vm(np.zeros(8, "float32"), z, w)
    with pytest.raises(RunError, match=r"input 1 \(z: float32\[n\+1\]\): got shape \[3\], expected 4 at axis 0 where n = 3"):
        vm(x, w, w)
    with pytest.raises(RunError, match=r"input 0 \(x: float32\[2\*n\]\): got shape \[6\], expected 0 at axis 0 where n = 0"):
        vm(x, z, w[:0])
    with pytest.raises(RunError, match=r"input 0 .*: got shape \[2, 3\]"):
        vm(x.reshape(2, 3), z, w)
    with pytest.raises(RunError, match=r"the program requires \(n < 9\) and \(not \(n < 2\)\), and the inputs have n = 9"):
        vm(*inputs(9))


def test_two_virtual_machines_in_two_threads(sized_model: Executable, in_threads: Callable[..., None]) -> None:
    w, b = np.subtract.outer(np.arange(8), np.arange(16)), np.arange(16)

    def work(seed: int) -> None:
        vm, rng = load_executable(sized_model), np.random.default_rng(seed)
        for _ in range(150):
            x = rng.integers(-4, 5, (int(rng.integers(1, 40)), 8)).astype("float32")
            np.testing.assert_array_equal(vm(x), (x @ w + b).ravel())

    in_threads(work, range(2))


def changed(at: int, ins: object) -> Program:
    program = copy.deepcopy(branching())
    program["code"][at] = ins
    return program


@pytest.mark.parametrize(
    ("at", "ins", "message"),
    [
        (8, ["fly", 1], "instruction 8 of the program is unknown to this version"),
        (8, [["call"]], "instruction 8 of the program is unknown"),
        (8, ["call", "positive", [0], [3]], "instruction 8 of the program is unknown .* wrong number of operands"),
        (8, 7, "instruction 8: expected a list of 1 or more, got 7"),
        (8, ["call", "absent", [0], [3], []], "the library has no function 'absent', which the program calls. It has: double, negate"),
        (8, ["call", "positive", [0], [77], []], r"instruction 8 \(call\): register 77 is not defined"),
        (8, ["call", "positive", [0], [3], ["m"]], "the size 'm' is not known. Known are: n"),
        (6, ["view", 1, 1, [2]], "register 1 is defined twice"),
        (6, ["view", 2, 2, [2]], "register 2 is not defined"),
        (4, ["input", 0, 3], r"instruction 4 \(input\): input: expected an integer from 0 to 2, got 3"),
        (4, ["input", -1, 0], "register: expected an integer from 0"),
        (5, ["output", 1, 1], "output: expected an integer from 0 to 0, got 1"),
        (6, ["constant", 2, 0, "float32", [1]], "constant: expected an integer from 0 to -1"),
        (7, ["alloc", 3, "boolean", []], "'boolean' is no element type"),
        (9, ["if", 3, 9], r"instruction 9 \(if\): target \(jumps go forward\): expected an integer from 10 to 17, got 9"),
        (14, ["goto", 18], r"target \(jumps go forward\): expected an integer from 15 to 17, got 18"),
        (13, ["free", 0], "register 0 is not an alloc, or is already freed"),
        (16, ["free", 4], "register 4 is not an alloc, or is already freed"),
        (17, ["free", 3], "register 3 is not an alloc, or is already freed"),
        (17, ["copy", 2, 0], "does not end with ret"),
        (0, ["size", "n", 2, 1], "axis: expected an integer from 0 to 0, got 1"),
        (1, ["size", "n", 0, 0], "the size 'n' is defined twice"),
        (1, ["require", True], "does not check axis 0 of input 0"),
        (10, ["require", True], r"instruction 10 \(require\) of the program is not at the start"),
        (3, ["require", ["maybe", True]], "'maybe' is no operation of conditions"),
        (3, ["require", 7], "None is no operation of conditions"),
        (7, ["alloc", 3, "bool", [["pow", 2, "n"]]], "'pow' is no operation of index expressions"),
        (7, ["alloc", 3, "bool", [["mod", 2]]], "expected a list of 3"),
    ],
)
def test_malformed_code(at: int, ins: object, message: str) -> None:
    with pytest.raises(RunError, match=message):
        VirtualMachine(changed(at, ins), (), Functions())


@pytest.mark.parametrize(
    ("at", "ins", "message"),
    [
        (6, ["view", 2, 1, ["n"]], r"instruction 6 \(view\) of the program: \[3\] is not a view of \[2, 3\]"),
        (7, ["alloc", 3, "float32", []], "the condition of block 0 of the program is not one bool"),
        (7, ["alloc", 3, "bool", ["n"]], "the condition of block 0 of the program is not one bool"),
        (10, ["alloc", 4, "float32", [["add", "n", -9]]], r"has negative extents \[-6\] for inputs with n = 3"),
        (10, ["alloc", 4, "float32", [["mul", 2**61, "n"]]], "does not fit in 64 bits with n = 3"),
        (10, ["alloc", 4, "float32", [2**59]], "bytes for its intermediate tensors, which cannot be allocated"),
        (15, ["call", "negate", [2], [0], []], "writes to input 0, which may only be read"),
        (15, ["copy", 2, 3], "is a copy between tensors that differ"),
        (15, ["copy", 0, 2], "writes to input 0, which may only be read"),
    ],
)
def test_malformed_shapes(at: int, ins: object, message: str) -> None:
    vm = VirtualMachine(changed(at, ins), (), Functions())
    with pytest.raises(RunError, match=message):
        vm(*inputs(3))


def test_missing_parts() -> None:
    for key in ("inputs", "outputs", "code"):
        program = branching()
        del program[key]
        with pytest.raises(RunError, match=f"the program has no '{key}'"):
            VirtualMachine(program, (), Functions())


# ---- index expressions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("e", "text", "value"),
    [
        (7, "7", 7),
        ("n", "n", 5),
        (["add", ["mul", 2, "n"], -1], "2*n-1", 9),
        (["add", ["mul", -1, "n"], 8], "-n+8", 3),
        (["mul", ["add", "n", 1], "m"], "(n+1)*m", 18),
        (["floordiv", ["add", "n", "m"], 2], "(n+m)//2", 4),
        (["floordiv", "n", ["add", "n", -5]], "n//(n-5)", 0),
        (["ceildiv", "n", 2], "ceildiv(n, 2)", 3),
        (["mod", ["mul", -1, "n"], 3], "(-n)%3", 1),
        (["min", "n", "m", 4], "min(n, m, 4)", 3),
        (["max", "n", "m"], "max(n, m)", 5),
    ],
)
def test_index_expressions(e: Any, text: str, value: int) -> None:
    sizes = {"n": 5, "m": 3}
    check_index(e, sizes, "it")
    assert (shown(e), evaluate(e, sizes)) == (text, value)


@pytest.mark.parametrize(
    ("c", "text", "value"),
    [
        (True, "True", True),
        (["negative", ["add", "n", -129]], "n < 129", True),
        (["negative", ["add", ["mul", -1, "n"], 4]], "n > 4", True),
        (["negative", ["add", ["mul", -1, "n", "m"], 15]], "n*m > 15", False),
        (["negative", "n"], "n < 0", False),
        (["negative", ["add", "n", ["mul", -1, "m"]]], "n-m < 0", False),
        (["not", ["negative", ["add", "n", -2]]], "not (n < 2)", True),
        (["or", False, ["and", True, ["negative", ["add", "m", -4]]]], "(False) or ((True) and (m < 4))", True),
    ],
)
def test_conditions(c: Any, text: str, value: bool) -> None:
    sizes = {"n": 5, "m": 3}
    check_condition(c, sizes, "it")
    assert (shown_condition(c), holds(c, sizes)) == (text, value)


def test_nesting_is_bounded() -> None:
    e: Any = "n"
    c: Any = True
    for _ in range(100):
        e, c = ["add", e, 1], ["not", c]
    with pytest.raises(RunError, match="nested deeper than 64"):
        check_index(e, {"n": 1}, "it")
    with pytest.raises(RunError, match="nested deeper than 64"):
        check_condition(c, {"n": 1}, "it")


# ---- memory pool ---------------------------------------------------------------------------------------------------------------


def test_pool_uses_the_smallest_gap_and_merges_gaps() -> None:
    pool = MemoryPool()
    a, b, c, d = [pool.take(size) for size in (256, 64, 128, 64)]
    assert (a, b, c, d, pool.nbytes) == (0, 256, 320, 448, 512)
    pool.give(a, 256)
    pool.give(c, 128)
    assert pool.take(100) == c
    pool.give(c, 128)
    pool.give(b, 64)
    assert pool.take(448) == 0
    pool.give(d, 64)
    assert pool.take(512) == 448 and pool.nbytes == 960


@pytest.mark.parametrize("seed", range(10))
def test_pool_fuzz(seed: int) -> None:
    """Allocated ranges never overlap, and one gap remains when all are freed."""
    rng, pool = stream(seed, "virtual_machine"), MemoryPool()
    taken: list[tuple[int, int]] = []
    most = alive = 0
    for _ in range(400):
        if taken and rng.random() < 0.5:
            offset, size = taken.pop(int(rng.integers(len(taken))))
            pool.give(offset, size)
            alive -= size
        else:
            size = 64 * pick(rng, [0, 1, 1, 2, 5, int(rng.integers(100))])
            offset = pool.take(size)
            assert offset % 64 == 0 and offset + size <= pool.nbytes
            assert all(offset + size <= o or o + s <= offset for o, s in taken if s and size)
            taken.append((offset, size))
            alive += size
        most = max(most, alive)
    assert most <= pool.nbytes <= 2 * most
    for offset, size in taken:
        pool.give(offset, size)
    assert pool.take(pool.nbytes) == 0
