"""Predict times of the configurations of one sketch with the analytic model, without training data or execution."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from tunesmith.codegen.backends.backend import backend_of
from tunesmith.costmodel.analysis.program_analysis import ProgramAnalysis
from tunesmith.costmodel.analytic.cost import AnalyticCost
from tunesmith.costmodel.formulas.compiled_graph import CompiledGraph, check_backend, portable
from tunesmith.costmodel.formulas.expr_graph import Rows
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Param
from tunesmith.ir.target.target import Target
from tunesmith.support.array_types import Float64Array


class AnalyticModel:
    """Predicted times of the configurations of one sketch; see `analytic_cost` and, for GPUs, `gpu_cost` for the model.

    Args:
        func: the raw parametric program.
        params: the columns of a configuration table: every Param of the program, in order.
        target: a CPU, preferably with measured rates (`measure.calibration.cpu.calibrated`), or a GPU.
        backend: `auto`, `llvm` or `numpy`; see `FeatureProgram`.

    Raises:
        UserError: a Param of the program is not among `params`.
    """

    def __init__(self, func: PrimFunc, params: Sequence[Param], target: Target, *, backend: str = "auto") -> None:
        check_backend(backend)
        self._func, self._params, self._target, self._backend = func, tuple(params), target, backend
        self.cost  # noqa: B018  raises if a Param is missing

    @cached_property
    def analysis(self) -> ProgramAnalysis:
        """The analysis of the program, with the graph that the formulas are part of."""
        return ProgramAnalysis(self._func, self._params)

    @cached_property
    def cost(self) -> AnalyticCost:
        """The formulas of the predicted time and its terms."""
        found: AnalyticCost = backend_of(self._target).part("analytic_cost")(self.analysis, self._target)
        return found

    def __getstate__(self) -> dict[str, object]:
        """Compiled formulas without the expressions that they were made from."""
        return portable(self.__dict__, ("analysis", "cost"))

    @property
    def term_names(self) -> tuple[str, ...]:
        """The names of the columns of `terms`."""
        return tuple(self.cost.terms)

    def prepare(self) -> None:
        """Make the formula of `seconds`, which is otherwise made at the first call."""
        self._seconds  # noqa: B018

    def seconds(self, rows: Rows) -> Float64Array:
        """Predicted time of each row, float64 [N]; meaningful for admissible rows.  Thread-safe."""
        return np.asarray(self._seconds(rows)[1][0])

    def terms(self, rows: Rows) -> Float64Array:
        """Parts of the predicted time in seconds, float64 [N, len(term_names)].

        They overlap, so they do not add up to `seconds`.
        """
        return np.asarray(self._terms(rows)[1].T)

    @cached_property
    def _seconds(self) -> CompiledGraph:
        return CompiledGraph(self.analysis.dag, [], [], [self.cost.seconds], self._backend)

    @cached_property
    def _terms(self) -> CompiledGraph:
        return CompiledGraph(self.analysis.dag, [], [], list(self.cost.terms.values()), self._backend)
