"""The compiler of models, as a list of passes."""

from __future__ import annotations

from tunesmith.graph.passes.common_subexpressions import common_subexpressions
from tunesmith.graph.passes.convert_layout import convert_layout
from tunesmith.graph.passes.dead_code import dead_code
from tunesmith.graph.passes.flatten_rows import flatten_rows
from tunesmith.graph.passes.fold_constants import fold_constants
from tunesmith.graph.passes.fold_scale_axis import fold_scale_axis
from tunesmith.graph.passes.fuse_operators import fuse_operators
from tunesmith.graph.passes.legalise import legalise
from tunesmith.graph.passes.simplify_inference import simplify_inference
from tunesmith.graph.pipeline import ModulePass, ModulePipeline, module_pass

GRAPH = ModulePipeline(
    module_pass(simplify_inference),
    module_pass(fold_constants),
    module_pass(fold_scale_axis),
    module_pass(convert_layout),
    module_pass(flatten_rows),
    ModulePass("fold_layouts", lambda mod, target: fold_constants(simplify_inference(mod))),
    module_pass(common_subexpressions),
    module_pass(dead_code),
    ModulePass("fuse_operators", lambda mod, target: fuse_operators(mod)),
    module_pass(legalise),
)
"""From an imported model to TIR functions that wait for their schedules, and a graph function that calls them."""
