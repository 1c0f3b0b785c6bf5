"""Test programs with sizes that are read and functions that are invoked, and what is refused when they are loaded or run."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import maximum, minimum, poly
from tunesmith.runtime.executor.dynamic_program import DEEPEST, Memory
from tunesmith.runtime.executor.virtual_machine import VirtualMachine
from tunesmith.support.errors import RunError

Program = dict[str, Any]
CONSTANT = (("c", np.arange(6, dtype=np.float32)),)


def fill(out: np.ndarray, value: int) -> None:
    out[...] = value


def double(x: np.ndarray, out: np.ndarray) -> None:
    np.multiply(x, 2, out=out)


def less(x: np.ndarray, limit: np.ndarray, out: np.ndarray) -> None:
    out[...] = x.sum() < limit


def half(n: np.ndarray, out: np.ndarray) -> None:
    out[...] = n // 2


FUNCTIONS: dict[str, Callable[..., object]] = {"fill": fill, "double": double, "less": less, "half": half}


def reading() -> Program:
    """y = n elements that are n, of which n is read; z = the constant, doubled until its sum is at least n."""
    return {
        "version": 1,
        "inputs": [["n", "int64", []]],
        "outputs": [["y", "float32", ["n"]], ["z", "float32", [2, 3]]],
        "code": [
            ["input", 0, 0],
            ["output", 1, 1],
            ["read", "n", 0],
            ["output", 2, 0],
            ["call", "fill", [], [2], ["n"]],
            ["constant", 3, 0, "float32", [2, 3]],
            ["copy", 1, 3],
            ["alloc", 4, "bool", []],
            ["call", "less", [1, 0], [4], []],
            ["if", 4, 14],
            ["alloc", 5, "float32", [2, 3]],
            ["call", "double", [1], [5], []],
            ["copy", 1, 5],
            ["again", 7],
            ["ret"],
        ],
    }


def invoking() -> Program:
    """The number of halvings until n is 0, as the extent of nothing: a function that invokes itself and doubles on the way back."""
    inner = {
        "inputs": [["n", "int64", []], ["x", "float32", ["m"]]],
        "outputs": [["y", "float32", ["m"]]],
        "code": [
            ["size", "m", 1, 0],
            ["input", 0, 0],
            ["input", 1, 1],
            ["output", 2, 0],
            ["alloc", 3, "bool", []],
            ["call", "less", [0, 0], [3], []],
            ["alloc", 4, "int64", []],
            ["call", "half", [0], [4], []],
            ["read", "k", 4],
            ["alloc", 5, "float32", ["m"]],
            ["copy", 2, 1],
            ["if", 3, 12],
            ["ret"],
        ],
    }
    whole = copy.deepcopy(inner)
    code = whole["code"]
    code[5] = ["call", "positive", [4], [3], []]
    code[5:8] = [code[6], code[7], code[5]]
    code[11:] = [["if", 3, 14], ["invoke", "f", [4, 1], [5]], ["call", "double", [5], [2], []], ["ret"]]
    main = copy.deepcopy(inner)
    main["code"] = [*inner["code"][:4], ["invoke", "f", [0, 1], [2]], ["ret"]]
    return {"version": 1, **main, "functions": {"f": whole}}


def positive(n: np.ndarray, out: np.ndarray) -> None:
    out[...] = n > 0


def machine(program: Program) -> VirtualMachine:
    return VirtualMachine(program, CONSTANT, {**FUNCTIONS, "positive": positive})


def test_sizes_are_read_in_each_call() -> None:
    vm = machine(reading())
    for n in (3, 0, 100, 3):
        y, z = vm(np.array(n))
        np.testing.assert_array_equal(y, np.full(n, n, np.float32))
        doublings = 0
        while (np.arange(6) * 2**doublings).sum() < n:
            doublings += 1
        np.testing.assert_array_equal(z, np.arange(6, dtype=np.float32).reshape(2, 3) * 2**doublings)
    assert [str(s) for s in vm.outputs] == ["y: float32[n]", "z: float32[2, 3]"]


def test_invocations() -> None:
    vm = machine(invoking())
    x = np.arange(3, dtype=np.float32)
    for n in (0, 1, 2, 9, 1000):
        np.testing.assert_array_equal(vm(np.array(n), x), x * 2 ** max(n.bit_length() - 1, 0))
    np.testing.assert_array_equal(vm(np.array(4), np.ones(5, np.float32)), np.full(5, 4, np.float32))


def test_run_into_the_arrays_of_the_caller() -> None:
    vm = machine(reading())
    made: list[np.ndarray] = []

    def outputs(shapes: Any) -> list[np.ndarray]:
        made[:] = [np.empty(s, np.float32) for s in shapes]
        return made

    vm.run_into([np.array(4)], outputs)
    np.testing.assert_array_equal(made[0], np.full(4, 4, np.float32))
    assert made[1].shape == (2, 3)


@pytest.mark.parametrize(
    ("at", "instruction", "message"),
    [
        (2, ["read", "n", 1], "does not read one element of type int64 in host memory"),
        (2, ["read", 7, 0], "output 0: the size 'n' is not known"),
        (2, ["read", "n", 9], "register 9 is not defined"),
        (2, ["read", "n"], "output 0: the size 'n' is not known"),
        (4, ["read", "k"], "instruction 4 of the program is unknown to this version, or has a wrong number of operands"),
        (4, ["read", "n", 0], "the size 'n' is defined twice"),
        (13, ["again", 14], "instruction 13 (again): target"),
        (13, ["again", -1], "instruction 13 (again): target"),
        (13, ["again", 6], None),
        (5, ["constant", 3, 0, "float32", [2, 2]], "constant 0 is float32[6], and the program takes it as float32[2, 2]"),
        (5, ["constant", 3, 0, "float64", [3]], "constant 0 is float32[6]"),
        (5, ["view", 3, 1, [7]], "[7] is not a view of [2, 3]"),
        (5, ["view", 3, 1, [["add", "n", -9]]], "has the negative extents"),
        (10, ["invoke", "f", [1], [1]], "the program has no function 'f'. It has: none"),
    ],
)
def test_malformed_programs(at: int, instruction: list[Any], message: str | None) -> None:
    program = reading()
    program["code"][at] = instruction
    if message is None:
        machine(program)  # an endless loop is a program
        return
    with pytest.raises(RunError, match=re.escape(message)):
        machine(program)(np.array(5))


def test_registers_and_sizes_of_another_way() -> None:
    """A jump over a definition is found when it happens."""
    ways = [
        (["alloc", 4, "float32", [3]], "uses register 4, which was not defined"),
        (["read", "k", 1], "uses the size 'k', which was not"),
    ]
    for skipped, message in ways:
        body = [["input", 0, 0], ["input", 1, 1], ["output", 2, 0], ["if", 0, 5], skipped, ["call", "fill", [], [2], [0]], ["ret"]]
        body[5] = ["copy", 2, 4] if skipped[0] == "alloc" else ["call", "fill", [], [2], ["k"]]
        body.insert(2, ["read", "j", 1])
        body[4][2] = 6
        inputs = [["c", "bool", []], ["n", "int64", []]]
        vm = machine({"version": 1, "inputs": inputs, "outputs": [["y", "float32", [3]]], "code": body})
        vm(np.array(True), np.array(5))
        with pytest.raises(RunError, match=re.escape(message)):
            vm(np.array(False), np.array(5))


def test_outputs_conditions_and_copies_are_checked() -> None:
    changes: list[tuple[int, list[Any], str]] = [
        (3, ["alloc", 2, "float32", ["n"]], "the program ends without its output y"),
        (3, ["output", 2, 1], "the program ends without its output y"),
        (6, ["copy", 1, 0], "is a copy between tensors that differ"),
        (9, ["if", 0, 14], "does not read one element of type bool in host memory"),
    ]
    for at, instruction, message in changes:
        program = reading()
        program["code"][at] = instruction
        with pytest.raises(RunError, match=re.escape(message)):
            machine(program)(np.array(2))


def test_outputs_without_memory() -> None:
    vm = machine(reading())
    for n in (2**62, 2**59):
        with pytest.raises(RunError, match="there is no memory for an output of shape"):
            vm(np.array(n))
    assert vm(np.array(2))[0].shape == (2,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.update(functions=[]), "the functions of the program are malformed"),
        (lambda p: p.update(functions={"f": 3}), "the functions of the program are malformed"),
        (lambda p: p["functions"]["f"]["code"].append(["goto", 99]), "instruction 15 (goto): target"),
        (lambda p: p["code"].__setitem__(4, ["invoke", "f", [0], [2]]), "f has 2 inputs, and is invoked with 1"),
        (lambda p: p["code"].__setitem__(4, ["invoke", "f", [0, 1], []]), "f has 1 outputs, and is invoked with 0"),
        (lambda p: p["code"].__setitem__(4, ["invoke", "f", [0, 0], [2]]), "which"),
        (lambda p: p["functions"]["f"]["code"].__setitem__(7, ["alloc", 3, "bool", []]), "defined twice"),
    ],
)
def test_malformed_functions(change: Callable[[Program], object], message: str) -> None:
    program = invoking()
    change(program)
    with pytest.raises(RunError):
        machine(program)(np.array(3), np.ones(2, np.float32))
    if message != "which":
        with pytest.raises(RunError, match=re.escape(message)):
            machine(program)


def test_recursion_without_an_end() -> None:
    program = invoking()
    program["functions"]["f"]["code"][12] = ["invoke", "f", [0, 1], [5]]
    with pytest.raises(RunError, match=f"f calls itself more than {DEEPEST} times"):
        machine(program)(np.array(3), np.ones(2, np.float32))


def test_a_failing_function_leaves_the_program_usable() -> None:
    def fail(out: np.ndarray, value: int) -> None:
        if value == 13:
            raise ValueError("unlucky")
        out[...] = value

    vm = VirtualMachine(reading(), CONSTANT, {**FUNCTIONS, "fill": fail})
    with pytest.raises(RunError, match="a call of the program failed: unlucky"):
        vm(np.array(13))
    np.testing.assert_array_equal(vm(np.array(2))[0], np.full(2, 2, np.float32))


def test_blocks_are_used_again_and_released() -> None:
    memory = Memory([], {})
    first = memory.tensor("float32", (1000,), "cpu")
    assert first.block is not None
    memory.give(first.block)
    again = memory.tensor("int64", (490,), "cpu")
    assert again.block is first.block
    memory.give(first.block)
    memory.end_run()
    assert memory.tensor("float32", (1000,), "cpu").block is first.block
    memory.give(first.block)
    memory.end_run()
    memory.end_run()
    assert memory.tensor("float32", (1000,), "cpu").block is not first.block


# ---- compiled programs -----------------------------------------------------------------------------------------------------------


def test_constants_are_operands_of_compiled_functions() -> None:
    b = GraphBuilder("main")
    x = b.input("x", (6,))
    n = b.read_size(b.sum(b.cast(b.greater(x, b.constant(np.float32(0))), dtype="int64"), axes=(0,)))
    table = b.constant(np.arange(12, dtype=np.float32).reshape(6, 2), "table")
    rows = b.strided_slice(table, axes=(0,), begin=(0,), end=(n,))
    b.output(rows, b.matmul(b.reshape(x, shape=(1, 6)), table))
    run = tunesmith.compile(IRModule({"main": b.finish()}))
    for x_ in (-np.ones(6), np.ones(6), np.arange(6) - 2.0):
        given = x_.astype(np.float32)
        rows_, product = run(given)
        np.testing.assert_array_equal(rows_, table.data[: (given > 0).sum()], strict=True)
        np.testing.assert_allclose(product, given[None] @ table.data, rtol=1e-6)


@pytest.mark.parametrize("start", [0, 3, -1, 4])
def test_sizes_of_one_function_may_be_zero_together(start: int) -> None:
    """Two sizes, of which at least one is 0: the start of a slice that may count from the end."""
    b = GraphBuilder("main")
    x, at = b.input("x", (4,)), b.input("at", (), "int64")
    zero = b.constant(np.int64(0))
    above = b.read_size(b.maximum(at, zero), "above")
    below = b.read_size(b.maximum(b.neg(at), zero), "below")
    begin = maximum(poly(above) - below + minimum(below, 1) * 4, 0)
    b.output(b.strided_slice(x, axes=(0,), begin=(begin,), end=(maximum(begin, 4),), strides=(1,)))
    run = tunesmith.compile(IRModule({"main": b.finish()}))
    given = np.arange(4, dtype=np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(run(given, np.array(start)), given[start:], strict=True)
