"""Test both emitters and the lowered form: run programs on numpy functions and compare with a direct evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tunesmith.graph.emit.graph_program import emit_aot_program, emit_graph_program
from tunesmith.graph.emit.lowered_form import lowered_form
from tunesmith.graph.emit.vm_program import condition_data, emit_vm_program, index_data
from tunesmith.graph.ir.builder import GraphBuilder, RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, CallFunction, If, Operand, Region, TensorType, Value
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.ir.expr import Binary, Const, Not, binary
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Var, ceildiv, less_than, maximum, minimum, mod, poly
from tunesmith.ops import tensor_expression as te
from tunesmith.runtime.executor.graph_executor import GraphExecutor
from tunesmith.runtime.executor.index_program import evaluate, holds
from tunesmith.runtime.executor.virtual_machine import VirtualMachine
from tunesmith.support.errors import BuildError
from tunesmith.support.seeds import stream


def pick(rng: np.random.Generator, things: Sequence[Any]) -> Any:
    """A random element."""
    return things[int(rng.integers(len(things)))]


FLOAT, FLAG = TensorType.of((8,)), TensorType.of((), "bool")


def prim(name: str, inputs: int, outputs: int = 1) -> PrimFunc:
    """A function with these numbers of parameters; `NUMPY` defines its computation in the tests."""
    xs = [te.placeholder((8,), name=f"x{i}") for i in range(inputs)]
    ys = [te.compute((8,), lambda i: xs[0][i] + 1.0, f"y{o}") for o in range(outputs)]
    return te.create_prim_func([*xs, *ys], name)


PRIMS = {"mix": prim("mix", 2), "next": prim("next", 1), "both": prim("both", 2, 2), "odd": prim("odd", 1)}


def _mix(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    np.copyto(c, (3 * a + b.reshape(a.shape)) % 101)


def _next(a: np.ndarray, b: np.ndarray) -> None:
    np.copyto(b, (a * 7 + 1) % 101)


def _both(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> None:
    c[...], d[...] = (a + b) % 101, (a - 2 * b) % 101


def _odd(a: np.ndarray, b: np.ndarray) -> None:
    b[...] = a.sum() % 2 == 1


NUMPY: dict[str, Callable[..., None]] = {"mix": _mix, "next": _next, "both": _both, "odd": _odd}


def run_both(module: IRModule, *arrays: np.ndarray) -> list[Any]:
    """The results of two runs on the virtual machine and, if there is no branch, of two runs on the graph executor."""
    found = []
    func = module["main"]
    kinds: list[tuple[Any, Any]] = [(emit_vm_program, VirtualMachine)]
    if not any(isinstance(b.operation, If) for b in func.body.bindings):
        kinds.append((emit_graph_program, GraphExecutor))
    for emit, executor in kinds:
        ex = executor(*emit(module), NUMPY)
        for _ in range(2):
            made = ex(*arrays)
            found.append(made if isinstance(made, tuple) else (made,))
    return found


class Direct:
    """Evaluate a graph function binding by binding."""

    def __init__(self, module: IRModule) -> None:
        self.module = module

    def call(self, func: GraphFunc, arrays: list[np.ndarray]) -> list[np.ndarray]:
        env = dict(zip(func.params, arrays, strict=True))
        return self.region(func.body, env)

    def region(self, region: Region, outer: dict[Value, np.ndarray]) -> list[np.ndarray]:
        env = dict(outer)
        for b in region.bindings:
            env.update(zip(b.results, self.binding(b, env), strict=True))
        return [self.get(r, env) for r in region.results]

    def get(self, o: Operand, env: dict[Value, np.ndarray]) -> np.ndarray:
        return env[o] if isinstance(o, Value) else o.data

    def binding(self, b: Binding, env: dict[Value, np.ndarray]) -> list[np.ndarray]:
        args = [self.get(a, env) for a in b.operation.args]
        if isinstance(b.operation, If):
            return self.region(b.operation.then if args[0].item() else b.operation.otherwise, env)
        if isinstance(b.operation, CallFunction):
            callee = self.module[b.operation.function]
            if isinstance(callee, GraphFunc):
                return self.call(callee, args)
            made = [np.zeros(r.type.extents, r.type.dtype) for r in b.results]
            NUMPY[b.operation.function](*args, *made)
            return made
        return [args[0].reshape(b.results[0].type.extents)]


def random_bindings(b: RegionBuilder, known: list[Operand], rng: np.random.Generator, depth: int, helpers: list[str]) -> list[Operand]:
    """Append random bindings; returns all available values, each float32[8]."""
    known = list(known)
    for _ in range(int(rng.integers(1, 7 + 1))):
        kind = rng.random()
        x, y = pick(rng, known), pick(rng, known)
        if kind < 0.35:
            known += b.call_function("mix", [x, y], [FLOAT])
        elif kind < 0.5:
            known += b.call_function("next", [x], [FLOAT])
        elif kind < 0.65:
            known += b.call_function("both", [x, y], [FLOAT, FLOAT])
        elif kind < 0.8:
            known.append(b.reshape(b.reshape(x, shape=(2, 4)), shape=(8,)))
        elif kind < 0.9 and helpers:
            known += b.call_function(pick(rng, helpers), [x, y], [FLOAT, FLOAT])
        elif depth:
            (flag,) = b.call_function("odd", [x], [FLAG])
            count, outside = int(rng.integers(1, 4)), list(known)

            def side(inner: RegionBuilder, count: int = count, outside: list[Operand] = outside) -> tuple[Operand, ...]:
                made = random_bindings(inner, outside, rng, depth - 1, helpers)
                return tuple(pick(rng, made[-4:]) for _ in range(count))

            made = b.branch(flag, side, side)
            known += made if isinstance(made, tuple) else (made,)
    return known


@pytest.mark.parametrize("seed", range(150))
def test_fuzz(seed: int) -> None:
    """Random functions with views, nested branches, calls of graph functions, and results that are views, inputs, constants or repeated."""
    rng = stream(seed, "emit_programs")
    functions: dict[str, Any] = dict(PRIMS)
    helpers: list[str] = []
    for level in range(int(rng.integers(0, 2 + 1))):
        g = GraphBuilder(f"helper{level}")
        known = random_bindings(g, [g.input("a", (8,)), g.input("b", (8,))], rng, 0, helpers)
        functions[g.name] = g.finish(pick(rng, known), pick(rng, known))
        helpers.append(g.name)
    b = GraphBuilder()
    data = np.random.default_rng(seed).integers(0, 100, (3, 8)).astype("float32")
    start: list[Operand] = [b.input("p", (8,)), b.input("q", (8,)), b.constant(data[2], "c")]
    known = random_bindings(b, start, rng, 2 if seed % 3 else 0, helpers)
    functions["main"] = b.finish(*[pick(rng, known) for _ in range(int(rng.integers(1, 4 + 1)))])
    module = IRModule(functions)
    want = Direct(module).call(functions["main"], [data[0], data[1]])
    for found in run_both(module, data[0], data[1]):
        for got, w in zip(found, want, strict=True):
            np.testing.assert_array_equal(got, w)


def chain(length: int) -> IRModule:
    b = GraphBuilder()
    x: Any = b.input("x", (8,))
    for _ in range(length):
        (x,) = b.call_function("next", [x], [FLOAT])
    return IRModule({**PRIMS, "main": b.finish(x)})


def test_memory_is_shared() -> None:
    """A chain of any length needs two buffers; its last result is stored in the output."""
    program, constants = emit_graph_program(chain(20))
    assert program["arena"] == 128 and constants == ()
    assert program["calls"][-1][2] == [len(program["tensors"]) - 1] and program["tensors"][-1][:2] == ["output", 0]
    code, _ = emit_vm_program(chain(20))
    vm = VirtualMachine(code, (), NUMPY)
    vm(np.zeros(8, "float32"))
    assert vm._arena.nbytes == 128


def test_unused_results_are_freed() -> None:
    b = GraphBuilder()
    x = b.input("x", (8,))
    for _ in range(5):
        b.call_function("both", [x, x], [FLOAT, FLOAT])
    module = IRModule({**PRIMS, "main": b.finish(*b.call_function("next", [x], [FLOAT]))})
    assert emit_graph_program(module)[0]["arena"] == 128
    assert [ins[0] for ins in emit_vm_program(module)[0]["code"]].count("free") == 10


def test_branches_write_to_the_storage_of_the_result() -> None:
    b = GraphBuilder()
    x = b.input("x", (8,))
    (flag,) = b.call_function("odd", [x], [FLAG])
    y = b.branch(flag, lambda r: r.call_function("next", [x], [FLOAT])[0], lambda r: x)
    module = IRModule({**PRIMS, "main": b.finish(y)})
    code = [ins for ins in emit_vm_program(module)[0]["code"] if ins[0] not in ("check", "input")]
    assert code == [
        ["output", 1, 0],
        ["alloc", 2, "bool", []],
        ["call", "odd", [0], [2], []],
        ["if", 2, 8],
        ["call", "next", [0], [1], []],
        ["goto", 9],
        ["copy", 1, 0],
        ["free", 2],
        ["ret"],
    ]


def test_constants_are_stored_once_with_unique_names() -> None:
    b = GraphBuilder()
    x = b.input("x", (8,))
    made = x
    for value in (1.0, 1.0, 2.0):
        (made,) = b.call_function("mix", [made, b.constant(np.full(8, value, "float32"), "c")], [FLOAT])
    module = IRModule({**PRIMS, "main": b.finish(made)})
    for emit in (emit_graph_program, emit_vm_program):
        names = [(name, array[0]) for name, array in emit(module)[1]]
        assert names == [("c", 1.0), ("c_1", 2.0)]


def test_names_of_inputs_and_outputs_are_made_unique() -> None:
    b = GraphBuilder()
    x, y = b.input("x", (8,)), b.input("x", (8,))
    module = IRModule({**PRIMS, "main": b.finish(x, y)})
    for emit in (emit_graph_program, emit_vm_program):
        program = emit(module)[0]
        assert [row[0] for row in program["inputs"]] == [row[0] for row in program["outputs"]] == ["x", "x_1"]


def sized(n: Any, m: Any) -> GraphFunc:
    """mix(x, x) for x: [n, m], flattened; requires n < m."""
    b = GraphBuilder("inner")
    x = b.input("x", (n, m))
    (made,) = b.call_function("mix", [x, x], [TensorType.of((n, m))], [n, m])
    b.assume(less_than(n, m))
    return b.finish(b.reshape(made, shape=(poly(n) * m,)))


def test_inlined_functions_take_the_sizes_of_the_call() -> None:
    n, m, k = Var("n"), Var("m"), Var("k")
    seen: list[tuple[int, ...]] = []

    def mix(a: np.ndarray, b: np.ndarray, c: np.ndarray, *sizes: int) -> None:
        seen.append(sizes)
        np.add(a, b, out=c)

    extra = PRIMS["mix"].with_(params=(*PRIMS["mix"].params, n, m))
    b = GraphBuilder()
    x, _ = b.input("x", (2, poly(k) + 1)), b.input("k", (k,))
    (made,) = b.call_function("inner", [x], [TensorType.of((poly(k) * 2 + 2,))])
    module = IRModule({"main": b.finish(made), "inner": sized(n, m), "mix": extra})
    program, _ = emit_vm_program(module)
    vm = VirtualMachine(program, (), {"mix": mix})
    assert [str(s) for s in (*vm.inputs, *vm.outputs)] == ["x: float32[2, k+1]", "k: float32[k]", "inner: float32[2*k+2]"]
    for size in (2, 5):
        x_ = np.arange(2 * size + 2, dtype="float32").reshape(2, size + 1)
        np.testing.assert_array_equal(vm(x_, np.zeros(size, "float32")), 2 * x_.ravel())
    assert seen == [(2, 3), (2, 6)]
    with pytest.raises(Exception, match=r"the program requires k > 1, and the inputs have k = 1"):
        vm(np.zeros((2, 2), "float32"), np.zeros(1, "float32"))


def test_programs_are_deterministic() -> None:
    for emit in (emit_graph_program, emit_vm_program):
        assert emit(chain(5)) == emit(chain(5))


# ---- index expressions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_index_data_has_the_value_of_the_expression(seed: int) -> None:
    from tunesmith.ir import poly as p

    rng = stream(seed, "emit_programs")
    n, m = Var("n"), Var("m")

    def expression(depth: int) -> Any:
        if depth == 0:
            return pick(rng, [poly(n), poly(m), poly(int(rng.integers(-5, 20 + 1)))])
        a, b = expression(depth - 1), expression(depth - 1)
        op = int(rng.integers(8))
        by = pick(rng, [poly(n), poly(int(rng.integers(1, 9 + 1))), poly(m) + 1])
        return [a + b, a - b, a * b, a // by, mod(a, by), ceildiv(a, by), minimum(a, b), maximum(a, b)][op]

    e = expression(3)
    data = index_data(e, {n: "n", m: "m"})
    condition = condition_data(less_than(e, 40), {n: "n", m: "m"})
    for values in ((1, 1), (3, 7), (12, 5)):
        sizes = dict(zip("nm", values, strict=True))
        want = p.evaluate(e, dict(zip((n, m), values, strict=True)))
        assert evaluate(data, sizes) == want
        assert holds(condition, sizes) == (want < 40)


def test_condition_data() -> None:
    n = Var("n")
    small, big = less_than(n, 9), less_than(3, n)
    names = {n: "n"}
    assert condition_data(Binary("or", small, Not(big)), names) == [
        "or",
        ["negative", ["add", "n", -9]],
        ["not", ["negative", ["add", ["mul", -1, "n"], 3]]],
    ]
    assert condition_data(poly(n) - 9, names) == condition_data(small, names)
    assert condition_data(Const(True, "bool"), names) is True
    with pytest.raises(
        BuildError, match="an assumption on sizes may contain comparisons of index expressions, and, or and not; got Binary"
    ):
        condition_data(binary("add", Const(1.0, "float32"), Const(2.0, "float32")), names)


# ---- errors --------------------------------------------------------------------------------------------------------------------


def error_of(finish: Callable[[GraphBuilder], Any], emit: Any = emit_graph_program, **functions: Any) -> str:
    b = GraphBuilder()
    func = finish(b)
    with pytest.raises(BuildError) as caught:
        emit(IRModule({**PRIMS, **functions, "main": func}))
    return str(caught.value)


def test_functions_not_in_lowered_form() -> None:
    with pytest.raises(BuildError, match="next is not a graph function but a PrimFunc"):
        lowered_form(IRModule(PRIMS), "next")
    operator = next(name for name in GRAPH_OPERATORS.names() if name in ("relu", "neg", "exp"))
    text = error_of(lambda b: b.finish(b.call(operator, b.input("x", (8,)))))
    assert f"main: {operator} is computed by the operator {operator}, not by a function of the module. Lower the graph first" in text
    text = error_of(lambda b: b.finish(*b.call_function("absent", [b.input("x", (8,))], [FLOAT])))
    assert text == "main calls absent, which is not a function of the module"
    text = error_of(lambda b: b.finish(*b.call_function("mix", [b.input("x", (8,))], [FLOAT])))
    assert text == "main: mix has 3 parameters, but is called with 1 operands, 1 results and 0 sizes"


def test_recursion() -> None:
    """A function that calls itself is a function of the program, with constants in the table of all."""
    inner = GraphBuilder("inner")
    x, c = inner.input("x", (8,)), inner.input("c", (), "bool")
    again = lambda r: r.call_function("inner", [r.call_function("next", [x], [FLOAT])[0], c], [FLOAT])[0]  # noqa: E731
    func = inner.finish(inner.branch(c, again, lambda r: x))
    build = lambda b: b.finish(*b.call_function("inner", [b.input("x", (8,)), b.input("c", (), "bool")], [FLOAT]))  # noqa: E731
    b = GraphBuilder()
    program, _ = emit_vm_program(IRModule({**PRIMS, "inner": func, "main": build(b)}))
    assert ["invoke", "inner", [0, 1], [2]] in program["code"] and list(program["functions"]) == ["inner"]
    assert "invoke" in {ins[0] for ins in program["functions"]["inner"]["code"]}
    for emit in (emit_graph_program, emit_aot_program):
        text = error_of(build, emit, inner=func)
        assert text.startswith("main calls functions that call themselves, but this executor supports only lists of calls.")


def test_functions_not_supported_by_the_graph_executor() -> None:
    text = error_of(lambda b: b.finish(b.input("x", (Var("n"),))))
    assert text == (
        "main: x: float32[n] has a dynamic shape, but this executor supports only static shapes. "
        'Compile it for the virtual machine: executor="vm"'
    )
    text = error_of(lambda b: b.finish(b.branch(b.input("c", (), "bool"), lambda r: b.params[0], lambda r: b.params[0])))
    assert text.startswith("main has branches or `while` loops, but the graph executor supports only sequences of calls.")
    assert text.endswith('or ahead of time: executor="aot"')


def test_unknown_sizes() -> None:
    text = error_of(lambda b: b.finish(b.input("x", (poly(Var("n")) * 2,))), emit_vm_program)
    assert text == "the size n is unknown at run time: it is not an extent of a parameter. Add a parameter with this extent"
