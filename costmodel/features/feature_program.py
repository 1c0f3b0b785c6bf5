"""Evaluate the features of a sketch for many configurations: extract formulas once, run them on a vector machine.

All quantities computed before a candidate is built (admissibility, features, analytic cost) are formulas over its configuration, and all
formulas of a sketch share one graph.  The LLVM backend evaluates millions of rows a second on one thread; numpy is the reference, and
the fallback where generated code cannot be loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from tunesmith.costmodel.analysis.program_analysis import ProgramAnalysis
from tunesmith.costmodel.analytic.cost import TERMS
from tunesmith.costmodel.analytic.model import AnalyticModel
from tunesmith.costmodel.features.program_vector import program_columns, program_row
from tunesmith.costmodel.features.store_features import Column, columns, extract
from tunesmith.costmodel.formulas.compiled_graph import CompiledGraph, check_backend, portable
from tunesmith.costmodel.formulas.expr_graph import Num, Rows
from tunesmith.ir.arith.array_eval import compile_polys
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Param
from tunesmith.ir.target.target import Target
from tunesmith.schedule.state import Constraint
from tunesmith.support.array_types import BoolArray, Float32Array, Float64Array, IntArray
from tunesmith.support.errors import UserError

NANO = 1e9

ANALYTIC = "analytic."
"""Prefix of the names of the columns with the analytic cost and its terms."""


_ANALYTIC_COLUMNS = tuple(Column(f"{ANALYTIC}{t}") for t in ("seconds", *TERMS))


def vector_names(curve: bool = False) -> tuple[str, ...]:
    """Names of the columns of a program's vector with the analytic cost, the model input in searches."""
    return tuple(c.name for c in (*program_columns(curve), *_ANALYTIC_COLUMNS))


def gather(parts: Sequence[Float32Array], places: Sequence[IntArray]) -> Float32Array:
    """Join features of programs of several sketches in one array.

    Args:
        parts: of each sketch, [N, F] or [N, S, F].
        places: of each sketch, the indices of its programs in the result; together 0 to N - 1.

    Returns:
        [N, F], or [N, max S, F] with NaN in rows of stores that a program does not have.
    """
    if not parts:
        return np.zeros((0, 0), np.float32)
    shape = np.max([p.shape[1:] for p in parts], axis=0)
    out = np.full((sum(len(p) for p in parts), *shape), np.nan, np.float32)
    for part, at in zip(parts, places, strict=True):
        if part.ndim == 3:
            out[at, : part.shape[1]] = part
        else:
            out[at] = part
    return out


class FeatureProgram:
    """Features of the configurations of one sketch.

    Args:
        func: the raw parametric program.
        params: the columns of a configuration table: every Param of the program, in order.
        constraints: constraints of the sketch, for `admissible`.
        target: adds the analytic cost and its terms to the program's vector, and enables `seconds` and `scored`; a GPU also fills the
            GPU columns.
        curve: with the arithmetic-intensity curve.
        backend: `auto`, `llvm` or `numpy`.

    Formulas are extracted at the first use of each method, in some hundredths of a second.  A large table is fastest if its memory is
    reused: pass `out`, or work in parts of some thousand rows.

    Attributes:
        analytic: the analytic model, None without target.

    Raises:
        UserError: a Param of the program is not among `params`, or the backend is unknown.
    """

    def __init__(
        self,
        func: PrimFunc,
        params: Sequence[Param],
        constraints: Sequence[Constraint] = (),
        *,
        target: Target | None = None,
        curve: bool = False,
        backend: str = "auto",
    ) -> None:
        check_backend(backend)
        self.analytic = None if target is None else AnalyticModel(func, params, target, backend=backend)
        self._func, self._params = func, tuple(params)
        self.target = target
        self.constraints = tuple(constraints)
        self.backend = backend
        self.curve = curve
        self._columns = columns(curve)
        self._program_columns = program_columns(curve) + (_ANALYTIC_COLUMNS if self.analytic else ())
        self.analysis  # noqa: B018  raises if a Param is missing

    @cached_property
    def analysis(self) -> ProgramAnalysis:
        """The analysis of the program, with the graph that the formulas are part of."""
        return ProgramAnalysis(self._func, self._params) if self.analytic is None else self.analytic.analysis

    def __getstate__(self) -> dict[str, object]:
        """Compiled formulas without the expressions that they were made from: another process evaluates them without generating them."""
        return portable(self.__dict__, ("analysis", "_stores", "_constraint_values"))

    def prepare(self, inputs: str) -> None:
        """Make the formulas that a search evaluates: the analytic time, and the features for models with these `CostModel.inputs`."""
        if self.analytic is not None:
            self.analytic.prepare()
        self.stores  # noqa: B018
        _ = self._program_graph if inputs == "program" else self._store_graph

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of a store's row."""
        return tuple(c.name for c in self._columns)

    @property
    def program_names(self) -> tuple[str, ...]:
        """Names of the columns of a program's vector; the analytic cost and its terms are in nanoseconds."""
        return tuple(c.name for c in self._program_columns)

    @cached_property
    def stores(self) -> tuple[str, ...]:
        """Names of the blocks, in the order of their rows."""
        return tuple(s.block.name for s in self.analysis.stores)

    def admissible(self, rows: Rows) -> BoolArray:
        """Which rows satisfy every constraint, exactly."""
        values = self._constraint_values(rows)
        return np.asarray(np.where(self._equalities, values == 0, values <= 0).all(axis=1))

    def features(self, rows: Rows, out: Float32Array | None = None) -> Float32Array:
        """Features of every store, float32 [N, stores, F], for rows [N, P].  Meaningful for admissible rows."""
        shape = (len(rows), len(self.stores), len(self._columns))
        if out is not None and (out.shape != shape or not out.flags.c_contiguous):
            raise UserError(f"`out` must be C-contiguous float32 of shape {list(shape)}, got {out.dtype} of shape {list(out.shape)}")
        table, _ = self._store_graph(rows, None if out is None else out.reshape(len(rows), -1))
        return table.reshape(shape)

    def program(self, rows: Rows, out: Float32Array | None = None) -> Float32Array:
        """Vectors of the programs, float32 [N, len(program_names)]."""
        return self._program_graph(rows, out)[0]

    def inputs(self, rows: Rows, inputs: str) -> Float32Array:
        """The array for models with these `CostModel.inputs`: `program` or `stores`.  Raises UserError for other values."""
        if inputs not in ("program", "stores"):
            raise UserError(f"a cost model takes `program` or `stores` as inputs, not {inputs!r}")
        return self.program(rows) if inputs == "program" else self.features(rows)

    def seconds(self, rows: Rows) -> Float64Array:
        """Analytic cost of the programs, seconds, float64 [N]."""
        return self._require_analytic("seconds").seconds(rows)

    def scored(self, rows: Rows, out: Float32Array | None = None) -> tuple[Float32Array, Float64Array]:
        """`program` and `seconds` in one pass."""
        self._require_analytic("scored")
        table, doubles = self._program_graph(rows, out)
        return table, np.asarray(doubles[0])

    def _require_analytic(self, method: str) -> AnalyticModel:
        if self.analytic is None:
            raise UserError(f"FeatureProgram.{method} needs a target: make the feature program with target=...")
        return self.analytic

    @cached_property
    def _stores(self) -> list[list[Num]]:
        return extract(self.analysis, self.curve, self.target)

    @cached_property
    def _constraint_values(self):  # type: ignore[no-untyped-def]
        return compile_polys([c.expr for c in self.constraints], self.analysis.params)

    @cached_property
    def _equalities(self) -> BoolArray:
        return np.array([c.kind == "eq0" for c in self.constraints], bool)

    @cached_property
    def _store_graph(self) -> CompiledGraph:
        kinds = list(self._columns) * len(self._stores)
        return CompiledGraph(self.analysis.dag, [n for s in self._stores for n in s], [c.log for c in kinds], [], self.backend)

    @cached_property
    def _program_graph(self) -> CompiledGraph:
        row = program_row(self.analysis.dag, self._stores, self.curve)
        if self.analytic is None:
            return CompiledGraph(self.analysis.dag, row, [c.log for c in self._program_columns], [], self.backend)
        cost = self.analytic.cost
        terms = [t * NANO for t in (cost.seconds, *cost.terms.values())]
        return CompiledGraph(self.analysis.dag, row + terms, [c.log for c in self._program_columns], [cost.seconds], self.backend)
