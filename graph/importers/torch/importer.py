"""Convert torch models to a graph function: trace with torch.export, then convert the exported graph node by node.

The exported program is functional: torch.export, then run_decompositions for all operators without a converter in TORCH_OPERATORS.
Each node becomes one or more bindings.  Weights become constants named like the parameters.  Model inputs, flattened in torch's
pytree order, become parameters; outputs become results.  Dynamic sizes become variables, and torch's assumptions about them become
assumptions of the function.

All unsupported operators are collected and reported in one error.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from tunesmith.graph.importers.torch import creation as _creation
from tunesmith.graph.importers.torch import elementwise as _elementwise
from tunesmith.graph.importers.torch import images as _images
from tunesmith.graph.importers.torch import indexing as _indexing
from tunesmith.graph.importers.torch import nn as _nn
from tunesmith.graph.importers.torch import ordering as _ordering
from tunesmith.graph.importers.torch import pooling as _pooling
from tunesmith.graph.importers.torch import quantized as _quantized
from tunesmith.graph.importers.torch import random as _random
from tunesmith.graph.importers.torch import recurrent as _recurrent
from tunesmith.graph.importers.torch import reductions as _reductions
from tunesmith.graph.importers.torch import shapes as _shapes
from tunesmith.graph.importers.torch.call import TORCH_OPERATORS, SizeNumber, TorchCall, import_torch
from tunesmith.graph.importers.torch.constant_indices import constant_index_conditions
from tunesmith.graph.importers.torch.data_dependent import loops as _loops
from tunesmith.graph.importers.torch.data_dependent import shapes as _data_shapes
from tunesmith.graph.importers.torch.data_dependent.loops import distinct_operands
from tunesmith.graph.importers.torch.recurrent_shapes import shapes_of_one_step
from tunesmith.graph.importers.torch.region import RegionImport
from tunesmith.graph.importers.torch.sizes import Sizes
from tunesmith.graph.importers.torch.small_sizes import small_size_conditions
from tunesmith.graph.importers.torch.unsupported import UnsupportedOperators
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.node import Constant, Operand, TensorType, Value
from tunesmith.ir.expr import Const, Expr, IsNegative
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Poly
from tunesmith.runtime.arrays import in_bfloat16
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ModelImportError, UserError

__all__ = ["TORCH_OPERATORS", "from_torch"]

CONVERTERS = (
    *(_creation, _data_shapes, _elementwise, _images, _indexing, _loops, _nn, _ordering, _pooling, _quantized, _random, _recurrent),
    *(_reductions, _shapes),
)
"""Modules that register converters in TORCH_OPERATORS when they are imported."""

DECOMPOSED = ("addmv",)
"""Operators that are composed of others by torch's own definitions, which torch.export does not apply by itself."""


def from_torch(
    model: Any,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    name: str = "main",
    *,
    drop_buffer_writes: bool = False,
    seed: str | None = None,
) -> IRModule:
    """Import a torch model as a module with one graph function.

    Args:
        model: an nn.Module, in evaluation mode if it has dropout, or a torch.export.ExportedProgram.
        example_inputs: positional arguments for tracing; ignored for an exported program.
        dynamic_shapes: dynamic extents of the inputs, as in torch.export.export.  A size variable is named like its `Dim`.
        name: function name.
        drop_buffer_writes: leave out writes to buffers, such as the running statistics of batch normalisation in training mode; a
            function has no side effects.  By default they are refused.
        seed: name of an additional last input, one int64 number, from which operators that draw random numbers compute them: equal seeds
            give equal results.  Without it they are refused.  The distributions are those of torch, the numbers are not.
    Returns:
        A module whose function has the input tensors as parameters and the output tensors as results, flattened in torch's pytree
            order.  Arguments that are not tensors keep their example values; outputs that are None are dropped.
    Raises:
        ModelImportError: torch.export cannot trace the model, or the model has unsupported operators; all of them are listed.
        MissingExtraError: torch is not installed.
    """
    torch = import_torch()
    with warnings.catch_warnings(), torch.no_grad(), shapes_of_one_step():
        warnings.simplefilter("ignore")  # torch's own code triggers its warnings
        if isinstance(model, torch.export.ExportedProgram):
            program = model
        else:
            program = _export(torch, model, example_inputs, dynamic_shapes)
        with distinct_operands(torch, program):
            decomposed = _decomposed(torch, program)
        importing = _Import(decomposed, dynamic_shapes, name, drop_buffer_writes, traced=program, seed=seed)
        return IRModule({name: importing.function()})


def _export(torch: Any, model: Any, example_inputs: Any, dynamic_shapes: Any) -> Any:
    if isinstance(model, (str, PathLike)):
        raise ModelImportError(f"from_torch takes no path: load the file first, from_torch(torch.export.load({str(model)!r}))")
    if not isinstance(model, torch.nn.Module):
        raise ModelImportError(
            f"a model must be an nn.Module or a torch.export.ExportedProgram, got {type(model).__name__}. Wrap a function in a Module"
        )
    if not isinstance(example_inputs, (tuple, list)):
        raise ModelImportError(
            f"example_inputs must be a tuple of the model's positional arguments, got {type(example_inputs).__name__}; they are used to"
            " trace the model"
        )
    try:
        return torch.export.export(model, tuple(example_inputs), dynamic_shapes=dynamic_shapes, strict=False)
    except Exception as error:  # torch raises many types, including AssertionError
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise ModelImportError(
            f"torch.export could not trace {type(model).__name__}: {type(error).__name__}: {' '.join(lines[:3])}\n"
            "Use torch.cond for control flow on values, and declare dynamic sizes in dynamic_shapes; torch.export.draft_export(model,"
            " example_inputs) lists all such places"
        ) from error


def _decomposed(torch: Any, program: Any) -> Any:
    """The functionalized program, with all operators decomposed that have no converter."""
    try:
        return program.run_decompositions(_decompositions(torch))
    except Exception as error:  # as above
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise ModelImportError(
            f"torch could not decompose the exported program: {type(error).__name__}: {' '.join(lines[:3])}\n"
            "Write the model without the named operator; avoid writing into views of views"
        ) from error


def _decompositions(torch: Any) -> Any:
    """Torch's decompositions, except those of operators with a converter."""
    table = torch.export.default_decompositions()
    table.update(torch._decomp.get_decompositions([getattr(torch.ops.aten, name) for name in DECOMPOSED]))
    for operator in [op for op in table if str(op) in TORCH_OPERATORS]:
        table.pop(operator)
    return table


class _Import:
    """Conversion of one exported program to a graph function."""

    def __init__(
        self,
        program: Any,
        dynamic_shapes: Any,
        name: str,
        drop_buffer_writes: bool = False,
        *,
        traced: Any = None,
        seed: str | None = None,
    ) -> None:
        self.drop_buffer_writes = drop_buffer_writes
        self.program, self.traced = program, program if traced is None else traced
        self.dynamic_shapes = dynamic_shapes
        self.builder = GraphBuilder(name)
        self.sizes = Sizes()
        self.ranges = program.range_constraints
        self.unsupported = UnsupportedOperators(name)
        self.torch = import_torch()
        self._shared: dict[tuple[Any, ...], Constant] = {}
        self._below_zero: set[Poly] = set()
        self._seed_name = seed
        self._streams = itertools.count()
        self.draw: Callable[[], tuple[Operand, int]] | None = None

    def function(self) -> Any:
        """The graph function; ModelImportError that lists all unsupported operators."""
        graph = self.program.graph
        env = self._inputs([n for n in graph.nodes if n.op == "placeholder"])
        if self._seed_name is not None:
            self._check_seed_name(self._seed_name)
            seed = self.builder.input(self._seed_name, (), "int64")
            self.draw = lambda: (seed, next(self._streams))
        self._assumptions(env)
        returned = RegionImport(self, self.program.graph_module, env, self.builder).run()
        self.builder.output(*self._results(returned))
        for size in self.sizes.divided() if self.unsupported.any else ():
            self.unsupported.add(
                "dynamic_shapes",
                None,
                f"the size {size}, is not itself the extent of an input, so equal sizes may differ; add one that has it",
            )
        self.unsupported.raise_if_any()
        if self.sizes.variables:
            for condition in constant_index_conditions(self.builder.bindings, frozenset(self.sizes.variables.values())):
                self._assume(condition)
        return self.builder.finish()

    def _check_seed_name(self, name: object) -> None:
        taken = [p.name for p in self.builder.params]
        if not isinstance(name, str) or not name.isidentifier():
            raise UserError(f"seed= is the name of an additional input, such as 'seed', not {name!r}")
        if name in taken:
            raise UserError(f"seed={name!r}: the model has an input of this name; its inputs are {', '.join(taken)}. Choose another name")

    def _inputs(self, placeholders: Sequence[Any]) -> dict[Any, Any]:
        """The values of the placeholders."""
        given = self.program.graph_signature.input_specs
        dims = _dims(self._arguments(placeholders), self.dynamic_shapes)
        env: dict[Any, Any] = {}
        for node, spec in zip(placeholders, given, strict=True):
            value = node.meta.get("val")
            if spec.kind.name in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
                weight = self._weight(node, spec.target)
                env.update({} if weight is None else {node: weight})
            elif spec.kind.name != "USER_INPUT":
                self.unsupported.add(f"input of kind {spec.kind.name}", node, "inputs must be tensors, parameters or buffers")
            elif isinstance(value, self.torch.Tensor):
                for d, size in enumerate(value.shape):
                    self._declare(size, dims.get((node, d)))
            elif isinstance(value, self.torch.SymInt):
                self.unsupported.add(
                    "input that is a number", node, "a dynamic size must be the extent of a tensor; pass a tensor with this extent"
                )
        for node, spec in zip(placeholders, given, strict=True):
            if spec.kind.name == "USER_INPUT" and isinstance(node.meta.get("val"), self.torch.Tensor):
                for d, size in enumerate(node.meta["val"].shape):
                    self.sizes.declare_linear(size, f"{node.name}_{d}")
        for node in placeholders:  # second loop: an extent may use symbols of later inputs
            if node not in env and isinstance(node.meta.get("val"), self.torch.Tensor):
                try:
                    type_ = self.type_of(node.meta["val"])
                    env[node] = self.builder.input(node.name, type_.shape, type_.dtype)
                except UserError as error:
                    self.unsupported.add("input", node, str(error))
        return env

    def _declare(self, size: Any, dim: Any) -> None:
        """Create the variable of an extent, named like its `Dim`, and keep the lower bound that the user gave to it."""
        name = getattr(dim, "__name__", "")
        self.sizes.declare(size, name if re.fullmatch(r"[A-Za-z]\w*", name) else None)
        least = getattr(getattr(dim, "root", dim), "min", None)  # 2 * Dim("h") has the root h
        if isinstance(least, int) and not isinstance(size, int):
            for symbol in map(str, size.node.expr.free_symbols):
                self.sizes.least[symbol] = max(least, self.sizes.least.get(symbol, 0))

    def _weight(self, node: Any, target: str) -> Any:
        tensor = self.program.state_dict.get(target)
        if tensor is None:
            tensor = self.program.constants[target]
        return self.constant(node, target, tensor)

    def constant(self, node: Any, name: str, tensor: Any) -> Any:
        """A program tensor as a constant, shared by all uses of the same memory.  None if its type is unsupported, which is recorded."""
        key = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype)) if tensor.numel() else (name,)
        if key not in self._shared:
            try:
                self.type_of(tensor)
            except UserError as error:
                self.unsupported.add(f"tensor {name}", node, str(error))
                return None
            # Copy, so that further training of the model does not change the constants.
            self._shared[key] = Constant(name, self._array(tensor.detach().cpu()))
        return self._shared[key]

    def _array(self, tensor: Any) -> np.ndarray:
        """A copy of the elements; bfloat16 is that of ml_dtypes."""
        if tensor.dtype == self.torch.bfloat16:
            return in_bfloat16(np.array(tensor.float().numpy(), order="C"))
        return np.array(tensor.numpy(), order="C")

    def type_of(self, tensor: Any) -> TensorType:
        """The graph type of a torch tensor; ModelImportError for unsupported element types."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in dt.SCALARS or tensor.is_sparse or tensor.is_quantized:
            raise ModelImportError(f"tensors of {dtype} cannot be imported; convert the model and its inputs, model.float() for example")
        return TensorType(tuple([self.sizes.poly(s) for s in tensor.shape]), dtype)

    def _arguments(self, placeholders: Sequence[Any]) -> dict[str, Any]:
        """The arguments of `forward` by name, as used in torch's guards, with placeholders as values."""
        users = [n for n, s in zip(placeholders, self.program.graph_signature.input_specs, strict=True) if s.kind.name == "USER_INPUT"]
        args, kwargs = self.torch.utils._pytree.tree_unflatten(users, self.program.call_spec.in_spec)
        names = self.program.module_call_graph[0].signature.forward_arg_names or []
        return {**dict(zip(names, args, strict=False)), **kwargs}

    def _assumptions(self, env: Mapping[Any, Any]) -> None:
        """Add torch's assumptions about sizes: symbol ranges and guards."""
        if not self.sizes.variables:
            return
        found = self.sizes.range_conditions(self.program.range_constraints)
        extents = _with_extents(self._arguments([n for n in self.program.graph.nodes if n.op == "placeholder"]), env)
        guards = getattr(self.program, "_guards_code", None)
        if guards is None:
            self.unsupported.add(
                "dynamic_shapes",
                None,
                "this torch does not report its assumptions about sizes (ExportedProgram._guards_code); upgrade, for example to 2.13",
            )
        for text in guards or ():
            try:
                found.append(self.sizes.guard(text, extents))
            except UserError as error:
                self.unsupported.add("guard", None, str(error))
        for condition in [*found, *small_size_conditions(self.torch, self.traced, self.sizes, found)]:
            self._assume(condition)

    def assume(self, condition: Any) -> None:
        """Assume a sympy condition on sizes that the program asserts."""
        self._assume(self.sizes.condition(condition))

    def _assume(self, condition: Expr) -> None:
        """Assume a condition unless it is constant or already assumed."""
        if isinstance(condition, Const) or (isinstance(condition, IsNegative) and condition.index in self._below_zero):
            return
        if isinstance(condition, IsNegative):
            self._below_zero.add(condition.index)
        self.builder.assume(condition)

    def _results(self, returned: Sequence[Any]) -> list[Operand]:
        results: list[Operand] = []
        for value, spec in zip(returned, self.program.graph_signature.output_specs, strict=True):
            if spec.kind.name == "BUFFER_MUTATION" and self.drop_buffer_writes:
                continue
            if spec.kind.name in ("BUFFER_MUTATION", "USER_INPUT_MUTATION", "PARAMETER_MUTATION"):
                what = spec.kind.name.removesuffix("_MUTATION").lower().replace("_", " ")
                self.unsupported.add(
                    f"write to the {what} {spec.target!r}",
                    None,
                    "graph functions have no side effects: return the new value and pass it to the next call. In batch normalisation it is"
                    " a running statistic of training: call model.eval(), or pass drop_buffer_writes=True to leave such writes out",
                )
            elif spec.kind.name != "USER_OUTPUT":
                self.unsupported.add(f"output of kind {spec.kind.name}", None, "outputs must be tensors or numbers")
            elif isinstance(value, (Value, Constant)) and any(e.const == 0 for e in value.type.shape):
                self.unsupported.add("output", None, f"a result has no elements ({value.type}); remove it from the outputs of the model")
            elif isinstance(value, (Value, Constant)):
                results.append(value)
            elif isinstance(value, (bool, int, float, Poly, SizeNumber)):
                results.append(self._number_result(value))
        return results

    def _number_result(self, value: Any) -> Operand:
        """A returned number or size as a tensor, converted like torch.tensor."""
        call = TorchCall("size", self.builder, self.sizes, ())
        return call.operand(value, call.promoted(value))


def _dims(arguments: Mapping[str, Any], dynamic_shapes: Any) -> dict[tuple[Any, int], Any]:
    """The user's Dim objects and hints by (placeholder, dimension)."""
    found: dict[tuple[Any, int], Any] = {}

    def walk(argument: Any, spec: Any) -> None:
        if isinstance(argument, Mapping) and isinstance(spec, Mapping):
            for key in argument:
                walk(argument[key], spec.get(key))
        elif isinstance(argument, (tuple, list)) and isinstance(spec, (tuple, list)):
            for part, inner in zip(argument, spec, strict=False):
                walk(part, inner)
        elif isinstance(spec, (Mapping, tuple, list)):
            for d, dim in spec.items() if isinstance(spec, Mapping) else enumerate(spec):
                found[argument, d] = dim

    walk(arguments, _by_argument(arguments, dynamic_shapes))
    return found


def _by_argument(arguments: Mapping[str, Any], dynamic_shapes: Any) -> dict[str, Any]:
    """The part of dynamic_shapes for each argument.  torch nests the parts of `*args` and `**kwargs` in one entry."""
    found: dict[str, Any] = {}
    if isinstance(dynamic_shapes, Mapping):
        for name, spec in dynamic_shapes.items():
            if name in arguments:
                found[name] = spec
            elif isinstance(spec, Mapping):
                found.update(spec)
            else:
                found.update({f"{name}_{i}": part for i, part in enumerate(spec or ())})
        return found
    names = list(arguments)
    for spec in dynamic_shapes or ():
        name = names[len(found)] if len(found) < len(names) else ""
        is_nested = isinstance(spec, (tuple, list)) and any(isinstance(part, (Mapping, tuple, list)) for part in spec)
        parts = spec if is_nested and not isinstance(arguments.get(name), (Mapping, tuple, list)) else [spec]
        found.update(zip(names[len(found) :], parts, strict=False))
    return found


def _with_extents(argument: Any, env: Mapping[Any, Any]) -> Any:
    """The arguments with each tensor replaced by its extents."""
    if isinstance(argument, Mapping):
        return {key: _with_extents(a, env) for key, a in argument.items()}
    if isinstance(argument, (tuple, list)):
        return [_with_extents(a, env) for a in argument]
    held = env.get(argument)
    return held.type.shape if isinstance(held, Value) else argument.meta.get("val")
