from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.runtime.executor.executable import Executable
from tunesmith.runtime.executor.executor import Executor
from tunesmith.runtime.executor.graph_executor import GraphExecutor
from tunesmith.runtime.module import load_executable
from tunesmith.runtime.profile import Profile, ProfileRow
from tunesmith.support.errors import RunError, UserError

Program = dict[str, Any]


def simple() -> Program:
    """y = 2 x + 1 in two calls, and x unchanged."""
    return {
        "version": 1,
        "inputs": [["x", "float32", [2, 3]]],
        "outputs": [["y", "float32", [2, 3]], ["x", "float32", [6]]],
        "arena": 64,
        "tensors": [
            ["input", 0, "float32", [2, 3]],
            ["arena", 0, "float32", [2, 3]],
            ["constant", 0, "float32", [2, 3]],
            ["output", 0, "float32", [2, 3]],
            ["output", 1, "float32", [6]],
        ],
        "calls": [["add", [0, 0], [1], []], ["add", [1, 2], [3], []], ["(copy)", [0], [4], []]],
    }


def add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    c[...] = a + b


CONSTANTS = (("ones", np.ones((2, 3), "float32")),)
X = np.arange(6, dtype="float32").reshape(2, 3)


def executor(program: Program | None = None) -> GraphExecutor:
    return GraphExecutor(program or simple(), CONSTANTS, {"add": add})


@pytest.fixture
def loaded(model: Any) -> Executor:
    return load_executable(model.graph)


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(1).integers(-4, 5, (4, 8)).astype("float32")


def test_compiled_model(model: Any, loaded: Executor, x: np.ndarray) -> None:
    assert repr(loaded) == "<graph executor (x: float32[4, 8]) -> (y: float32[2, 32], h: float32[4, 16], x: float32[4, 8])>"
    assert loaded.functions == ("dense", "plus")
    for scale in (1, 2):
        for got, want in zip(loaded(x * scale), model.reference(x * scale), strict=True):
            np.testing.assert_array_equal(got, want)


def test_outputs_of_a_call_are_new_arrays(loaded: Executor, x: np.ndarray) -> None:
    first = loaded(x)
    before = [a.copy() for a in first]
    loaded(x + 1)
    loaded.run()
    for now, then in zip(first, before, strict=True):
        np.testing.assert_array_equal(now, then)
    assert not np.shares_memory(first[2], x)


def test_set_input_run_get_output(model: Any, loaded: Executor, x: np.ndarray) -> None:
    with pytest.raises(RunError, match=r"the inputs x have not been set: call set_input"):
        loaded.run()
    with pytest.raises(RunError, match=r"nothing has run"):
        loaded.get_output(0)
    loaded.set_input("x", x)
    loaded.run()
    y = loaded.get_output("y")
    np.testing.assert_array_equal(y, model.reference(x)[0])
    x += 1  # the array is used in place
    loaded.run()
    np.testing.assert_array_equal(y, model.reference(x)[0])
    assert loaded.get_output(0) is y
    loaded.set_input(0, x * 2)
    loaded.run()
    np.testing.assert_array_equal(loaded.get_output(1), model.reference(x * 2)[1])


def test_an_output_as_input_is_copied() -> None:
    """The program writes y before it copies x: if x aliased y, it would copy y."""
    ex = executor()
    ex.set_input(0, X)
    value = X
    for _ in range(3):
        ex.run()
        np.testing.assert_array_equal(ex.get_output(1), value.ravel())
        value = 2 * value + 1
        np.testing.assert_array_equal(ex.get_output(0), value)
        ex.set_input(0, ex.get_output(0))


@pytest.mark.parametrize("how", ["strided", "transposed", "read-only", "subclass", "torch", "misaligned"])
def test_accepted_inputs(model: Any, loaded: Executor, x: np.ndarray, how: str) -> None:
    given: Any = x
    if how == "strided":
        given = np.repeat(x, 2, axis=1)[:, ::2]
    elif how == "transposed":
        given = np.ascontiguousarray(x.T).T
    elif how == "read-only":
        given = x.copy()
        given.flags.writeable = False
    elif how == "subclass":
        given = x.view(type("Mine", (np.ndarray,), {}))
    elif how == "torch":
        given = pytest.importorskip("torch").from_numpy(x)
    else:
        given = np.zeros(x.nbytes + 1, np.uint8)[1:].view("float32").reshape(x.shape)
        given[...] = x
    for got, want in zip(loaded(given), model.reference(x), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_tensor_with_a_lazy_negation_is_refused(loaded: Executor, x: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    given = torch._neg_view(torch.from_numpy(x))
    for call in (loaded, lambda a: loaded.set_input(0, a)):
        with pytest.raises(RunError, match=r"input 0 \(x: .*resolve_neg\(\) first"):
            call(given)
    loaded(given.resolve_neg())


def test_refusals_of_calls(x: np.ndarray, loaded: Executor) -> None:
    with pytest.raises(RunError, match=r"takes 1 input\(s\), got 2. They are: x: float32\[4, 8\]"):
        loaded(x, x)
    with pytest.raises(RunError, match=r"input 0 \(x: float32\[4, 8\]\): expected float32, got float64"):
        loaded(x.astype("float64"))
    with pytest.raises(RunError, match=r"expected float32, got >f4"):
        loaded(x.astype(">f4"))
    with pytest.raises(RunError, match=r"input 0 \(x: float32\[4, 8\]\): got shape \[8, 4\]"):
        loaded(x.T)
    with pytest.raises(RunError, match=r"got shape \[32\]"):
        loaded.set_input(0, x.ravel())
    with pytest.raises(RunError, match=r"expected an array \(numpy, torch .*\), got a value of type list"):
        loaded(x.tolist())
    for which in ("z", 1, -1):
        with pytest.raises(RunError, match=r"there is no input .*There are, from 0: x"):
            loaded.set_input(which, x)
    with pytest.raises(RunError, match=r"there is no output 'z'. There are, from 0: y, h, x"):
        loaded.get_output("z")
    with pytest.raises(RunError, match=r"has no function 'nothing'. It has: dense, plus"):
        loaded["nothing"]


def test_torch_refusals(x: np.ndarray, loaded: Executor) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(RunError, match=r"this torch.Tensor cannot be read through DLPack as CPU memory"):
        loaded(torch.zeros(4, 8, requires_grad=True))
    with pytest.raises(RunError, match=r"expected float32, got bfloat16"):
        loaded(torch.zeros(4, 8, dtype=torch.bfloat16))


def test_bfloat16_is_passed_unchanged() -> None:
    torch = pytest.importorskip("torch")
    program = simple()
    program["inputs"][0][1] = program["tensors"][0][2] = "bfloat16"
    program["outputs"], program["tensors"] = [["y", "float32", [2, 3]]], program["tensors"][:4]
    program["calls"] = [["widen", [0], [3], []]]

    def widen(a: np.ndarray, b: np.ndarray) -> None:
        assert a.dtype == np.uint16
        b[...] = (a.astype(np.uint32) << 16).view("float32")

    ex = GraphExecutor(program, CONSTANTS, {"widen": widen})
    np.testing.assert_array_equal(ex(torch.from_numpy(X).bfloat16()), X)
    with pytest.raises(RunError, match="expected bfloat16, got uint16"):
        ex(X.astype("uint16"))


def test_a_long_profile_is_printed_by_function() -> None:
    rows = [ProfileRow(i, "row" if i % 3 else "step", 2.0 if i % 3 else 5.0, 7) for i in range(150)]
    profile = Profile(rows)
    assert profile.by_function() == {"step": (50, 250.0), "row": (100, 200.0)}
    lines = str(profile).splitlines()
    assert len(lines) == 4 and lines[1].split() == ["50", "250.00", "55.6%", "step"] and lines[3].split() == ["150", "450.00", "all"]
    assert len(str(Profile(rows[:100])).splitlines()) == 102


@pytest.mark.parametrize(
    ("dtype", "number", "fits"),
    [
        ("int64", 3, True),
        ("int64", -(2**63), True),
        ("float32", 2, True),
        ("float32", 0.5, True),
        ("bool", True, True),
        ("int64", 2**63, False),
        ("uint8", -1, False),
        ("int64", 0.5, False),
        ("int64", True, False),
        ("bool", 1, False),
        ("float32", False, False),
    ],
)
def test_numbers_are_inputs_without_axes(dtype: str, number: float, fits: bool) -> None:
    program = {
        "version": 1,
        "inputs": [["x", dtype, []]],
        "outputs": [["y", dtype, []]],
        "arena": 0,
        "tensors": [["input", 0, dtype, []], ["output", 0, dtype, []]],
        "calls": [["(copy)", [0], [1], []]],
    }
    ex = GraphExecutor(program, (), {})
    if fits:
        assert ex(number) == number
    else:
        with pytest.raises(RunError, match=r"input 0 \(x: .*\): expected an array"):
            ex(number)


def test_bfloat16_results_are_arrays_of_ml_dtypes() -> None:
    program = simple()
    program["outputs"], program["tensors"] = [["y", "bfloat16", [2, 3]]], program["tensors"][:4]
    program["tensors"][3][2] = "bfloat16"
    program["calls"] = [["narrow", [0], [3], []]]

    def narrow(a: np.ndarray, b: np.ndarray) -> None:
        b[...] = (a.view(np.uint32) >> 16).astype(np.uint16)

    ex = GraphExecutor(program, CONSTANTS, {"narrow": narrow})
    y = ex(X)
    assert y.dtype.name == "bfloat16" and np.array_equal(y.astype(np.float32), X)
    ex.set_input(0, X + 1)
    ex.run()
    kept = ex.get_output("y")
    assert kept.dtype.name == "bfloat16" and np.array_equal(kept.astype(np.float32), X + 1)


def test_python_functions() -> None:
    ex = executor()
    y, x = ex(X)
    np.testing.assert_array_equal(y, 2 * X + 1)
    np.testing.assert_array_equal(x, X.ravel())
    assert ex["add"] is add


def test_failures_of_functions() -> None:
    def fail(*_: object) -> None:
        raise ValueError("out of order")

    ex = GraphExecutor(simple(), CONSTANTS, {"add": fail})
    for call in (ex, ex.profile):
        with pytest.raises(RunError, match="a call of the program failed: out of order"):
            call(X)


def test_one_output_is_not_a_tuple() -> None:
    program = simple()
    program["outputs"].pop(), program["tensors"].pop(), program["calls"].pop()
    assert isinstance(executor(program)(X), np.ndarray)


def test_profile(loaded: Executor, x: np.ndarray) -> None:
    with pytest.raises(RunError, match="profile: pass the inputs"):
        loaded.profile()
    with pytest.raises(UserError, match="repeats=0: expected an integer >= 1"):
        loaded.profile(x, repeats=0)
    profile = loaded.profile(x, repeats=3)
    assert [(row.call, row.function, row.calls) for row in profile] == [(0, "dense", 3), (1, "plus", 3), (2, "plus", 3), (3, "(copy)", 3)]
    assert all(isinstance(row, ProfileRow) and row.microseconds > 0 for row in profile)
    assert profile.microseconds == pytest.approx(sum(row.microseconds for row in profile))
    lines = str(profile).splitlines()
    assert lines[0].split() == ["call", "us", "share", "calls", "function"] and lines[-1].split()[-1] == "all"
    assert len(loaded.profile(repeats=1)) == 4


def test_two_executors_in_two_threads(model: Any, in_threads: Callable[..., None]) -> None:
    """Each executor has separate memory."""

    def work(seed: int) -> None:
        ex = load_executable(model.graph)
        rng = np.random.default_rng(seed)
        for _ in range(200):
            x = rng.integers(-4, 5, (4, 8)).astype("float32")
            for got, expected in zip(ex(x), model.reference(x), strict=True):
                np.testing.assert_array_equal(got, expected)

    in_threads(work, range(2))


def test_one_executor_in_two_threads(model: Any, loaded: Executor, in_threads: Callable[..., None]) -> None:
    """Calls are serialised."""

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(200):
            x = rng.integers(-4, 5, (4, 8)).astype("float32")
            for got, expected in zip(loaded(x), model.reference(x), strict=True):
                np.testing.assert_array_equal(got, expected)

    in_threads(work, range(2))


MALFORMED: list[tuple[tuple[object, ...], object, str]] = [
    (("inputs",), 3, "inputs: expected a list, got 3"),
    (("inputs", 0), ["x", "float32"], "inputs 0: expected a list of 3"),
    (("inputs", 0, 0), 7, "inputs 0: expected a text, got 7"),
    (("inputs", 0, 1), "float31", "'float31' is no element type"),
    (("inputs", 0, 2, 0), -2, "extent 0: expected an integer from 0"),
    (("inputs", 0, 2, 0), True, "extent 0: expected an integer from 0 to .*, got True"),
    (("outputs", 1, 0), "y", "two outputs of one name: y, y"),
    (("arena",), -1, "arena: expected an integer"),
    (("arena",), 2**61, "bytes for its intermediate tensors, which cannot be allocated"),
    (("arena",), 0, "there is no arena 0|tensor 1 of the program: a tensor of 24 bytes"),
    (("tensors", 1, 0), "stack", "'stack' is not a kind of storage"),
    (("tensors", 1, 1), 64, "there is no arena 64|does not fit"),
    (("tensors", 1, 1), 4, "there is no arena 4"),
    (("tensors", 1, 3), [2**40, 2**40], "tensor 1 of the program: a tensor of .* bytes at offset 0 does not fit"),
    (("tensors", 2, 1), 1, "there is no constant 1"),
    (("tensors", 2, 3), [2, 4], "tensor 2 of the program is float32.*, and its constant is float32"),
    (("tensors", 0, 3), [2, 4], "tensor 0 of the program, float32.*, is not a view of x: float32"),
    (("tensors", 3, 2), "int32", "tensor 3 of the program, int32.*, is not a view of y: float32"),
    (("calls", 0, 0), "sub", "the program calls 'sub', which its library does not have. It has: add"),
    (("calls", 0, 1), [0, 5], "call 0: tensors: expected an integer from 0 to 4, got 5"),
    (("calls", 0, 2), [2], "call 0 of the program writes to constant 0, which may only be read"),
    (("calls", 0, 2), [0], "call 0 of the program writes to input 0, which may only be read"),
    (("calls", 2, 1), [0, 0], "call 2 of the program is a copy between tensors that differ"),
    (("calls", 2), ["(copy)", [0], [4]], "call 2: expected a list of 4"),
]


@pytest.mark.parametrize(("path", "value", "message"), MALFORMED)
def test_malformed_programs(path: tuple[Any, ...], value: object, message: str) -> None:
    program = copy.deepcopy(simple())
    at: Any = program
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(RunError, match=message):
        executor(program)


def test_missing_parts() -> None:
    for key in ("inputs", "outputs", "arena", "tensors", "calls"):
        program = simple()
        del program[key]
        with pytest.raises(RunError, match=f"the program has no '{key}'"):
            executor(program)


def test_executables_without_code_or_executor() -> None:
    with pytest.raises(RunError, match="calls 'add', which its library does not have. It has: none"):
        load_executable(Executable("graph", simple(), CONSTANTS))
    with pytest.raises(RunError, match="the executable is of the kind 'tape', which no executor runs"):
        load_executable(Executable("tape", simple(), CONSTANTS))
