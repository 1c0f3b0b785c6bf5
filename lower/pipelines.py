"""The compiler, as lists of passes."""

from __future__ import annotations

from tunesmith.lower.code_size import bound_unrolling
from tunesmith.lower.pass_infra import Pass, Pipeline
from tunesmith.lower.passes.check_bounds import check_bounds
from tunesmith.lower.passes.double_buffer import double_buffer
from tunesmith.lower.passes.drop_dead_stores import drop_dead_stores
from tunesmith.lower.passes.flatten_buffers import flatten_buffers
from tunesmith.lower.passes.fuse_multiply_add import fuse_multiply_add
from tunesmith.lower.passes.guard_zero_padding import skip_zero_terms
from tunesmith.lower.passes.inject_prefetch import prefetch_ahead
from tunesmith.lower.passes.inject_virtual_threads import virtual_threads
from tunesmith.lower.passes.insert_barriers import insert_barriers
from tunesmith.lower.passes.legalize_bool_storage import store_bools
from tunesmith.lower.passes.lower_blocks import lower_blocks
from tunesmith.lower.passes.lower_cross_thread_reduction import combine_threads
from tunesmith.lower.passes.pad_shared_tiles import fill_tiles
from tunesmith.lower.passes.plan_allocations import place_allocations
from tunesmith.lower.passes.simplify import simplify
from tunesmith.lower.passes.tighten_loop_bounds import clip_loops
from tunesmith.lower.passes.uniform_vector_predicates import whole_vectors
from tunesmith.lower.passes.unify_thread_bindings import share_threads
from tunesmith.lower.passes.unroll_loops import unroll_loops
from tunesmith.lower.passes.unswitch_loops import hoist_conditions
from tunesmith.lower.passes.vector_math import expand_math
from tunesmith.lower.passes.vectorize_loops import vectorize_loops
from tunesmith.lower.passes.version_loops import version_guards

_EXPAND_MATH = Pass("vector_math", lambda func, target: expand_math(func), "FLAT", "VECTOR")

CPU = Pipeline(
    prefetch_ahead,
    simplify,
    drop_dead_stores,
    lower_blocks,
    skip_zero_terms,
    simplify,
    place_allocations,
    clip_loops,
    version_guards,
    hoist_conditions,
    simplify,
    flatten_buffers,
    store_bools,
    vectorize_loops,
    fuse_multiply_add,
    unroll_loops,
    # Last: expanded functions share subexpressions as objects, which a rewrite of trees would copy.
    _EXPAND_MATH,
)
"""From a concrete scheduled function to what the CPU code generators take."""

CPU_CHECKED = Pipeline(check_bounds, skip_zero_terms, simplify, flatten_buffers, store_bools, fuse_multiply_add, _EXPAND_MATH)
"""As `CPU`, with every index checked at run time: serial, and as slow as that is.  What decides how results are rounded is in both."""

GPU = Pipeline(
    combine_threads,
    simplify,
    drop_dead_stores,
    lower_blocks,
    skip_zero_terms,
    simplify,
    share_threads,
    place_allocations,
    simplify,
    fill_tiles,
    virtual_threads,
    whole_vectors,
    simplify,
    double_buffer,
    flatten_buffers,
    store_bools,
    vectorize_loops,
    fuse_multiply_add,
    insert_barriers,
    Pass("bound_unrolling", bound_unrolling, "FLAT", "FLAT"),
)
"""From a concrete scheduled function to kernels: the form of `lower.kernels`, with flat memory, vectors and barriers."""
