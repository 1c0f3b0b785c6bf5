"""The compiler, as lists of passes."""

from __future__ import annotations

from tunesmith.lower.check_bounds import check_bounds
from tunesmith.lower.clip_loops import clip_loops
from tunesmith.lower.code_size import bound_unrolling
from tunesmith.lower.combine_threads import combine_threads
from tunesmith.lower.double_buffer import double_buffer
from tunesmith.lower.drop_dead_stores import drop_dead_stores
from tunesmith.lower.fill_tiles import fill_tiles
from tunesmith.lower.flatten_buffers import flatten_buffers
from tunesmith.lower.fuse_multiply_add import fuse_multiply_add
from tunesmith.lower.hoist_conditions import hoist_conditions
from tunesmith.lower.insert_barriers import insert_barriers
from tunesmith.lower.lower_blocks import lower_blocks
from tunesmith.lower.passes import Pass, Pipeline
from tunesmith.lower.place_allocations import place_allocations
from tunesmith.lower.prefetch_ahead import prefetch_ahead
from tunesmith.lower.share_threads import share_threads
from tunesmith.lower.simplify import simplify
from tunesmith.lower.skip_zero_terms import skip_zero_terms
from tunesmith.lower.store_bools import store_bools
from tunesmith.lower.unroll_loops import unroll_loops
from tunesmith.lower.vector_math import expand_math
from tunesmith.lower.vectorize_loops import vectorize_loops
from tunesmith.lower.version_guards import version_guards
from tunesmith.lower.virtual_threads import virtual_threads
from tunesmith.lower.whole_vectors import whole_vectors

_EXPAND_MATH = Pass("lower.vector_math", lambda func, target: expand_math(func), "FLAT", "VECTOR")

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
    Pass("lower.code_size", bound_unrolling, "FLAT", "FLAT"),
)
"""From a concrete scheduled function to kernels: the form of `lower.kernels`, with flat memory, vectors and barriers."""
