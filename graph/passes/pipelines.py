"""Define the pipelines of graph passes that compile models, with and without offloading."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps

from tunesmith.codegen.backends.backend import backend_of
from tunesmith.graph.offload.external_codegen import Codegen, find_codegen
from tunesmith.graph.passes.channels_into_width import channels_into_width
from tunesmith.graph.passes.common_subexpressions import common_subexpressions
from tunesmith.graph.passes.convert_layout import convert_layout
from tunesmith.graph.passes.dead_code import dead_code
from tunesmith.graph.passes.flatten_rows import flatten_rows
from tunesmith.graph.passes.fold_constants import fold_constants
from tunesmith.graph.passes.fold_permutes import fold_permutes
from tunesmith.graph.passes.fold_requantization import fold_requantization
from tunesmith.graph.passes.fold_scale_axis import fold_scale_axis
from tunesmith.graph.passes.fuse_operators import fuse_operators
from tunesmith.graph.passes.integer_contractions import integer_contractions
from tunesmith.graph.passes.legalise import legalise
from tunesmith.graph.passes.partition import partition
from tunesmith.graph.passes.propose_attention import propose_attention
from tunesmith.graph.passes.propose_chains import propose_chains
from tunesmith.graph.passes.simplify_inference import simplify_inference
from tunesmith.graph.passes.sink_dequantize import sink_dequantize
from tunesmith.graph.passes.to_mixed_precision import to_mixed_precision
from tunesmith.ir.function import IRModule
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_infra import ModulePass, Pipeline, module_pass
from tunesmith.lower.pass_options import name_of


def fold_layouts(mod: IRModule) -> IRModule:
    """Fold the constants that layout conversion made: `simplify_inference`, then `fold_constants`."""
    return fold_constants(simplify_inference(mod))


def _on_hosts(run: Callable[[IRModule], IRModule]) -> ModulePass:
    """A pass for functions whose schedules exist for CPUs only; it leaves the models of devices unchanged."""

    @wraps(run)
    def on_hosts(mod: IRModule, target: Target) -> IRModule:
        return mod if backend_of(target).device else run(mod)

    return ModulePass(name_of(run), on_hosts, level=2)


GRAPH = Pipeline(
    module_pass(simplify_inference),
    module_pass(sink_dequantize, level=2),
    module_pass(integer_contractions, level=2),
    module_pass(fold_requantization, level=2),
    module_pass(fold_constants),
    module_pass(fold_scale_axis, level=2),
    module_pass(convert_layout, level=2),
    module_pass(flatten_rows, level=2),
    module_pass(fold_layouts),
    module_pass(common_subexpressions),
    module_pass(fold_permutes, level=2),
    module_pass(dead_code),
    module_pass(to_mixed_precision, needed_by="models that are compiled in a precision"),
    module_pass(channels_into_width, level=2),
    _on_hosts(propose_attention),
    _on_hosts(propose_chains),
    module_pass(fuse_operators, level=2),
    module_pass(legalise, needed_by="executors, which call compiled functions"),
)
"""Compile an imported model to unscheduled TIR functions and a graph function that calls them.

Functions that `propose_attention` and `propose_chains` made have an alternative; see `graph.tuning.choose_parts`."""

GRAPH_PASSES: Mapping[str, ModulePass] = {p.name: p for p in GRAPH if isinstance(p, ModulePass)}
"""The passes of `GRAPH` by name."""


def offloading(codegens: Iterable[Codegen], pipeline: Pipeline = GRAPH) -> Pipeline:
    """The pipeline with a partition pass for each external code generator, in order, after `fold_constants`.

    The partition passes are preceded by `flatten_rows` and `dead_code`, so that dense layers over batches of rows are matrix products.

    Raises:
        UserError: a code generator does not exist, or the pipeline has no pass `fold_constants`.
    """
    found = [find_codegen(c) for c in codegens]
    if not found:
        return pipeline
    rows = ModulePass("offload_rows", lambda mod, target: dead_code(flatten_rows(mod)), level=2)
    passes = [
        ModulePass(f"partition_{c.name}", lambda mod, target, c=c: partition(mod, c), needed_by="offload=, which asks for it")
        for c in found
    ]
    return pipeline.insert_after("fold_constants", rows, *passes)
