"""Import of torch models: torch.export's graph, operator by operator, as one graph function `main`.

The program is functional before it comes here (torch.export, then run_decompositions with every operator kept that has a converter in
TORCH_OPERATORS), so a binding follows a node.  Weights become constants named like the parameters; the inputs of the model, flattened
in torch's order of dicts and tuples, become the parameters, and its outputs the results.  Sizes that vary are variables, and what
torch assumed about them while it traced becomes the assumptions of the function.

All that cannot be imported is found in one go and listed in one error.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tunesmith.graph.importers.torch import creation as _creation
from tunesmith.graph.importers.torch import elementwise as _elementwise
from tunesmith.graph.importers.torch import images as _images
from tunesmith.graph.importers.torch import indexing as _indexing
from tunesmith.graph.importers.torch import nn as _nn
from tunesmith.graph.importers.torch import reductions as _reductions
from tunesmith.graph.importers.torch import shapes as _shapes
from tunesmith.graph.importers.torch.call import TORCH_OPERATORS, SizeNumber, TorchCall, import_torch
from tunesmith.graph.importers.torch.faults import UnsupportedOperators
from tunesmith.graph.importers.torch.region import RegionImport
from tunesmith.graph.importers.torch.sizes import Sizes
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.node import Constant, Operand, TensorType, Value
from tunesmith.ir.expr import Const, Expr, IsNegative
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Poly
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ModelImportError, UserError

__all__ = ["TORCH_OPERATORS", "from_torch"]

CONVERTERS = (_creation, _elementwise, _images, _indexing, _nn, _reductions, _shapes)
"""Modules that fill TORCH_OPERATORS when they are imported."""


def from_torch(model: Any, example_inputs: Any = None, dynamic_shapes: Any = None, name: str = "main") -> IRModule:
    """The model as a module with one graph function.

    Args:
        model: an nn.Module in evaluation mode, or a torch.export.ExportedProgram.
        example_inputs: tuple of the positional arguments to trace the module with; nothing for an exported program.
        dynamic_shapes: as in torch.export.export: which extents of the inputs vary.  A size has the name of its `Dim`.
        name: of the function.
    Returns:
        The function's parameters are the tensors among the inputs and its results those among the outputs, flattened in the order of
        torch's pytree; arguments that are no tensors have the values of the example, None among the outputs is left out.
    Raises:
        ModelImportError: torch.export cannot trace the model, or something in it cannot be imported; all such things are listed.
        MissingExtraError: torch is not installed.
    """
    torch = import_torch()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch warns of its own use of itself
        if isinstance(model, torch.export.ExportedProgram):
            program = model
        else:
            program = _export(torch, model, example_inputs, dynamic_shapes)
        program = _decomposed(torch, program)
    return IRModule({name: _Import(program, dynamic_shapes, name).function()})


def _export(torch: Any, model: Any, example_inputs: Any, dynamic_shapes: Any) -> Any:
    if not isinstance(model, torch.nn.Module):
        raise ModelImportError(
            f"a model is an nn.Module or a torch.export.ExportedProgram, got {type(model).__name__}. Put a function into a Module's forward"
        )
    if not isinstance(example_inputs, (tuple, list)):
        raise ModelImportError(
            f"example_inputs must be a tuple of the model's positional arguments, got {type(example_inputs).__name__}; the model is traced"
            " with them"
        )
    try:
        return torch.export.export(model, tuple(example_inputs), dynamic_shapes=dynamic_shapes, strict=False)
    except Exception as error:  # torch has many of its own, down to AssertionError
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise ModelImportError(
            f"torch.export could not trace {type(model).__name__}: {type(error).__name__}: {' '.join(lines[:3])}\n"
            "Control flow on values must be torch.cond, sizes that vary must be told in dynamic_shapes; torch.export.draft_export(model,"
            " example_inputs) lists all such places"
        ) from error


def _decomposed(torch: Any, program: Any) -> Any:
    """The program with torch's decompositions of all operators but ours, and without writes into tensors."""
    try:
        return program.run_decompositions(_decompositions(torch))
    except Exception as error:  # as above
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise ModelImportError(
            f"torch could not decompose the exported program: {type(error).__name__}: {' '.join(lines[:3])}\n"
            "Write the model without the operator that is named, in particular without writing into views of views"
        ) from error


def _decompositions(torch: Any) -> Any:
    """torch's decompositions of all operators but ours."""
    table = torch.export.default_decompositions()
    for operator in [op for op in table if str(op) in TORCH_OPERATORS]:
        table.pop(operator)
    return table


class _Import:
    """One exported program on its way into a graph function."""

    def __init__(self, program: Any, dynamic_shapes: Any, name: str) -> None:
        self.program = program
        self.dynamic_shapes = dynamic_shapes
        self.builder = GraphBuilder(name)
        self.sizes = Sizes()
        self.faults = UnsupportedOperators(name)
        self.torch = import_torch()
        self._shared: dict[tuple[Any, ...], Constant] = {}
        self._below_zero: set[Poly] = set()

    def function(self) -> Any:
        """The graph function; ModelImportError with all faults."""
        graph = self.program.graph
        env = self._inputs([n for n in graph.nodes if n.op == "placeholder"])
        self._assumptions(env)
        returned = RegionImport(self, self.program.graph_module, env, self.builder).run()
        self.builder.output(*self._results(returned))
        self.faults.raise_if_any()
        return self.builder.finish()

    def _inputs(self, placeholders: Sequence[Any]) -> dict[Any, Any]:
        """What the placeholders stand for."""
        given = self.program.graph_signature.input_specs
        names = _dim_names(self._arguments(placeholders), self.dynamic_shapes)
        env: dict[Any, Any] = {}
        for node, spec in zip(placeholders, given, strict=True):
            value = node.meta.get("val")
            if spec.kind.name in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
                env[node] = self._weight(node, spec.target)
            elif spec.kind.name != "USER_INPUT":
                self.faults.add(f"input of kind {spec.kind.name}", node, "inputs are tensors, parameters and buffers")
            elif isinstance(value, self.torch.Tensor):
                for d, size in enumerate(value.shape):
                    self.sizes.declare(size, names.get((node, d)))
            elif isinstance(value, self.torch.SymInt):
                self.faults.add(
                    "input that is a number", node, "a size that varies must be the extent of a tensor; pass a tensor of that extent"
                )
        for node in placeholders:  # after all symbols are known, since extents may be terms of symbols of other inputs
            if node not in env and isinstance(node.meta.get("val"), self.torch.Tensor):
                try:
                    type_ = self.type_of(node.meta["val"])
                    env[node] = self.builder.input(node.name, type_.shape, type_.dtype)
                except UserError as error:
                    self.faults.add("input", node, str(error))
        return env

    def _weight(self, node: Any, target: str) -> Any:
        tensor = self.program.state_dict.get(target)
        if tensor is None:
            tensor = self.program.constants[target]
        return self.constant(node, target, tensor)

    def constant(self, node: Any, name: str, tensor: Any) -> Any:
        """A tensor of the program as a constant; one for all uses of the same memory.  None, and a fault, if it has no type here."""
        key = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype)) if tensor.numel() else (name,)
        if key not in self._shared:
            try:
                self.type_of(tensor)
            except UserError as error:
                self.faults.add(f"tensor {name}", node, str(error))
                return None
            # A copy: the model may be trained further, the constants must not change.
            self._shared[key] = Constant(name, np.array(tensor.detach().cpu().numpy(), order="C"))
        return self._shared[key]

    def type_of(self, tensor: Any) -> TensorType:
        """The type of a torch tensor; ModelImportError for element types that a graph does not have."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in dt.SCALARS or dtype == "bfloat16" or tensor.is_sparse or tensor.is_quantized:
            raise ModelImportError(f"tensors of {dtype} cannot be imported; convert the model and its inputs, model.float() for example")
        return TensorType(tuple([self.sizes.poly(s) for s in tensor.shape]), dtype)

    def _arguments(self, placeholders: Sequence[Any]) -> dict[str, Any]:
        """The arguments of `forward` by name, as torch's guards call them, with the placeholders in them."""
        users = [n for n, s in zip(placeholders, self.program.graph_signature.input_specs, strict=True) if s.kind.name == "USER_INPUT"]
        args, kwargs = self.torch.utils._pytree.tree_unflatten(users, self.program.call_spec.in_spec)
        names = self.program.module_call_graph[0].signature.forward_arg_names or []
        return {**dict(zip(names, args, strict=False)), **kwargs}

    def _assumptions(self, env: Mapping[Any, Any]) -> None:
        """What torch assumed of the sizes: the ranges of symbols, and guards."""
        if not self.sizes.variables:
            return
        found = self.sizes.range_conditions(self.program.range_constraints)
        extents = _with_extents(self._arguments([n for n in self.program.graph.nodes if n.op == "placeholder"]), env)
        guards = getattr(self.program, "_guards_code", None)
        if guards is None:
            self.faults.add(
                "dynamic_shapes",
                None,
                "this torch does not tell what it assumed of the sizes (ExportedProgram._guards_code); use a newer one, 2.13 does",
            )
        for text in guards or ():
            try:
                found.append(self.sizes.guard(text, extents))
            except UserError as error:
                self.faults.add("guard", None, str(error))
        for condition in found:
            self._assume(condition)

    def assume(self, condition: Any) -> None:
        """A sympy condition on sizes that the program asserts."""
        self._assume(self.sizes.condition(condition))

    def _assume(self, condition: Expr) -> None:
        """Nothing for what is known, and for what is assumed already."""
        if isinstance(condition, Const) or (isinstance(condition, IsNegative) and condition.index in self._below_zero):
            return
        if isinstance(condition, IsNegative):
            self._below_zero.add(condition.index)
        self.builder.assume(condition)

    def _results(self, returned: Sequence[Any]) -> list[Operand]:
        results: list[Operand] = []
        for value, spec in zip(returned, self.program.graph_signature.output_specs, strict=True):
            if spec.kind.name in ("BUFFER_MUTATION", "USER_INPUT_MUTATION", "PARAMETER_MUTATION"):
                what = spec.kind.name.removesuffix("_MUTATION").lower().replace("_", " ")
                self.faults.add(
                    f"change of the {what} {spec.target!r}",
                    None,
                    "functions change nothing: return the new value and pass it to the next call. In batch normalisation this is the"
                    " running mean of training; call model.eval()",
                )
            elif spec.kind.name != "USER_OUTPUT":
                self.faults.add(f"output of kind {spec.kind.name}", None, "outputs are tensors and numbers")
            elif isinstance(value, (Value, Constant)) and any(e.const == 0 for e in value.type.shape):
                self.faults.add("output", None, f"a result has no elements ({value.type}): leave it out of what the model returns")
            elif isinstance(value, (Value, Constant)):
                results.append(value)
            elif isinstance(value, (bool, int, float, Poly, SizeNumber)):
                results.append(self._number_result(value))
        return results

    def _number_result(self, value: Any) -> Operand:
        """A number or size that is returned, as torch.tensor would make it."""
        call = TorchCall("size", self.builder, self.sizes, ())
        return call.operand(value, call.promoted(value))


def _dim_names(arguments: Mapping[str, Any], dynamic_shapes: Any) -> dict[tuple[Any, int], str]:
    """(placeholder, dimension) -> name of the Dim that the user gave it."""
    found: dict[tuple[Any, int], str] = {}

    def walk(argument: Any, spec: Any) -> None:
        if isinstance(argument, Mapping) and isinstance(spec, Mapping):
            for key in argument:
                walk(argument[key], spec.get(key))
        elif isinstance(argument, (tuple, list)) and isinstance(spec, (tuple, list)):
            for a, s in zip(argument, spec, strict=False):
                walk(a, s)
        elif isinstance(spec, (Mapping, tuple, list)):
            for d, dim in spec.items() if isinstance(spec, Mapping) else enumerate(spec):
                if re.fullmatch(r"[A-Za-z]\w*", getattr(dim, "__name__", "")):
                    found[argument, d] = dim.__name__

    positional = isinstance(dynamic_shapes, (tuple, list))
    walk(list(arguments.values()) if positional else arguments, dynamic_shapes)
    return found


def _with_extents(argument: Any, env: Mapping[Any, Any]) -> Any:
    """The arguments with the extents of each tensor in its place."""
    if isinstance(argument, Mapping):
        return {key: _with_extents(a, env) for key, a in argument.items()}
    if isinstance(argument, (tuple, list)):
        return [_with_extents(a, env) for a in argument]
    held = env.get(argument)
    return held.type.shape if isinstance(held, Value) else argument.meta.get("val")
