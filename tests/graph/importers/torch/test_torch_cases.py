"""Compare torch functions with unusual arguments, and random networks, to torch; `experiments/torch_fuzz` runs the full tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from tunesmith.graph.importers.torch.importer import from_torch
from tunesmith.graph.ir.interpret import run
from tunesmith.support.errors import ModelImportError

torch = pytest.importorskip("torch")
agreement = pytest.importorskip("tunesmith.testing.torch_agreement")

from tunesmith.testing import torch_cases_elementwise, torch_cases_networks, torch_cases_shapes  # noqa: E402
from tunesmith.testing.torch_cases import CaseTable, TorchCase  # noqa: E402
from tunesmith.testing.torch_networks import Network  # noqa: E402

Dim = torch.export.Dim
CASES: dict[str, TorchCase] = {}
for _table in (torch_cases_elementwise, torch_cases_shapes, torch_cases_networks):
    CASES |= {name: case for name, case in _table.CASES.items() if name not in CASES}

WRONG_ONCE = (
    *("edges_sign", "half_sign", "edges_log1p", "double_expm1", "small_logs", "log2_floor", "log10_floor", "edges_celu"),
    *("edges_softplus_threshold", "double_softplus", "edges_softplus_beta_3", "edges_remainder_3"),
    *("edges_floor_divide", "double_floor_divide_minus", "wide_floor_divided_float", "half_scaled_1e-08"),
    *("byte_plus_minus_1", "byte_times_300", "byte_clamp", "byte_sort_of", "small_minus_200", "byte_above_300"),
    *("cube_var_half", "cube_var_beyond", "cube_std", "half_squares", "index_put_mask", "index_put_mask_rows"),
    *("attention_minus_inf_row", "attention_floats_input", "resize_row_2_82"),
)
"""Cases that earlier versions computed wrongly or ended with an internal error."""


@pytest.fixture(scope="module")
def verdicts() -> dict[str, str]:
    cases = [CASES[name] for name in WRONG_ONCE]
    return agreement.verdicts(cases, agreement.interpreted)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", WRONG_ONCE)
def test_regressions(verdicts: dict[str, str], name: str) -> None:
    assert verdicts[name] == "ok"


def test_regressions_compiled() -> None:
    found = agreement.verdicts([CASES[name] for name in WRONG_ONCE[1::6]], agreement.EXECUTORS["graph"])
    assert {name: verdict for name, verdict in found.items() if verdict != "ok"} == {}


def test_sample_of_the_tables() -> None:
    plain = [case for case in CASES.values() if not case.refused and case.name not in WRONG_ONCE]
    assert len(plain) > 600
    found = agreement.verdicts(plain[3::131], agreement.interpreted)
    assert {name: verdict for name, verdict in found.items() if verdict != "ok"} == {}


@pytest.mark.parametrize("name", ["edges_two_nextafter", "write_diagonal", "index_empty", "empty_sum"])
def test_unsupported_cases_are_refused(name: str) -> None:
    case = CASES[name]
    assert case.refused and agreement.mismatch(case, agreement.verdicts([case], agreement.interpreted)[name]) == ""


@pytest.mark.parametrize(("executor", "seeds"), [("interpreter", range(2)), ("graph", [20]), ("vm", [21]), ("aot", [22])])
def test_random_networks(executor: str, seeds: Sequence[int]) -> None:
    for seed in seeds:
        network = Network(seed)
        assert agreement.disagreement(network, network.example, agreement.EXECUTORS[executor], 2e-4) == "", seed


def test_networks_are_reproducible_from_the_seed() -> None:
    one, other = Network(5), Network(5)
    assert [name for name, _, _ in one.steps] == [name for name, _, _ in other.steps] and len(one.steps) == 8
    assert all(torch.equal(a, b) for a, b in zip(one(*one.example), other(*other.example), strict=True))


@pytest.mark.parametrize(
    ("got", "expected", "text"),
    [
        (np.zeros(2, np.float32), torch.zeros(2, dtype=torch.float64), "torch has float64"),
        (np.zeros((2, 1), np.float32), torch.zeros(2), "torch has float32[2]"),
        (np.zeros(1, np.float32), torch.tensor([-0.0]), "torch has np.float32(-0.0)"),
        (np.float32([1, math.nan]), torch.tensor([math.nan, 1]), "2 of 2 elements differ"),
        (np.float32([1, 1.001]), torch.tensor([1.0, 1.0]), "1 of 2 elements differ, first at (1,)"),
        (np.array([1, 2]), torch.tensor([1, 3]), "1 of 2 elements differ"),
    ],
)
def test_differences_are_reported(got: np.ndarray, expected: object, text: str) -> None:
    assert text in agreement.difference(got, expected)
    assert agreement.difference(np.asarray(expected), expected) == ""


def test_verdicts_distinguish_wrong_results_refusals_and_crashes() -> None:
    table = CaseTable()
    table.add("good", lambda x: x + 1, (3,))
    table.add("refused", lambda x: torch.nonzero(x.sum()), (3,), refused="its operand is a number")
    cases = list(table.values())
    found = agreement.verdicts(cases, lambda mod, inputs: [x + 2 for x in inputs])
    assert found["good"].startswith("wrong: result 0: 3 of 3") and found["refused"].startswith("refused: ")
    assert [agreement.mismatch(case, found[case.name]) == "" for case in cases] == [False, True]
    broken = agreement.verdicts(cases[:1], lambda mod, inputs: [inputs[5]])
    assert broken["good"].startswith("crash: IndexError")
    assert "should be refused" in agreement.mismatch(cases[1], "ok")


class Function(torch.nn.Module):
    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: object) -> object:
        return self.function(*inputs)  # type: ignore[operator]


def test_nearest_resize_to_the_size_of_another_input() -> None:
    model = Function(lambda x, y: torch.nn.functional.interpolate(x, (2, y.shape[0])))
    x, width = torch.randn(1, 1, 2, 3), Dim("width", min=2, max=500)
    func = from_torch(model, (x, torch.zeros(7)), {"inputs": (None, {0: width})})["main"]
    for n in (5, 41, 123):
        y = torch.zeros(n)
        assert np.array_equal(run(func, [x.numpy(), y.numpy()])[0], model(x, y).numpy()), n


def test_variance_with_dynamic_element_count() -> None:
    model = Function(lambda x: (x.var(0, correction=2.5), x.var(0, correction=0)))
    func = from_torch(model, (torch.randn(4, 3),), {"inputs": ({0: Dim("n", min=2, max=50)},)})["main"]
    few, several = torch.randn(2, 3), torch.randn(5, 3)
    assert np.isposinf(run(func, [few.numpy()])[0]).all()  # torch divides by 0 with a warning
    for got, expected in zip(run(func, [several.numpy()]), model(several), strict=True):
        np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5)


def test_decomposition_error_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("a mutation on a view chain\n\nof length 2")

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", broken)
    with pytest.raises(ModelImportError, match="could not decompose the exported program: RuntimeError: a mutation on a view"):
        from_torch(Function(torch.relu), (torch.randn(3, 3),))
