"""Test the interpreter: programs against numpy, every statement, run-time checks, and rejected programs."""

from __future__ import annotations

import itertools
import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Broadcast, Call, Expr, cast, const
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import InterpretError, run
from tunesmith.ir.poly import ONE, Poly, Var, floordiv, less_than, poly
from tunesmith.ir.stmt import Allocate, Block, BufferStore, Evaluate, For, If, Iter, Seq, Stmt, nest, seq, store
from tunesmith.ir.verify import verify
from tunesmith.ir.visit import transform
from tunesmith.support.errors import RunError, ScriptError

NAMES = ("matmul", "matmul_bias_relu", "conv_relu", "conv_relu_strided", "softmax", "tiled_matmul")


def x(v: Var) -> Poly:
    return poly(v)


def _run(body: Stmt, *arrays: Any, params: tuple[Any, ...], allocs: tuple[Buffer, ...] = (), **more: Any) -> list[np.ndarray]:
    func = PrimFunc("f", params, allocs, body)
    verify(func)
    return run(func, arrays, **more)


# ---- whole programs


@pytest.mark.parametrize("name", NAMES)
def test_programs_compute_their_reference(programs: ModuleType, name: str) -> None:
    program = programs.SMALL[name]()
    arrays = program.arrays(1)
    done = run(program.func, arrays)
    wanted = program.reference(*arrays)
    assert done[-1].dtype == wanted.dtype
    if name == "softmax":
        np.testing.assert_allclose(done[-1], wanted, rtol=1e-6)
    else:
        np.testing.assert_array_equal(done[-1], wanted)
    for given, kept in zip(arrays, done, strict=False):
        np.testing.assert_array_equal(given, kept)


@pytest.mark.parametrize(
    ("dtype", "out"), [("float64", None), ("float16", "float32"), ("int8", "int32"), ("uint8", "uint8"), ("bfloat16", "float32")]
)
def test_matmul_in_other_types(programs: ModuleType, dtype: str, out: str | None) -> None:
    program = programs.matmul(4, 5, 6, dtype, out)
    arrays = [np.abs(a) if dtype == "uint8" else a for a in program.arrays(2)]
    np.testing.assert_array_equal(run(program.func, arrays)[-1], program.reference(*arrays))


def test_imperfect_tiles_of_every_size(programs: ModuleType) -> None:
    """Configurations of a parametric program, biased to 1, the extents, and larger values."""
    params = programs.tile_params()
    program = programs.tiled_matmul(5, 7, 3, *params)
    arrays = program.arrays(3)
    for row in itertools.product((1, 2, 5), (1, 3, 8), (1, 3, 4)):
        done = run(program.func, arrays, dict(zip(params, row, strict=True)))
        np.testing.assert_array_equal(done[-1], program.reference(*arrays))


def test_arrays_by_name_instead_of_order(programs: ModuleType) -> None:
    program = programs.matmul(3, 4, 5)
    a, b = program.arrays()
    np.testing.assert_array_equal(run(program.func, {"B": b, "A": a})[2], a @ b)


def test_outputs_may_be_given_and_are_not_changed_in_place() -> None:
    a = Buffer("A", (3,))
    i = Var("i")
    given = np.ones(3, np.float32)
    done = _run(nest([(i, 2)], store(a, (i,), a[i] + const(1, "float32"))), given, params=(a,))
    np.testing.assert_array_equal(done[0], [2, 2, 1])
    np.testing.assert_array_equal(given, [1, 1, 1])


def test_symbolic_shapes_take_values() -> None:
    n, i = Var("n"), Var("i")
    a = Buffer("A", (x(n) + 1,))
    done = _run(nest([(i, x(n) + 1)], store(a, (i,), cast("float32", x(i) * n))), params=(a, n), values={n: 3})
    np.testing.assert_array_equal(done[0], [0, 3, 6, 9])


def test_more_loops_than_python_nests() -> None:
    """Forty loops with a guard each: Python compiles at most twenty nested loops and a hundred levels of indentation."""
    loops = [Var(f"i{n}") for n in range(40)]
    total = sum((x(v) for v in loops), poly(0))
    a = Buffer("A", (41,), "int32")
    body: Stmt = store(a, (total,), Binary("add", a[total], const(1, "int32")))
    for n, v in enumerate(reversed(loops)):
        body = For(v, poly(2 if n % 5 == 0 else 1), If(less_than(v, 2), If(less_than(x(v) - 1, 2), body)))
    done = _run(body, np.zeros(41, np.int32), params=(a,))
    np.testing.assert_array_equal(done[0][:9], [math.comb(8, n) for n in range(9)])


def test_names_need_not_be_identifiers() -> None:
    a, i = Buffer("for.a b", (2,)), Var("0-lambda")
    np.testing.assert_array_equal(_run(nest([(i, 2)], store(a, (i,), const(3, "float32"))), params=(a,))[0], [3, 3])


# ---- statements


@pytest.mark.parametrize("kind", ["serial", "parallel", "vectorized", "unrolled"])
def test_every_loop_kind_runs_all_iterations(kind: str) -> None:
    a, i = Buffer("A", (4,), "int64"), Var("i")
    done = _run(For(i, poly(4), store(a, (i,), x(i) * 10), kind), params=(a,), check_races=True)
    np.testing.assert_array_equal(done[0], [0, 10, 20, 30])


@pytest.mark.parametrize("tag", ["blockIdx.x", "blockIdx.y", "vthread.x"])
def test_block_indices_and_virtual_threads_run_sequentially(tag: str) -> None:
    a, i = Buffer("A", (4,), "int64"), Var("i")
    done = _run(For(i, poly(4), store(a, (i,), x(i)), "thread", tag), params=(a,), check_races=True)
    np.testing.assert_array_equal(done[0], [0, 1, 2, 3])


def test_threads_of_a_block_are_refused() -> None:
    a, i = Buffer("A", (4,), "int64"), Var("i")
    with pytest.raises(InterpretError, match=r"the loop i is bound to threadIdx.x, and threads of a block synchronize"):
        _run(For(i, poly(4), store(a, (i,), x(i)), "thread", "threadIdx.x"), params=(a,))


def test_if_else_and_seq() -> None:
    a, i = Buffer("A", (4,)), Var("i")
    one, two, three = (const(n, "float32") for n in (1, 2, 3))
    body = If(less_than(i, 2), store(a, (i,), one), seq([store(a, (i,), two), store(a, (i,), a[i] + three)]))
    np.testing.assert_array_equal(_run(nest([(i, 4)], body), params=(a,))[0], [1, 1, 5, 5])


def test_an_init_runs_when_all_reduction_variables_are_zero() -> None:
    """Also when the reduction loops are outside the spatial one."""
    c = Buffer("C", (3,), "int64")
    i, k, q, vi, vk, vq = (Var(n) for n in ("i", "k", "q", "vi", "vk", "vq"))
    made = Block(
        "C",
        (Iter(vi, poly(3), "S"), Iter(vk, poly(2), "R"), Iter(vq, poly(2), "R")),
        (x(i), x(k), x(q)),
        (),
        store(c, (vi,), poly(100)),
        store(c, (vi,), Binary("add", c[vi], x(vk) + x(vq) * 10)),
    )
    np.testing.assert_array_equal(_run(nest([(k, 2), (q, 2), (i, 3)], made), params=(c,))[0], [122, 122, 122])


def test_an_init_without_reduction_variables_always_runs() -> None:
    c, i, vi = Buffer("C", (2,), "int64"), Var("i"), Var("vi")
    made = Block("C", (Iter(vi, poly(2), "S"),), (x(i),), (), store(c, (vi,), poly(7)), store(c, (vi,), Binary("add", c[vi], ONE)))
    np.testing.assert_array_equal(_run(nest([(i, 2)], made), params=(c,))[0], [8, 8])


def test_a_predicate_is_a_conjunction() -> None:
    c, i, vi = Buffer("C", (6,), "int64"), Var("i"), Var("vi")
    made = Block("C", (Iter(vi, poly(6), "S"),), (x(i),), (x(i) - 4, poly(1) - i), None, store(c, (vi,), x(vi)))
    np.testing.assert_array_equal(_run(nest([(i, 6)], made), np.zeros(6, np.int64), params=(c,))[0], [0, 0, 2, 3, 0, 0])


def test_allocations_start_poisoned_each_time() -> None:
    a, i = Buffer("A", (3,)), Var("i")
    local = Buffer("L", (x(i) + 1,), scope="workspace")
    body = Allocate(local, seq([store(a, (i,), local[i]), store(local, (i,), const(1, "float32"))]))
    assert np.isnan(_run(nest([(i, 3)], body), params=(a,))[0]).all()


# ---- undefined memory


def test_unwritten_memory_is_poison() -> None:
    f, n, b = Buffer("F", (2,)), Buffer("N", (2,), "int16"), Buffer("B", (2,), "bool")
    c, d = Buffer("C", (2,)), Buffer("D", (1,), "int32")
    body = seq([store(f, (0,), f[1] + c[0]), store(n, (0,), cast("int16", d[0])), store(b, (0,), b[1])])
    done = _run(body, params=(f, n, b), allocs=(c, d))
    assert np.isnan(done[0]).all()
    assert done[1].tolist() == [np.int32(-1515870811).astype(np.int16), np.int16(-23131)]
    assert done[2].all()


def test_a_missing_init_poisons_the_result(programs: ModuleType) -> None:
    program = programs.matmul(2, 2, 2)
    func = program.func.with_(body=transform(program.func.body, {Block: lambda n, _: n.with_(init=None)}))
    assert np.isnan(run(func, program.arrays())[-1]).all()


# ---- accesses and bindings are checked


def test_a_load_out_of_range_is_refused_with_its_location() -> None:
    a, b, i, vi = Buffer("A", (3, 4)), Buffer("B", (5,)), Var("i"), Var("vi")
    made = Block("copy", (Iter(vi, poly(5), "S"),), (x(i),), (), None, store(b, (vi,), a[x(vi), 0]))
    message = r"load of A\[3, 0\] is out of range: the shape is \(3, 4\)\nin function f, at /i/copy, where i = 3, vi = 3"
    with pytest.raises(InterpretError, match=message):
        _run(nest([(i, 5)], made), np.zeros((3, 4), np.float32), params=(a, b))


@pytest.mark.parametrize("index", [-1, 4])
def test_a_store_out_of_range_is_refused(index: int) -> None:
    a, i = Buffer("A", (4,)), Var("i")
    with pytest.raises(
        InterpretError, match=rf"store to A\[{index}\] is out of range: the shape is \(4,\)\nin function f, at /i, where i = 0"
    ):
        _run(nest([(i, 1)], store(a, (x(i) + index,), const(0, "float32"))), params=(a,))


def test_a_binding_out_of_range_is_refused(programs: ModuleType) -> None:
    """A tile size that does not divide the extent, without its guard."""
    program = programs.tiled_matmul(4, 4, 4, 2, 3, 2)
    func = program.func.with_(body=transform(program.func.body, {Block: lambda n, _: n.with_(predicate=n.predicate[:1])}))
    message = (
        r"the bindings \(0, 4, 0\) are out of range: the extents are \(4, 4, 4\); a guard is missing\n"
        r"in function matmul, at .*/C, where .*j_1 = 1"
    )
    with pytest.raises(InterpretError, match=message):
        run(func, program.arrays())


@pytest.mark.parametrize(
    ("index", "lanes", "stride", "mask", "bad"),
    [(6, 4, 1, None, 8), (0, 4, 3, None, 9), (3, 4, -1, 4, None), (2, 4, -1, None, -1), (6, 4, 1, 2, None), (6, 4, 1, 3, 8)],
)
def test_vector_accesses_are_checked_lane_by_lane(index: int, lanes: int, stride: int, mask: int | None, bad: int | None) -> None:
    a, b = Buffer("A", (8,)), Buffer("B", (8,))
    part = (poly(stride), None if mask is None else poly(mask))
    loaded = BufferStore(b, (poly(0),), BufferLoad(a, (poly(index),), lanes, *part))
    stored = BufferStore(a, (poly(index),), Broadcast(const(1, "float32"), lanes), *part)
    data = np.arange(8, dtype=np.float32)
    for body, what in ((loaded, "vector load of"), (stored, "vector store to")):
        if bad is None:
            _run(body, data, params=(a, b))
        else:
            with pytest.raises(InterpretError, match=rf"{what} A\[{bad}\] is out of range"):
                _run(body, data, params=(a, b))


# ---- races


def _races(kind: str, index: Poly, read: Poly | None = None, *, i: Var, scope: str = "global") -> None:
    a, b = Buffer("A", (16,), scope=scope), Buffer("B", (16,))
    value: Expr = const(1, "float32") if read is None else a[read]
    body = For(i, poly(4), store(a, (index,), value), kind, None)
    func = PrimFunc("f", (b,), (a,), body) if scope != "global" else PrimFunc("f", (a, b), (), body)
    run(func, [], check_races=True)
    run(func, [])


@pytest.mark.parametrize("kind", ["parallel", "vectorized"])
def test_iterations_that_write_the_same_element_race(kind: str) -> None:
    i = Var("i")
    message = (
        rf"a race in the {kind} loop i of function f: "
        r"A\[0\] is written in iteration 0 and written in iteration 1, which may run concurrently"
    )
    with pytest.raises(InterpretError, match=message):
        _races(kind, floordiv(x(i), 2), i=i)
    _races("serial", floordiv(x(i), 2), i=i)
    _races("unrolled", floordiv(x(i), 2), i=i)


@pytest.mark.parametrize("kind", ["parallel", "vectorized"])
def test_iterations_that_read_an_element_another_writes_race(kind: str) -> None:
    i = Var("i")
    with pytest.raises(InterpretError, match=r"A\[1\] is written in iteration 0 and read in iteration 1"):
        _races(kind, x(i) + 1, x(i), i=i)
    with pytest.raises(InterpretError, match=r"A\[1\] is read in iteration 0 and written in iteration 1"):
        _races(kind, x(i), x(i) + 1, i=i)
    _races(kind, x(i), x(i) + 4, i=i)
    _races(kind, x(i), x(i), i=i)


def test_reductions_inside_one_iteration_do_not_race(programs: ModuleType) -> None:
    program = programs.matmul(3, 4, 5)
    func = program.func
    i, j, k = func.body, func.body.body, func.body.body.body
    for kinds in (("parallel", "vectorized", "serial"), ("serial", "parallel", "serial")):
        body = i.with_(kind=kinds[0], body=j.with_(kind=kinds[1], body=k.with_(kind=kinds[2])))
        run(func.with_(body=body), program.arrays(), check_races=True)
    with pytest.raises(
        InterpretError, match=r"the vectorized loop k of function matmul: C\[0, 0\] is written in iteration 0 and read in iteration 1"
    ):
        run(func.with_(body=i.with_(body=j.with_(body=k.with_(kind="vectorized")))), program.arrays(), check_races=True)


def test_lanes_of_vector_accesses_race() -> None:
    a, i = Buffer("A", (16,)), Var("i")
    for step, fails in ((4, False), (3, True)):
        body = For(i, poly(3), BufferStore(a, (x(i) * step,), BufferLoad(a, (x(i) * step,), 4)), "parallel")
        func = PrimFunc("f", (a,), (), body)
        if fails:
            with pytest.raises(InterpretError, match=r"A\[3\] is written in iteration 0 and read in iteration 1"):
                run(func, [np.zeros(16, np.float32)], check_races=True)
        else:
            run(func, [np.zeros(16, np.float32)], check_races=True)


def test_thread_private_scratch_does_not_race_and_is_reset() -> None:
    i = Var("i")
    _races("parallel", poly(0), i=i, scope="workspace")
    with pytest.raises(InterpretError, match="a race in the vectorized loop i"):
        _races("vectorized", poly(0), i=i, scope="workspace")
    out, scratch = Buffer("O", (3,)), Buffer("S", (1,), scope="workspace")
    body = For(i, poly(3), seq([store(out, (i,), scratch[0]), store(scratch, (0,), const(4, "float32"))]), "parallel")
    func = PrimFunc("f", (out,), (scratch,), body)
    np.testing.assert_array_equal(run(func, [])[0], [np.nan, 4, 4])
    assert np.isnan(run(func, [], check_races=True)[0]).all()


def test_intermediates_of_a_parallel_loop_may_come_from_an_outer_iteration() -> None:
    i, j, out, kept = Var("i"), Var("j"), Buffer("O", (2, 3)), Buffer("K", (3,))
    first = If(less_than(x(i), 1), store(kept, (j,), const(4, "float32")))
    body = For(i, poly(2), For(j, poly(3), seq([first, store(out, (i, j), kept[x(j)])]), "parallel"))
    assert (run(PrimFunc("f", (out,), (kept,), body), [], check_races=True)[0] == 4).all()


def test_memory_allocated_inside_an_iteration_does_not_race() -> None:
    i, out, local = Var("i"), Buffer("O", (3,)), Buffer("L", (1,))
    body = For(i, poly(3), Allocate(local, seq([store(local, (0,), const(4, "float32")), store(out, (i,), local[0])])), "parallel")
    np.testing.assert_array_equal(run(PrimFunc("f", (out,), (), body), [], check_races=True)[0], [4, 4, 4])


def test_races_are_found_inside_outlined_loops() -> None:
    """Deep nests are outlined to separate Python functions, which also track accesses."""
    a, i = Buffer("A", (1,)), Var("i")
    body = For(i, poly(2), nest([(Var(f"l{n}"), 1) for n in range(30)], store(a, (0,), const(1, "float32"))), "parallel")
    with pytest.raises(InterpretError, match=r"a race in the parallel loop i"):
        run(PrimFunc("f", (a,), (), body), [], check_races=True)


# ---- arguments


def test_wrong_arguments_are_refused(programs: ModuleType) -> None:
    program = programs.matmul(2, 3, 4)
    a, b = program.arrays()
    for arrays, message in (
        ([b, a], r"the buffer A is float32 of shape \(2, 4\), stored as float32, and got an array of float32 with shape \(4, 3\)"),
        ([a.astype(np.float64), b], r"got an array of float64 with shape \(2, 4\)"),
        ([a, b, a, b], r"has 3 buffer parameters \(A, B, C\) and got 4 arrays"),
        ({"A": a, "X": b}, "no parameter is named X; buffer parameters are A, B, C"),
    ):
        with pytest.raises(InterpretError, match=message):
            run(program.func, arrays)
    twice = PrimFunc("f", (Buffer("A", (1,)), Buffer("A", (1,))), (), Evaluate(ONE))
    with pytest.raises(InterpretError, match="two parameters are named A"):
        run(twice, {"A": np.zeros(1, np.float32)})
    assert issubclass(InterpretError, RunError)


def test_missing_and_invalid_values_are_refused(programs: ModuleType) -> None:
    params = programs.tile_params()
    program = programs.tiled_matmul(4, 4, 4, *params)
    with pytest.raises(InterpretError, match="the Param tj has no value: it is not bound here and not in `values`"):
        run(program.func, program.arrays(), {params[0]: 1, params[2]: 1})
    with pytest.raises(InterpretError, match="the value 99 is not in the domain of the Param ti"):
        run(program.func, program.arrays(), {params[0]: 99})
    n = Var("n")
    with pytest.raises(InterpretError, match="the shape of A, n, needs a value of n in `values`"):
        run(PrimFunc("f", (Buffer("A", (n,)), n), (), Evaluate(ONE)), [])
    negative = PrimFunc("f", (Buffer("A", (n,)), n), (), Evaluate(ONE))
    with pytest.raises(InterpretError, match=r"a buffer has the shape \(-1,\)"):
        run(negative, [], {n: -1})


_OUT = Buffer("A", (4,))
_I = Var("i")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (store(_OUT, (_I,), const(0, "float32")), "the variable i has no value"),
        (Seq((nest([(_I, 2)], Evaluate(ONE)), store(_OUT, (_I,), const(0, "float32")))), "the variable i has no value"),
        (store(_OUT, (0,), const(0, "int32")), "a value of int32 is stored to A: float32"),
        (BufferStore(_OUT, (), const(0, "float32")), "0 indices into A: float32"),
        (store(Buffer("B", (4,)), (0,), const(0, "float32")), "1 indices into B: float32.*, which is not allocated here with that rank"),
        (Iter(_I, ONE, "S"), "Iter is not a statement that can be interpreted"),
        (Evaluate(Evaluate(ONE)), "Evaluate is not a value that can be interpreted"),  # type: ignore[arg-type]
        (BufferStore(_OUT, (0,), const(0, "float32")), "an index expression was expected in f, got int"),  # type: ignore[arg-type]
        (Evaluate(Call("fma", (ONE,), "float32")), "fma of 1 arguments has no value"),
        (Block("B", (Iter(_I, ONE, "S"),), (), (), None, Evaluate(ONE)), "block B has 1 iteration variables and 0 bindings"),
    ],
)
def test_malformed_programs_are_refused(body: Any, message: str) -> None:
    with pytest.raises(InterpretError, match=message):
        run(PrimFunc("f", (_OUT,), (), body), [])


def test_an_unknown_intrinsic_is_refused() -> None:
    with pytest.raises(ScriptError, match="unknown intrinsic 'expp'"):
        run(PrimFunc("f", (), (), Evaluate(Call("expp", (ONE,), "int64"))), [])
