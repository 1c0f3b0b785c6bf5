"""Suggest the name of a pass, also for the name that it had before version 0.2."""

from __future__ import annotations

from collections.abc import Collection

from tunesmith.support.nearest_name import did_you_mean

RENAMED = {
    "check_meetings": "verify_thread_access",
    "clip_loops": "tighten_loop_bounds",
    "code_size": "bound_unrolling",
    "combine_threads": "lower_cross_thread_reduction",
    "fill_tiles": "pad_shared_tiles",
    "hoist_conditions": "unswitch_loops",
    "place_allocations": "plan_allocations",
    "prefetch_ahead": "inject_prefetch",
    "share_threads": "unify_thread_bindings",
    "skip_zero_terms": "guard_zero_padding",
    "store_bools": "legalize_bool_storage",
    "vector_math": "expand_math",
    "version_guards": "version_loops",
    "virtual_threads": "inject_virtual_threads",
    "whole_vectors": "uniform_vector_predicates",
}
"""Name in version 0.1, without the prefix `lower.` that names had -> name since then, where the two differ."""


def did_you_mean_pass(name: object, known: Collection[str]) -> str:
    """A sentence with the known name that was meant, to append to a message; empty if no name is similar, or `name` is no text."""
    if not isinstance(name, str):
        return ""
    old = name.removeprefix("lower.")
    present = RENAMED.get(old, old)
    if present != name and present in known:
        return f" Since version 0.2 it is {present!r}."
    return did_you_mean(present, known)
