"""Unknown keywords of the functions of the facade are refused with the ones that were meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tunesmith
from tunesmith.driver.bench.bench import baseline_names
from tunesmith.support.errors import UserError


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (tunesmith.compile, {"mod": "relu(shape=4)", "log": "log.jsonl"}, r"compile has no argument 'log': pass records=\.\.\."),
        (tunesmith.tune, {"workloads": "relu(shape=4)", "records": "log.jsonl"}, r"tune has no argument 'records': pass log=\.\.\."),
        (tunesmith.bench, {"workloads": "relu(shape=4)", "records": "log.jsonl"}, r"bench has no argument 'records': pass log=\.\.\."),
        (tunesmith.Budget, {"second": 3}, r"Budget has no argument 'second'\. Did you mean 'seconds'\?"),
        (tunesmith.Search, {"xx": "random"}, r"Search has no argument 'xx'\. It has sampler, model, seed"),
    ],
)
def test_unknown_keywords(call: Callable[..., Any], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call(**arguments)


def test_baselines_are_a_list_or_a_text_with_commas() -> None:
    assert baseline_names("torch") == baseline_names(["torch"]) == ("torch",)
    assert baseline_names("torch, mine.py:f,") == ("torch", "mine.py:f")
    with pytest.raises(UserError, match="unknown baseline 'tortch'. Did you mean 'torch'"):
        tunesmith.bench("relu(shape=4)", against="tortch")
    for wrong in (3, [3], None):
        with pytest.raises(UserError, match="against=.*: expected names of baselines, such as"):
            tunesmith.bench("relu(shape=4)", against=wrong)  # type: ignore[arg-type]
