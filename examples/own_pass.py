"""Write a pass with options, insert it into the CPU pipeline, and see what it changes.

The pass replaces divisions by constants with multiplications.  The quotient is the same where the reciprocal is exact, that is for powers
of two; other divisors are rounded differently, and the option `inexact` allows them.

    python examples/own_pass.py
"""

import math

import numpy as np

import tunesmith
from tunesmith import te
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.instruments import PassDiff
from tunesmith.ir.expr import Binary, Const
from tunesmith.ir.function import IRModule
from tunesmith.ir.visit import transform, with_body
from tunesmith.passes import CPU, PassContext, function_pass


@function_pass(requires="FLAT")
def divide_by_multiplying(func, target, *, inexact=False):
    """Replace divisions by constants with multiplications.

    A pass gets a PrimFunc and the target and returns a PrimFunc; it never changes the one that it gets.  `requires` is the stage of
    lowering that it works on: FLAT is after `flatten_buffers` and before `vectorize_loops`.  Keyword-only parameters are its options.

    Rewrite:
        C[i] = A[i] / 8.0
      ->
        C[i] = A[i] * 0.125
    """

    def on_binary(n, recurse):
        # Handlers run top down: `recurse` rewrites the operands.  A node without changes stays the same object.
        n = n.map_children(recurse)
        if n.op != "div" or not isinstance(n.b, Const) or not n.b.value:
            return n
        exact = abs(math.frexp(n.b.value)[0]) == 0.5
        return n.a * (1.0 / n.b.value) if exact or inexact else n

    return with_body(func, transform(func.body, {Binary: on_binary}))


def scaled():
    """B[i] = A[i] / 8 + A[i] / 3."""
    a = te.placeholder((64,), name="A")
    b = te.compute((64,), lambda i: a[i] / 8.0 + a[i] / 3.0, name="B")
    return te.create_prim_func([a, b], "scaled")


def main():
    func, target = scaled(), tunesmith.Target.detect()

    # Pipelines are values: `insert_after` and `without` make others, and check that each pass finds the stage that it needs.
    exact = CPU.insert_after("legalize_bool_storage", divide_by_multiplying)
    print(*exact.names[-8:])

    # An instrument is called before and after each pass; this one prints what the pass changes.
    with PassContext(instruments=[PassDiff("divide_by_multiplying")]):
        exact(func, target)

    # The same pass with an option; values of the wrong type and unknown options are refused.
    loose = divide_by_multiplying.with_options(inexact=True)
    print(loose)
    pipeline = CPU.insert_after("legalize_bool_storage", loose)
    with PassContext(instruments=[PassDiff("divide_by_multiplying")]):
        module = tunesmith.build(func, target, lowering=pipeline)

    a = np.linspace(-1, 1, 64, dtype=np.float32)
    b = np.empty_like(a)
    module["scaled"](a, b)
    np.testing.assert_allclose(b, a / 8 + a / 3, rtol=1e-6)
    print("\nfunction: equal to numpy")

    # A model takes the pipeline for all of its functions as `lowering`.
    builder = GraphBuilder("main")
    x = builder.input("x", (64,))
    graph = builder.finish(builder.divide(x, builder.constant(np.float32(4))))
    model = tunesmith.compile(IRModule({"main": graph}), target, lowering=pipeline)
    assert np.array_equal(model(a), a / 4)
    print("model: equal to numpy")


if __name__ == "__main__":
    main()
