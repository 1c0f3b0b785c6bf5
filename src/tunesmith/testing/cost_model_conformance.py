"""Conformance tests for cost models: derive a class from `CostModelConformance` in a test file and define the model's factory.

    class TestMine(CostModelConformance):
        @pytest.fixture
        def make(self):
            return Mine

Models with and without learning are supported; tests of learning apply if an update changes the model's scores, or must: `learns = True`
makes a model fail that ignores its updates.  `is_saved = False` omits the tests of files, for a model that only searches.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from tunesmith.costmodel.features.feature_program import gather, vector_names
from tunesmith.costmodel.features.store_features import columns
from tunesmith.costmodel.metrics import spearman
from tunesmith.costmodel.models.model import INPUTS, CostModel
from tunesmith.costmodel.models.sample_weights import takes_weights, update_model
from tunesmith.support.array_types import Float32Array, Float64Array, Int64Array
from tunesmith.support.errors import RecordError, UserError
from tunesmith.support.seeds import stream

Make = Callable[[], CostModel]
Data = tuple[Float32Array, Float64Array, Int64Array]

TOLERANCE = 1e-4
"""Allowed difference as a fraction of the score spread, for float32 sums in another order."""
_JUNK = (b"", b"{}", b"[1, 2", b'{"model": "other", "schema": 1}', b"\x80\x04K\x01.", b"\xff" * 64)


def example_data(inputs: str, n: int = 160, seed: int = 0) -> Data:
    """Features, seconds and groups of two tasks; times depend on three columns, and the second task's are a thousand times longer."""
    rng = stream(seed, "conformance")
    groups = np.arange(n) % 2
    if inputs == "program":
        x = (10 * rng.random((n, len(vector_names())))).astype(np.float32)
        key = x[:, :3]
    else:
        # Programs of the second task have one store fewer.
        parts = [(10 * rng.random((len(range(g, n, 2)), 3 - g, len(columns())))).astype(np.float32) for g in (0, 1)]
        x = gather(parts, [np.arange(g, n, 2) for g in (0, 1)])
        key = np.nan_to_num(x[:, :, :3]).sum(axis=1) / 2
    seconds = np.exp(0.3 * key[:, 0] + 0.2 * key[:, 1] - 0.1 * key[:, 2]) * np.where(groups, 1e-3, 1e-6)
    return x, seconds.astype(np.float64), groups


class CostModelConformance:
    """The tests; each docstring states a requirement."""

    is_saved: ClassVar[bool] = True
    """Whether the model defines `save` and `load`, as `tunesmith costmodel train` requires."""
    learns: ClassVar[bool | None] = None
    """Whether updates change scores; None if that is up to the model."""

    @pytest.fixture
    def make(self) -> Make:
        """A factory of fresh models."""
        raise NotImplementedError("override the fixture `make` to return a factory of fresh models")

    def test_input_kind_and_file_suffix(self, make: Make) -> None:
        """`inputs` is a known kind; `suffix` is a file suffix."""
        m = make()
        assert m.inputs in INPUTS, f"inputs is {m.inputs!r}, expected one of {', '.join(INPUTS)}"
        assert m.suffix in (".json", ".safetensors"), f"suffix is {m.suffix!r}, expected .json or .safetensors"

    def test_one_finite_score_per_program(self, make: Make) -> None:
        """Before and after learning, for any number of programs, including none."""
        m = make()
        x, seconds, groups = example_data(m.inputs)
        for _ in range(2):
            scores = m.score(x)
            found = f"{scores.dtype}{list(scores.shape)}"
            assert scores.shape == (len(x),) and scores.dtype == np.float64, f"the scores are {found}, expected float64[{len(x)}]"
            assert np.isfinite(scores).all(), f"{int((~np.isfinite(scores)).sum())} of {len(x)} scores are not finite"
            assert m.score(x[:0]).shape == (0,), "no program must give no score"
            m.update(x, seconds, groups)

    def test_equal_models_give_equal_scores(self, make: Make) -> None:
        """Equal models give bit-identical scores, also when called again."""
        first, second = make(), make()
        x, seconds, groups = example_data(first.inputs)
        for m in (first, second):
            m.update(x, seconds, groups)
        check_same_scores(first.score(x), second.score(x), "two models created and updated in the same way score the same programs")
        check_same_scores(first.score(x), first.score(x), "one model scores the same programs twice")

    def test_a_score_is_the_programs_own(self, make: Make) -> None:
        """A score does not depend on the other programs, on their order, or on the memory layout of the array.

        Rounding is tolerated: a library may sum in another order for another number of rows or another layout, and candidates with such
        close scores are equivalent.  Bit-identical scores, which repeatable searches need, are tested with equal arrays.
        """
        m = make()
        x, seconds, groups = example_data(m.inputs)
        m.update(x, seconds, groups)
        scores = m.score(x)
        alone = "programs are scored without the rest of their batch"
        check_near_scores(m.score(x[50:60]), scores[50:60], scores, alone)
        check_near_scores(m.score(x[7:8]), scores[7:8], scores, alone)
        check_near_scores(
            m.score(x[::-1]), scores[::-1], scores, "programs are scored in the reverse order (an array with negative strides)"
        )
        check_near_scores(m.score(np.asfortranarray(x)), scores, scores, "features are in Fortran order")
        check_near_scores(m.score(x.astype(np.float64)), scores, scores, "features are float64")
        many = np.concatenate([x] * 20)
        check_near_scores(m.score(many), np.concatenate([scores] * 20), scores, "a batch holds each program twenty times")
        if m.inputs == "stores":
            padded = np.concatenate([x, np.full_like(x[:, :2], np.nan)], axis=1)
            check_near_scores(m.score(padded), scores, scores, "rows of NaN for absent stores are added")

    def test_no_side_effects(self, make: Make) -> None:
        """The caller's arrays and numpy's global random state are unchanged."""
        m = make()
        data = example_data(m.inputs)
        before, state = example_data(m.inputs), str(np.random.get_state())
        for what in ("update", "score"):
            if what == "update":
                m.update(*data)
            else:
                m.score(data[0])
            for k, name in enumerate(("features", "seconds", "groups")):
                assert np.array_equal(data[k], before[k], equal_nan=True), f"{what} changed the {name} of its caller"
        assert str(np.random.get_state()) == state, "the model drew from numpy's global random state"

    def test_arrays_are_not_kept(self, make: Make) -> None:
        """Scores do not change when the arrays of an update are overwritten: a search reuses them."""
        m = make()
        x, seconds, groups = example_data(m.inputs)
        programs = x.copy()
        m.update(x, seconds, groups)
        before = m.score(programs)
        x[...], seconds[...], groups[...] = 1.0, 2.0, 3
        check_same_scores(m.score(programs), before, "the arrays of an update were overwritten after it")

    def test_results_are_the_callers(self, make: Make) -> None:
        """A later call does not change the scores that an earlier one returned."""
        m = make()
        x, seconds, groups = example_data(m.inputs)
        m.update(x, seconds, groups)
        first = m.score(x)
        copy = first.copy()
        m.update(x, 1 / seconds, groups)
        m.score(x[::-1])
        check_same_scores(first, copy, "a later call changed the scores that an earlier one returned")

    def test_concurrent_scoring(self, make: Make) -> None:
        """Four threads get the scores of a single thread."""
        m = make()
        data = example_data(m.inputs)
        m.update(*data)
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: m.score(data[0]), range(8)))
        for one in found:
            check_same_scores(one, m.score(data[0]), "four threads score at once")

    def test_updates_forget_earlier_ones(self, make: Make) -> None:
        """A model depends only on the last update, so a resumed search has the model of an uninterrupted one."""
        a, b = make(), make()
        x, seconds, groups = example_data(a.inputs)
        nothing = a.score(x)
        a.update(x, 1 / seconds, groups)
        a.update(x, seconds, groups)
        b.update(x, seconds, groups)
        check_same_scores(a.score(x), b.score(x), "a model was updated with other measurements before (update must replace earlier ones)")
        a.update(x[:0], seconds[:0], groups[:0])
        check_same_scores(a.score(x), nothing, "a model was updated with no measurements (update must replace earlier ones)")

    def test_learners_learn_the_order_within_tasks(self, make: Make) -> None:
        """Trained on one part, a model ranks the rest, and it scores failures as worse."""
        if not _learns(make):
            assert not self.learns, "the model learns, and an update changed no score"
            return
        assert self.learns is not False, "the model does not learn, and an update changed its scores"
        m = make()
        x, seconds, groups = example_data(m.inputs, 400)
        m.update(x[:300], seconds[:300], groups[:300])
        rank = spearman(seconds[300:], m.score(x[300:]), groups[300:])
        assert rank > 0.5, f"trained on 300 programs, the model ranks 100 others with a correlation of {rank:.2f}, required above 0.5"
        failed = seconds > np.where(groups, 1e-3, 1e-6) * np.exp(2)
        m.update(x, np.where(failed, np.inf, seconds), groups)
        assert m.score(x)[failed].mean() < m.score(x)[~failed].mean(), "programs that failed have better scores than those that ran"

    def test_weights_are_relative(self, make: Make) -> None:
        """Equal weights, and weights of ones, give the model without weights."""
        plain, ones, quarters = make(), make(), make()
        x, seconds, groups = example_data(plain.inputs)
        plain.update(x, seconds, groups)
        for m, value in ((ones, 1.0), (quarters, 0.25)):
            update_model(m, x, seconds, groups, np.full(len(x), value))
            check_near_scores(m.score(x), plain.score(x), plain.score(x), f"all samples have the weight {value:g}")

    def test_samples_of_weight_0_have_no_influence(self, make: Make) -> None:
        """A learner ranks programs as well as without samples of weight 0, whatever their times."""
        some, every = make(), make()
        if not _learns(make) or not takes_weights(every):
            return
        x, seconds, groups = example_data(every.inputs, 400)
        right = np.arange(300) // 2 % 2 == 0  # half of the samples of each task
        some.update(x[:300][right], seconds[:300][right], groups[:300][right])
        times = np.where(right, seconds[:300], 1 / seconds[:300])
        every.update(x[:300], times, groups[:300], weights=np.where(right, 1.0, 0.0))
        without, rank = [spearman(seconds[300:], m.score(x[300:]), groups[300:]) for m in (some, every)]
        assert rank > without - 0.2, (
            f"wrong samples of weight 0 change the correlation of scores and times of other programs from {without:.2f} to {rank:.2f}"
        )

    def test_what_is_saved_scores_the_same(self, make: Make, tmp_path: Path) -> None:
        """A loaded model gives the same scores; the file is data, not a pickle."""
        self._require_saving()
        m = make()
        data = example_data(m.inputs)
        m.update(*data)
        file = tmp_path / f"model{m.suffix}"
        m.save(file)
        assert file.read_bytes()[:1] != b"\x80" and b"__reduce__" not in file.read_bytes(), (
            "the file is a pickle, which runs code when read"
        )
        check_same_scores(type(m).load(file).score(data[0]), m.score(data[0]), "a model was saved and loaded")
        m.save(file)
        with pytest.raises(UserError):
            m.save(tmp_path / "model.other")
        with pytest.raises(UserError):
            m.save(tmp_path / "missing" / f"model{m.suffix}")

    def test_loaded_models_are_pretrained(self, make: Make, tmp_path: Path) -> None:
        """Pretrained knowledge survives updates, also with a few records of another task."""
        self._require_saving()
        m = make()
        x, seconds, groups = example_data(m.inputs, 300)
        m.update(x, seconds, groups)
        file = tmp_path / f"model{m.suffix}"
        m.save(file)
        first, second = type(m).load(file), type(m).load(file)
        m.keep()
        few, times, task = example_data(m.inputs, 8, seed=1)[0], np.linspace(1, 2, 8), np.full(8, 9)
        for one in (first, second, m):
            one.update(few, times, task)
        again = example_data(m.inputs, 200, seed=2)
        check_same_scores(first.score(x), second.score(x), "a model was loaded twice and both updated alike")
        check_same_scores(first.score(x), m.score(x), "a model was loaded, and its writer called keep(); both were updated alike")
        if _learns(make):
            assert not np.array_equal(first.score(x), type(m).load(file).score(x)), "an update of a pretrained model changed no score"
            assert spearman(again[1], first.score(again[0]), again[2]) > 0.4, "an update with eight records erased the pretraining"
        first.save(file)
        check_same_scores(type(m).load(file).score(x), first.score(x), "a pretrained model was updated, saved and loaded")
        second.update(few[:0], times[:0], task[:0])
        assert np.array_equal(second.score(x), type(m).load(file).score(x)) is not _learns(make)

    def test_files_that_it_did_not_write_are_refused(self, make: Make, tmp_path: Path) -> None:
        """Foreign or truncated files raise a RecordError."""
        self._require_saving()
        m = make()
        file = tmp_path / f"model{m.suffix}"
        for junk in _JUNK:
            file.write_bytes(junk)
            with pytest.raises(RecordError):
                type(m).load(file)
        with pytest.raises(RecordError):
            type(m).load(tmp_path / f"none{m.suffix}")
        m.update(*example_data(m.inputs))
        m.save(file)
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(RecordError):
            type(m).load(file)

    def _require_saving(self) -> None:
        if not self.is_saved:
            pytest.skip("the model is not saved")

    def test_invalid_data_is_refused(self, make: Make) -> None:
        """Arrays of different lengths, wrong numbers of dimensions, invalid times and weights."""
        m = make()
        x, seconds, groups = example_data(m.inputs, 10)
        refused = [
            (x, seconds[:9], groups),
            (x, seconds, groups[:9]),
            (x[0], seconds, groups),
            (x, np.where(np.arange(10) == 4, np.nan, seconds), groups),
            (x, np.where(np.arange(10) == 2, 0.0, seconds), groups),
            (x, -seconds, groups),
        ]
        m.update(x, seconds, groups)
        before = m.score(x)
        for bad in refused:
            with pytest.raises(UserError):
                m.update(*bad)
            check_same_scores(m.score(x), before, "an update was refused, so the model must be the one before it")
        for weights in (np.ones(9), np.full(10, -1.0), np.full(10, np.nan)) if takes_weights(m) else ():
            with pytest.raises(UserError):
                m.update(x, seconds, groups, weights=weights)
            check_same_scores(m.score(x), before, "an update was refused, so the model must be the one before it")
        if _learns(make):
            with pytest.raises(UserError):
                m.score(x[..., :-1])


def check_same_scores(got: Float64Array, expected: Float64Array, what: str) -> None:
    """Raise an AssertionError that describes the differing scores unless all are bit-identical."""
    if got.shape != expected.shape or not np.array_equal(got, expected):
        raise AssertionError(f"{what}, and scores must be equal bit by bit; {_difference(got, expected)}")


def check_near_scores(got: Float64Array, expected: Float64Array, scores: Float64Array, what: str) -> None:
    """Raise an AssertionError that describes the differing scores unless all agree within `TOLERANCE` times the spread of `scores`."""
    allowed = TOLERANCE * max(float(np.ptp(scores)), float(np.abs(scores).max(initial=0.0)))
    if got.shape != expected.shape or not (np.abs(got - expected) <= allowed).all():
        raise AssertionError(f"{what}, and scores may differ by {allowed:.3g} (rounding); {_difference(got, expected)}")


def _difference(got: Float64Array, expected: Float64Array) -> str:
    if got.shape != expected.shape:
        return f"got an array of shape {list(got.shape)} where {list(expected.shape)} is expected"
    apart = np.where(got == expected, 0.0, np.abs(got - expected))
    worst = int(np.nanargmax(apart)) if np.isfinite(apart).any() else 0
    count = int((~(got == expected)).sum())
    return f"{count} of {len(got)} differ, program {worst} the most: got {float(got[worst])!r}, expected {float(expected[worst])!r}"


def _learns(make: Make) -> bool:
    """Whether an update changes scores."""
    m = make()
    x, seconds, groups = example_data(m.inputs)
    before = m.score(x)
    m.update(x, seconds, groups)
    return not np.array_equal(m.score(x), before)
