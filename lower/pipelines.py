"""List the lowering passes of each target kind, and all passes by name."""

from __future__ import annotations

from collections.abc import Mapping

from tunesmith.lower.pass_infra import Pass, Pipeline
from tunesmith.lower.passes.bound_unrolling import bound_unrolling
from tunesmith.lower.passes.check_bounds import check_bounds
from tunesmith.lower.passes.compact_local_buffers import compact_local_buffers
from tunesmith.lower.passes.double_buffer import double_buffer
from tunesmith.lower.passes.drop_dead_stores import drop_dead_stores
from tunesmith.lower.passes.expand_math import expand_math
from tunesmith.lower.passes.flatten_buffers import flatten_buffers
from tunesmith.lower.passes.forward_stores import forward_stores
from tunesmith.lower.passes.fuse_multiply_add import fuse_multiply_add
from tunesmith.lower.passes.guard_zero_padding import guard_zero_padding
from tunesmith.lower.passes.hoist_guards import hoist_guards
from tunesmith.lower.passes.hoist_shared_allocations import hoist_shared_allocations
from tunesmith.lower.passes.inject_prefetch import inject_prefetch
from tunesmith.lower.passes.inject_virtual_threads import inject_virtual_threads
from tunesmith.lower.passes.insert_barriers import insert_barriers
from tunesmith.lower.passes.legalize_bool_storage import legalize_bool_storage
from tunesmith.lower.passes.lower_blocks import lower_blocks
from tunesmith.lower.passes.lower_cross_thread_reduction import lower_cross_thread_reduction
from tunesmith.lower.passes.order_unrolled_loops import order_unrolled_loops
from tunesmith.lower.passes.pad_shared_tiles import pad_shared_tiles
from tunesmith.lower.passes.plan_allocations import plan_allocations
from tunesmith.lower.passes.simplify import simplify
from tunesmith.lower.passes.tensorize_loops import tensorize_loops
from tunesmith.lower.passes.tighten_loop_bounds import tighten_loop_bounds
from tunesmith.lower.passes.uniform_vector_predicates import uniform_vector_predicates
from tunesmith.lower.passes.unify_thread_bindings import unify_thread_bindings
from tunesmith.lower.passes.unroll_loops import unroll_loops
from tunesmith.lower.passes.unswitch_loops import unswitch_loops
from tunesmith.lower.passes.vectorize_loops import vectorize_loops
from tunesmith.lower.passes.verify_thread_access import verify_thread_access
from tunesmith.lower.passes.version_loops import version_loops

CPU = Pipeline(
    inject_prefetch,
    simplify,
    drop_dead_stores,
    order_unrolled_loops,
    lower_blocks,
    guard_zero_padding,
    simplify,
    plan_allocations,
    compact_local_buffers,
    tighten_loop_bounds,
    version_loops,
    unswitch_loops,
    simplify,
    flatten_buffers,
    legalize_bool_storage,
    tensorize_loops,
    vectorize_loops,
    fuse_multiply_add,
    bound_unrolling,
    unroll_loops,
    forward_stores,
    # Last: expanded functions share subexpressions as objects, which a tree rewrite would copy.
    expand_math,
)
"""Passes from a concrete scheduled function to the input of the CPU code generators."""

CPU_CHECKED = Pipeline(check_bounds, guard_zero_padding, simplify, flatten_buffers, legalize_bool_storage, fuse_multiply_add, expand_math)
"""Passes for a serial, slow program that checks every index at run time.  Passes that affect rounding are the same as in `CPU`."""

GPU = Pipeline(
    lower_cross_thread_reduction,
    simplify,
    drop_dead_stores,
    lower_blocks,
    guard_zero_padding,
    simplify.needed(by="verify_thread_access, which reads indices in simple form"),
    unify_thread_bindings,
    plan_allocations,
    compact_local_buffers.needed(by="verify_thread_access, as threads own what they use of a buffer"),
    hoist_shared_allocations,
    verify_thread_access,
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
    hoist_guards,
    bound_unrolling,
)
"""Passes from a concrete scheduled function to kernels (see `lower.kernels`) with flat memory, vectors and barriers."""

PASSES: Mapping[str, Pass] = {p.name: p for p in sorted(GPU + CPU_CHECKED + CPU, key=lambda p: p.name) if isinstance(p, Pass)}
"""All passes by name."""
