"""squared_relu: max(x, 0) squared, an activation (So and others, Primer, 2021)."""

import numpy as np

from tunesmith.graph.ir.operator import ELEMENTWISE, GraphOperator
from tunesmith.ops import tensor_expression as te


def formula(x):
    def element(*i):
        positive = te.maximum(x[i], 0.0)
        return positive * positive

    return te.compute(x.shape, element, "squared_relu")


SQUARED_RELU = GraphOperator("squared_relu", ELEMENTWISE, formula, lambda x: np.square(np.maximum(x, 0)))
