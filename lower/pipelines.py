"""The compiler, as lists of passes."""

from __future__ import annotations

from tunesmith.lower.code_size import bound_unrolling
from tunesmith.lower.pass_infra import Pass, Pipeline
from tunesmith.lower.passes.check_bounds import check_bounds
from tunesmith.lower.passes.double_buffer import double_buffer
from tunesmith.lower.passes.drop_dead_stores import drop_dead_stores
from tunesmith.lower.passes.flatten_buffers import flatten_buffers
from tunesmith.lower.passes.fuse_multiply_add import fuse_multiply_add
from tunesmith.lower.passes.guard_zero_padding import guard_zero_padding
from tunesmith.lower.passes.inject_prefetch import inject_prefetch
from tunesmith.lower.passes.inject_virtual_threads import inject_virtual_threads
from tunesmith.lower.passes.insert_barriers import insert_barriers
from tunesmith.lower.passes.legalize_bool_storage import legalize_bool_storage
from tunesmith.lower.passes.lower_blocks import lower_blocks
from tunesmith.lower.passes.lower_cross_thread_reduction import lower_cross_thread_reduction
from tunesmith.lower.passes.pad_shared_tiles import pad_shared_tiles
from tunesmith.lower.passes.plan_allocations import plan_allocations
from tunesmith.lower.passes.simplify import simplify
from tunesmith.lower.passes.tighten_loop_bounds import tighten_loop_bounds
from tunesmith.lower.passes.uniform_vector_predicates import uniform_vector_predicates
from tunesmith.lower.passes.unify_thread_bindings import unify_thread_bindings
from tunesmith.lower.passes.unroll_loops import unroll_loops
from tunesmith.lower.passes.unswitch_loops import unswitch_loops
from tunesmith.lower.passes.vector_math import expand_math
from tunesmith.lower.passes.vectorize_loops import vectorize_loops
from tunesmith.lower.passes.version_loops import version_loops

_EXPAND_MATH = Pass("vector_math", lambda func, target: expand_math(func), "FLAT", "VECTOR")

CPU = Pipeline(
    inject_prefetch,
    simplify,
    drop_dead_stores,
    lower_blocks,
    guard_zero_padding,
    simplify,
    plan_allocations,
    tighten_loop_bounds,
    version_loops,
    unswitch_loops,
    simplify,
    flatten_buffers,
    legalize_bool_storage,
    vectorize_loops,
    fuse_multiply_add,
    unroll_loops,
    # Last: expanded functions share subexpressions as objects, which a rewrite of trees would copy.
    _EXPAND_MATH,
)
"""From a concrete scheduled function to what the CPU code generators take."""

CPU_CHECKED = Pipeline(check_bounds, guard_zero_padding, simplify, flatten_buffers, legalize_bool_storage, fuse_multiply_add, _EXPAND_MATH)
"""As `CPU`, with every index checked at run time: serial, and as slow as that is.  What decides how results are rounded is in both."""

GPU = Pipeline(
    lower_cross_thread_reduction,
    simplify,
    drop_dead_stores,
    lower_blocks,
    guard_zero_padding,
    simplify,
    unify_thread_bindings,
    plan_allocations,
    simplify,
    pad_shared_tiles,
    inject_virtual_threads,
    uniform_vector_predicates,
    simplify,
    double_buffer,
    flatten_buffers,
    legalize_bool_storage,
    vectorize_loops,
    fuse_multiply_add,
    insert_barriers,
    Pass("bound_unrolling", bound_unrolling, "FLAT", "FLAT"),
)
"""From a concrete scheduled function to kernels: the form of `lower.kernels`, with flat memory, vectors and barriers."""
