"""Evaluate nodes of an expression graph over arrays of rows, by the LLVM vector machine or by numpy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tunesmith.codegen.vector_vm.compile import DagKernel
from tunesmith.costmodel.formulas.expr_graph import Dag, Num, NumpyProgram, Rows
from tunesmith.support.array_types import Float32Array, Float64Array
from tunesmith.support.errors import RunError, UserError

BACKENDS = ("auto", "llvm", "numpy")


def portable(state: Mapping[str, object], derived: Collection[str]) -> dict[str, object]:
    """The state of an object without its `derived` attributes, and without graphs that are no data: they are made again when used."""
    return {k: v for k, v in state.items() if k not in derived and not (isinstance(v, CompiledGraph) and not v.is_data)}


def check_backend(backend: str) -> None:
    """Raise UserError for an unknown backend."""
    if backend not in BACKENDS:
        raise UserError(f"unknown backend {backend!r} of a feature program; known: {', '.join(BACKENDS)}")


class CompiledGraph:
    """Nodes of a graph as a table of float columns and some double columns, on either backend.

    Args:
        d: the graph.
        table: nodes of the table.
        logs: which of them are stored as logarithms.
        doubles: nodes returned in double precision.
        backend: `llvm`, `numpy`, or `auto`: numpy only where LLVM code cannot be loaded.
    """

    def __init__(self, d: Dag, table: Sequence[Num], logs: Sequence[bool], doubles: Sequence[Num], backend: str) -> None:
        check_backend(backend)
        self.width = len(table)
        self._logs = np.array(logs, bool)
        self._kernel: DagKernel | None = None
        if backend != "numpy":
            try:
                pairs = [(n.id, log) for n, log in zip(table, logs, strict=True)]
                self._kernel = DagKernel(d.nodes, len(d.params), pairs, [n.id for n in doubles])
            except RunError:
                if backend == "llvm":
                    raise
        self._numpy = None if self._kernel else NumpyProgram(d, [*table, *doubles])

    @property
    def is_data(self) -> bool:
        """Whether the graph can be pickled: it is a program of the vector machine, without the expressions that it was made from."""
        return self._kernel is not None

    def __call__(self, rows: Rows, out: Float32Array | None = None) -> tuple[Float32Array, Float64Array]:
        """Float32 [N, table] and float64 [doubles, N]; `out` receives the table.  Thread-safe."""
        if self._kernel is not None:
            return self._kernel(rows, out)
        assert self._numpy is not None
        values = self._numpy(rows)
        table = np.empty((len(rows), self.width), np.float32) if out is None else out
        with np.errstate(all="ignore"):
            values[: self.width][self._logs] = np.log2(values[: self.width][self._logs] + 1.0)
            table[:] = values[: self.width].T
        return table, values[self.width :]
