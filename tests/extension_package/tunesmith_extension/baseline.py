"""einsum: matrix products by numpy.einsum, with and without a search for the order of contraction."""

import numpy as np

from tunesmith.measure.baselines.baseline import Baseline, PreparedCall

FORMULAS = {"matmul": "mk,kn->mn", "batch_matmul": "bmk,bkn->bmn"}


class EinsumBaseline(Baseline):
    name = "einsum"
    package = "numpy"

    def variants(self, call):
        if call.name not in FORMULAS or not call.is_common:  # not common: transposed operands
            return []
        formula, (a, b) = FORMULAS[call.name], call.inputs.values()
        return [self.variant(formula, a, b, np.empty(call.output, call.dtype), optimize) for optimize in (False, True)]

    def variant(self, formula, a, b, out, optimize):
        path, _ = np.einsum_path(formula, a, b, optimize=optimize)  # not timed
        return PreparedCall(f"optimize={optimize}", lambda: np.einsum(formula, a, b, out=out, optimize=path), np.asarray)
