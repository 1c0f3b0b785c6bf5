"""Test placement of functions and copies between devices: goldens, refusals, and programs run on devices made of numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.graph.ir.builder import GraphBuilder, RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import Operand, TensorType
from tunesmith.graph.ir.verify import verify
from tunesmith.graph.passes.inline_functions import inline_functions
from tunesmith.graph.passes.insert_transfers import insert_transfers
from tunesmith.graph.passes.place_functions import place_functions, placed_like, target_of, unplaced, with_devices
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Var
from tunesmith.ir.target.target import Target
from tunesmith.ops import tensor_expression as te
from tunesmith.support.errors import BuildError, UserError

HOST, OPENCL = Target("llvm -mcpu=x86-64-v3 -num-cores=2"), Target("opencl")
FLOAT = TensorType.of((4,))


def prim(name: str, extent: object = 4) -> PrimFunc:
    """y = x + 1."""
    x = te.placeholder((extent,), name="x")
    made = te.create_prim_func([x, te.compute((extent,), lambda i: x[i] + 1.0, "y")], name)
    return made.with_(params=(*made.params[:2], *([extent] if isinstance(extent, Var) else [])))


def flag() -> PrimFunc:
    """Whether x[0] is negative."""
    x = te.placeholder((4,), name="x")
    return te.create_prim_func([x, te.compute((), lambda: x[0] < 0.0, "p")], "flag")


def module(main: GraphFunc, *others: GraphFunc) -> IRModule:
    functions = {"main": main, **{f.name: f for f in others}, **{n: prim(n) for n in ("host", "host2", "dev", "dev2")}, "flag": flag()}
    return place_functions(IRModule(functions), OPENCL, [("host*", HOST), ("flag", HOST)])


def lowered(mod: IRModule) -> IRModule:
    done = insert_transfers(with_devices(inline_functions(mod), OPENCL))
    for f in done.values():
        if isinstance(f, GraphFunc):
            verify(f, done)
    return done


def call(b: RegionBuilder, name: str, x: Operand) -> Operand:
    return b.call_function(name, [x], [FLOAT])[0]


def lines(mod: IRModule) -> list[str]:
    """The text of the bindings of `main`, without names of types."""
    return [line.strip().replace(', G.Tensor((4,), "float32")', "") for line in str(mod["main"]).splitlines()[2:]]


def test_a_chain_is_copied_once_in_each_direction() -> None:
    b = GraphBuilder("main")
    x = b.input("x", (4,))
    d = call(b, "dev", x)
    h = call(b, "host", d)
    done = lowered(module(b.finish(call(b, "dev2", h), call(b, "dev", x), call(b, "host2", d), h)))
    assert lines(done) == [
        'x_1 = G.transfer(x, device="opencl")',
        'dev = G.call("dev", (x_1,))',
        'dev_1 = G.transfer(dev, device="cpu")',
        'host = G.call("host", (dev_1,))',
        'host_1 = G.transfer(host, device="opencl")',
        'dev2 = G.call("dev2", (host_1,))',
        'dev_2 = G.call("dev", (x_1,))',
        'host2 = G.call("host2", (dev_1,))',
        "return dev2, dev_2, host2, host",
    ]
    (y, *_) = run(done["main"], [np.zeros(4, "float32")], done)
    assert (y == 3).all()


def test_branches_end_on_one_device_and_their_condition_is_on_the_host() -> None:
    b = GraphBuilder("main")
    x = b.input("x", (4,))
    d = call(b, "dev", x)
    p = b.call_function("flag", [d], [TensorType.of((), "bool")])[0]
    y = b.branch(p, lambda i: call(i, "dev2", d), lambda i: call(i, "host", x))
    done = lowered(module(b.finish(call(b, "dev", y))))
    text = str(done["main"])
    assert text.count("G.transfer") == 3 and 'G.transfer(dev, device="cpu")' in text and 'G.transfer(host, device="opencl")' in text
    for value, expected in ((0.0, 2.0), (-5.0, -2.0)):
        (found,) = run(done["main"], [np.full(4, value, "float32")], done)
        assert (found == expected).all()


def test_values_of_a_loop_stay_where_they_begin() -> None:
    b = GraphBuilder("main")
    d = call(b, "dev", b.input("x", (4,)))
    (y,) = b.loop(3, [d], lambda i, t, v: ([call(i, "host", v)], []))
    done = lowered(module(b.finish(call(b, "dev", y))))
    assert str(done["main"]).count("G.transfer") == 3  # x to the device, and two in each iteration
    (found,) = run(done["main"], [np.zeros(4, "float32")], done)
    assert (found == 5).all()


def test_called_functions_are_inlined() -> None:
    part = GraphBuilder("part")
    part_main = part.finish(call(part, "dev", call(part, "dev", part.input("v", (4,)))))
    outer = GraphBuilder("outer")
    outer_main = outer.finish(call(outer, "part", call(outer, "part", outer.input("v", (4,)))))
    b = GraphBuilder("main")
    x = call(b, "outer", b.input("x", (4,)))
    done = lowered(module(b.finish(call(b, "outer", x)), part_main, outer_main))
    assert "part" not in done and "outer" not in done and str(done["main"]).count("G.transfer") == 1
    (found,) = run(done["main"], [np.zeros(4, "float32")], done)
    assert (found == 8).all()


def test_recursion_is_refused() -> None:
    a, b = GraphBuilder("a"), GraphBuilder("b")
    made = [g.finish(call(g, other, g.input("v", (4,)))) for g, other in ((a, "b"), (b, "a"))]
    main = GraphBuilder("main")
    with pytest.raises(BuildError, match="a calls b calls a: graph functions that are inlined must not be recursive"):
        inline_functions(module(main.finish(call(main, "a", main.input("x", (4,)))), *made))


def test_a_module_of_the_host_is_unchanged() -> None:
    b = GraphBuilder("main")
    mod = IRModule({"main": b.finish(call(b, "dev", b.input("x", (4,)))), "dev": prim("dev")})
    assert place_functions(mod, HOST) is mod
    assert insert_transfers(with_devices(mod, HOST)) is mod and inline_functions(mod) is mod


def test_placement() -> None:
    b = GraphBuilder("main")
    mod = module(b.finish(call(b, "dev", b.input("x", (4,)))))
    assert target_of(mod["host"], OPENCL) == HOST and target_of(mod["dev"], OPENCL) is OPENCL
    assert unplaced(mod["host"]).attrs == () and unplaced(mod["dev"]) is mod["dev"]
    assert placed_like(prim("new"), mod["host"]).attr("target") == str(HOST) and placed_like(mod["dev"], mod["dev"]) is mod["dev"]
    first = place_functions(IRModule({"dev": prim("dev")}), OPENCL, [("d*", HOST), ("dev", OPENCL)])
    assert target_of(first["dev"], OPENCL) == HOST
    n = Var("n")
    dynamic = place_functions(IRModule({"dynamic": prim("dynamic", n)}), OPENCL, host=HOST)
    assert target_of(dynamic["dynamic"], OPENCL) == HOST


def test_a_pattern_without_a_function_is_refused() -> None:
    with pytest.raises(UserError, match=r"place='\*hots\*' matches no function of the model. Did you mean 'host'\? Its functions: host"):
        place_functions(IRModule({"host": prim("host")}), OPENCL, [("*hots*", HOST)])
    with pytest.raises(UserError, match="of the model. Its functions: host"):
        place_functions(IRModule({"host": prim("host")}), OPENCL, [("x", HOST)])
