"""renamed_passes: names of version 0.1 lead to those of today."""

from __future__ import annotations

import pytest

from tunesmith.graph.passes.pipelines import GRAPH
from tunesmith.lower.pipelines import CPU, PASSES
from tunesmith.lower.renamed_passes import RENAMED, did_you_mean_pass
from tunesmith.support.errors import UserError


def test_renamed_passes_exist_and_old_names_do_not() -> None:
    assert set(RENAMED.values()) <= set(PASSES) and not set(RENAMED) & set(PASSES)


def test_old_names_are_suggested() -> None:
    for old, present in RENAMED.items():
        for name in (old, f"lower.{old}"):
            assert did_you_mean_pass(name, PASSES) == f" Since version 0.2 it is {present!r}."
    assert did_you_mean_pass("lower.simplify", PASSES) == " Since version 0.2 it is 'simplify'."
    assert did_you_mean_pass("simplfy", PASSES) == " Did you mean 'simplify'?"
    assert did_you_mean_pass("lower.mine", PASSES) == did_you_mean_pass("simplify", ["legalise"]) == ""


def test_pipelines_suggest_names() -> None:
    with pytest.raises(UserError, match="the pipeline has no pass 'lower.clip_loops'; .* Since version 0.2 it is 'tighten_loop_bounds'"):
        CPU.without("lower.clip_loops")
    with pytest.raises(UserError, match="the pipeline has no pass 'legalize'; .* Did you mean 'legalise'"):
        GRAPH.without("legalize")
    for pipeline in (CPU, GRAPH):
        with pytest.raises(UserError, match="the pipeline has no pass 3; it has .*[a-z]\\.$"):
            pipeline.without(3)  # type: ignore[arg-type]
