"""Define an operator, compile it, check it against numpy, tune it and compile it with the best schedule.

Root mean square normalization (Zhang and Sennrich, 2019): each row is divided by its root mean square and multiplied by a weight.

    python examples/own_operator.py
"""

from pathlib import Path

import numpy as np

import tunesmith
from tunesmith import script as T
from tunesmith import te

ROWS, COLUMNS, EPSILON = 96, 256, 1e-5
LOG = Path("own_operator.jsonl")


def rms_norm():
    """The operator as a tensor expression: each `compute` gives the formula of one element, without loops or an order."""
    x = te.placeholder((ROWS, COLUMNS), name="X")
    weight = te.placeholder((COLUMNS,), name="W")
    k = te.reduce_axis(COLUMNS, "k")
    squares = te.compute((ROWS,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), name="squares")
    y = te.compute((ROWS, COLUMNS), lambda i, j: x[i, j] / te.sqrt(squares[i] / COLUMNS + EPSILON) * weight[j], name="Y")
    # Parameters are listed in order; `squares` is not one of them, so it becomes an intermediate buffer.
    return te.create_prim_func([x, weight, y], name="rms_norm")


@T.prim_func
def double_rows(X: T.Buffer((96, 256), "float32"), Y: T.Buffer((96, 256), "float32")):
    # The other way to write an operator: a script, in which loops are explicit.  It is parsed, never run by Python.
    for i, j in T.grid(96, 256):
        with T.block("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = X[vi, vj] * 2.0


def reference(x, weight):
    """What the operator means, in numpy."""
    return x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + EPSILON) * weight


def tune(func):
    """Search with few trials; the log holds every measured candidate, and a second run continues from it."""
    return tunesmith.tune(func, log=LOG, budget=8, search=tunesmith.Search(batch=4, seed=0), progress=False)


def check(module, x, weight):
    """Call the compiled function: outputs are arguments, and numpy arrays are passed without a copy."""
    y = np.empty_like(x)
    module["rms_norm"](x, weight, y)
    np.testing.assert_allclose(y, reference(x, weight), rtol=1e-5, atol=1e-6)


def main():
    func = rms_norm()
    print(func)

    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, COLUMNS), dtype=np.float32)
    weight = rng.standard_normal(COLUMNS, dtype=np.float32)

    # `build` compiles a program exactly as it is: here as serial loops.
    check(tunesmith.build(func), x, weight)
    print("as written: equal to numpy")

    doubled = np.empty_like(x)
    tunesmith.build(double_rows)["double_rows"](x, doubled)
    assert np.array_equal(doubled, 2 * x)
    print("the script: equal to numpy")

    report = tune(func)
    print(report)

    # `compile` looks the program up in the log.  It searches nothing, so equal logs give equal bytes.
    tuned = tunesmith.compile(func, records=LOG, strict=True)
    check(tuned, x, weight)
    print(f"tuned: equal to numpy, record {tuned.coverage[0].status}")


if __name__ == "__main__":
    main()
