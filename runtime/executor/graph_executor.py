"""Graph executor: static shapes, every tensor at a place that was planned when the model was compiled, calls in one straight list.

Its program:

    {"version": 1,
     "inputs": [[name, dtype, shape]], "outputs": [[name, dtype, shape]],
     "arena": bytes for intermediate tensors,
     "tensors": [[home, number, dtype, shape]],      home and number as in `frame.Place`
     "calls": [[function, operands, results, sizes]]}     operands and results are numbers of tensors; as in `frame.Step`

A view is one more tensor at the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tunesmith.runtime.arrays import ALIGNMENT, empty, nbytes
from tunesmith.runtime.executor.bound_program import ARENA, CONSTANT, INPUT, OUTPUT, Frame, Functions, Place, Segment, Step, checked_step
from tunesmith.runtime.executor.executable import NamedArrays
from tunesmith.runtime.executor.executor import Executor, Shape, TensorSpec, unique_names
from tunesmith.runtime.executor.program_data import dtype_of, field, int_of, list_of, numbers_of, shape_of, text_of
from tunesmith.support.errors import RunError


class GraphExecutor(Executor):
    """Runs a program of kind "graph".

    Args:
        program: its form is told above.
        constants: names and storage, which must stay as they are.
        functions: what the program calls, by name: compiled functions, or any that take numpy arrays.
    Raises:
        RunError: the program is malformed, or calls what is not there.
    """

    kind = "graph"

    def __init__(self, program: dict[str, Any], constants: NamedArrays, functions: Functions) -> None:
        inputs = static_specs(field(program, "inputs", "the program"), "inputs")
        outputs = static_specs(field(program, "outputs", "the program"), "outputs")
        super().__init__(inputs, outputs, functions)
        self._input_shapes, self._output_shapes = [static_shape(s) for s in inputs], [static_shape(s) for s in outputs]
        arena = int_of(field(program, "arena", "the program"), "arena", 0)
        places = self._places(list_of(field(program, "tensors", "the program"), "tensors"), len(constants), arena)
        steps = [_step(i, row, places) for i, row in enumerate(list_of(field(program, "calls", "the program"), "calls"))]
        segment = Segment(tuple(range(len(steps))))
        self._only = Frame(places, steps, [segment], [a for _, a in constants], empty(arena), functions)

    def _frame(self, arrays: Sequence[np.ndarray]) -> tuple[Frame, Sequence[Shape]]:
        for i, array in enumerate(arrays):
            if array.shape != self._input_shapes[i]:
                raise self._wrong_shape(i, array)
        return self._only, self._output_shapes

    def _places(self, rows: list[Any], constants: int, arena: int) -> list[Place]:
        known = {INPUT: self._input_shapes, OUTPUT: self._output_shapes}
        specs = {INPUT: self.inputs, OUTPUT: self.outputs}
        places = []
        for i, row in enumerate(rows):
            what = f"tensor {i}"
            home, number, dtype, shape = list_of(row, what, 4, 4)
            if home not in (INPUT, OUTPUT, CONSTANT, ARENA):
                raise RunError(f"{what} of the program: {home!r} is no place; places are {INPUT}, {OUTPUT}, {CONSTANT}, {ARENA}")
            place = Place(home, int_of(number, what, 0), dtype_of(dtype, what), shape_of(shape, what))
            end = arena + 1 if home == ARENA else constants if home == CONSTANT else len(specs[home])
            if place.number >= end or (home == ARENA and place.number % ALIGNMENT):
                raise RunError(f"{what} of the program: there is no {home} {place.number}")
            if home in specs:
                whole = specs[home][place.number].dtype, nbytes(place.dtype, known[home][place.number])
                if (place.dtype, nbytes(place.dtype, place.shape)) != whole:
                    raise RunError(f"{what} of the program, {place.dtype}{list(place.shape)}, is no view of {specs[home][place.number]}")
            places.append(place)
        return places


def static_specs(rows: object, what: str) -> list[TensorSpec]:
    """Inputs or outputs of a program, as [name, dtype, shape].  RunError if they are malformed."""
    found = []
    for i, row in enumerate(list_of(rows, what)):
        name, dtype, shape = list_of(row, f"{what} {i}", 3, 3)
        found.append(TensorSpec(text_of(name, f"{what} {i}"), dtype_of(dtype, f"{what} {i}"), shape_of(shape, f"{what} {i}")))
    unique_names([s.name for s in found], what)
    return found


def static_shape(spec: TensorSpec) -> Shape:
    """The extents, which are numbers."""
    return tuple([e for e in spec.shape if isinstance(e, int)])


def _step(i: int, row: object, places: Sequence[Place]) -> Step:
    what = f"call {i}"
    function, operands, results, sizes = list_of(row, what, 4, 4)
    reads, writes = [numbers_of(n, f"{what}: tensors", len(places)) for n in (operands, results)]
    extra = tuple([int_of(s, what) for s in list_of(sizes, what)])
    return checked_step(Step(text_of(function, what), reads, writes, extra), places, what)
