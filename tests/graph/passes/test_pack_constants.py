"""Test constant packing: packed copies are computed once, and functions without constant operands keep their packing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.builder import GraphBuilder, RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import CallFunction, Constant, Operand, TensorType, all_bindings
from tunesmith.graph.ir.verify import verify
from tunesmith.graph.passes import pack_constants as pack_constants_module
from tunesmith.graph.passes.pack_constants import pack_constants
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.ops.workload import workload
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.seeds import stream

HERE = Target("llvm").with_attributes(num_cores=2)
ELSEWHERE = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1 -num-cores=2")
M, N, K = 3, 20, 5
RESULT = TensorType.of((M, N))
SHAPE = [[1, "/", 8], 0, [1, "%", 8]]


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return stream(seed, "packing", *shape).standard_normal(shape).astype(np.float32)


def dense(pack: bool = True) -> PrimFunc:
    s = Schedule(workload(f"dense(m={M},n={N},k={K},bias=0)").func)
    if pack:
        s.annotate(s.cache_read(s.get_block("C"), "W", "global", SHAPE), "pack_constant", "W")
    return s.func


def module(fill: Callable[[GraphBuilder, Operand], Any], **functions: Any) -> IRModule:
    b = GraphBuilder("main")
    made = fill(b, b.input("x", (M, K)))
    return IRModule({"main": b.finish(*(made if isinstance(made, tuple) else (made,))), "dense": dense(), **functions})


def call(b: RegionBuilder, x: Operand, w: Operand) -> Operand:
    return b.call_function("dense", [x, w], [RESULT])[0]


def packed(mod: IRModule, target: Target = HERE) -> IRModule:
    """The module after the pass; checks that it computes the same and that a second run changes nothing."""
    done = pack_constants(mod, target)
    for f in done.values():
        if isinstance(f, GraphFunc):
            verify(f, done)
    arrays = [data(M, K, seed=9)] + [np.array(True)] * (len(mod["main"].params) - 1)
    for a, w in zip(run(done["main"], arrays, done), run(mod["main"], arrays, mod), strict=True):
        np.testing.assert_allclose(a, w, rtol=1e-5, atol=1e-5)
    assert pack_constants(done, target) is done
    return done


def calls(mod: IRModule) -> list[CallFunction]:
    return [b.operation for b in all_bindings(mod["main"].body) if isinstance(b.operation, CallFunction)]


@pytest.mark.parametrize("target", (HERE, ELSEWHERE))
def test_weights_are_packed(target: Target) -> None:
    """Also for a machine whose code cannot run here."""
    w = data(K, N)
    done = packed(module(lambda b, x: call(b, x, b.constant(w, "w"))), target)
    assert list(done) == ["main", "dense__packed"]
    (found,) = calls(done)
    copy = found.args[1]
    assert isinstance(copy, Constant) and copy.name == "w_packed" and copy.data.shape == (3, K, 8)
    wanted = np.zeros((K, 24), np.float32)
    wanted[:, :N] = w
    np.testing.assert_array_equal(copy.data, wanted.reshape(K, 3, 8).transpose(1, 0, 2))


def test_packed_copies_share_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies share blocks large enough for huge pages; a copy that does not fit starts a new block."""
    size = 3 * K * 8 * 4
    monkeypatch.setattr(pack_constants_module, "CHUNK", 2 * size + 64)
    weights = [data(K, N, seed=i) for i in range(3)]
    done = packed(module(lambda b, x: tuple([call(b, x, b.constant(w, f"w{i}")) for i, w in enumerate(weights)])))
    first, second, third = [c.args[1].data.ctypes.data for c in calls(done) if isinstance(c.args[1], Constant)]
    assert second - first == -(-size // 64) * 64 and first % 64 == 0 and third - second != second - first


def test_weights_used_twice_are_packed_once() -> None:
    """Also equal weights of another name, and weights in branches."""

    def fill(b: GraphBuilder, x: Operand) -> Any:
        w, same, other = b.constant(data(K, N), "w"), b.constant(data(K, N), "same"), b.constant(data(K, N, seed=1), "other")
        p = b.input("p", (), "bool")
        return call(b, x, w), call(b, x, other), b.branch(p, lambda r: call(r, x, same), lambda r: r.relu(call(r, x, w)))

    done = packed(module(fill))
    copies = [c.args[1] for c in calls(done)]
    assert len(copies) == 4 and len(set(copies)) == 2


def test_functions_with_a_non_constant_operand_keep_their_packing() -> None:
    b = GraphBuilder("main")
    x, v = b.input("x", (M, K)), b.input("v", (K, N))
    mod = IRModule({"main": b.finish(call(b, x, b.constant(data(K, N), "w")), call(b, x, v)), "dense": dense()})
    assert pack_constants(mod, HERE) is mod


def test_unaffected_functions() -> None:
    """Functions that pack nothing, functions without callers, and graph functions that call no packing function."""
    plain = module(lambda b, x: call(b, x, b.constant(data(K, N), "w")), dense=dense(pack=False))
    assert pack_constants(plain, HERE) is plain
    nobody = module(lambda b, x: b.relu(x))
    assert pack_constants(nobody, HERE) is nobody
    b = GraphBuilder("other")
    x, p = b.input("x", (M, K)), b.input("p", (), "bool")
    other = b.finish(b.branch(p, lambda r: r.relu(x), lambda r: x))
    mod = module(lambda b, x: call(b, x, b.constant(data(K, N), "w")), other=other)
    done = packed(mod)
    assert done["other"] is other and done["main"] is not mod["main"]
