"""Test suites: valid, canonical and distinct workloads, and errors for unknown names."""

from __future__ import annotations

import pytest

from tunesmith.datasets.suites import SUITES, Suite, expand
from tunesmith.ops.workload import workload
from tunesmith.support.errors import UserError


@pytest.mark.parametrize("name", SUITES.names())
def test_workloads_are_valid_and_canonical(name: str) -> None:
    suite = SUITES.get(name)
    assert suite.about and len(suite) == len(set(suite))
    assert [workload(text).text for text in suite] == list(suite)


def test_sizes_match_the_published_networks() -> None:
    assert {n: len(SUITES.get(n)) for n in ("resnet18", "resnet50", "mobilenet_v2")} == {"resnet18": 16, "resnet50": 25, "mobilenet_v2": 31}
    # Multiply-adds of all distinct layers; repeated layers of ResNet-18 count once.
    depthwise = [t for t in SUITES.get("mobilenet_v2") if "groups=" in t]
    assert len(depthwise) == 10 and sum("stride=2" in t for t in depthwise) == 4


def test_ansor_has_four_shapes_of_ten_operators_and_two_batches() -> None:
    ansor, one = SUITES.get("ansor"), SUITES.get("ansor1")
    assert len(ansor) == 80 and len(one) == 10 and set(one) < set(ansor)
    assert [text.partition("(")[0] for text in one] == [
        "conv1d",
        "conv2d",
        "conv3d",
        "batch_matmul",
        *["conv2d"] * 3,
        "conv2d_transpose",
        "capsule_conv2d",
        "matrix_norm",
    ]
    assert len(SUITES.get("metaschedule")) == 12


def test_expand() -> None:
    assert expand("suite:rows") == SUITES.get("rows").workloads == expand("suite: rows ")
    assert expand("matmul(m=1,n=1,k=1)") == ("matmul(m=1,n=1,k=1)",)
    with pytest.raises(UserError, match="unknown suite 'resnet5'. Did you mean 'resnet50'"):
        expand("suite:resnet5")
    with pytest.raises(UserError, match="names no suite. Known: ansor"):
        expand("suite:")


@pytest.mark.parametrize("workloads", ["relu(shape=8)", (3,)])
def test_workloads_of_a_suite_are_texts(workloads: object) -> None:
    with pytest.raises(UserError, match="the workloads of a suite are a tuple of texts, not "):
        Suite("mine", workloads)  # type: ignore[arg-type]
