"""Replays on synthetic pools are reproducible and resumable, refuse unknown candidates, and rank better-informed methods first."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tunesmith.experiments.arena import report as report_module
from tunesmith.experiments.arena.methods import Method, line_up, parse_spec, split_specs
from tunesmith.experiments.arena.plots import plot_arena
from tunesmith.experiments.arena.pool import Pool
from tunesmith.experiments.arena.replay import ArenaRun, ArenaSettings, Job, replay, run_arena
from tunesmith.experiments.arena.report import ArenaSummary, losses, summarise
from tunesmith.experiments.arena.statistics import chance_trials, median_interval, trials_to
from tunesmith.ir.target.target import Target
from tunesmith.ops.workload import workload
from tunesmith.search.samplers.evolutionary_sampler import EvolutionarySampler
from tunesmith.search.samplers.registry import SAMPLERS
from tunesmith.search.samplers.sampler import Candidate, Result, Sampler
from tunesmith.search.task import Task
from tunesmith.support import source_closure
from tunesmith.support.errors import MissingExtraError, UserError
from tunesmith.testing.synthetic_pool import synthetic_pool

SMALL = "evolutionary(draft=128,keep=32,generations=1)"

ORACLE = '''
from tunesmith.search.samplers.sampler import Candidate, Sampler
from tunesmith.search.samplers.registry import SAMPLERS
from tunesmith.testing.synthetic_pool import synthetic_seconds


class Oracle(Sampler):
    """Proposes the fastest candidates first, from the formula of the times."""

    def __init__(self, task, late=0):
        known = []
        for k, s in enumerate(task.space.sketches):
            rows = s.space.tables[0]
            known += [(t, Candidate(k, tuple(r))) for t, r in zip(synthetic_seconds(s.name, rows), rows.tolist())]
        self.order = [c for _, c in sorted(known)]
        self.order = self.order[len(self.order) - late :] + self.order[: len(self.order) - late]

    def ask(self, n):
        out, self.order = self.order[:n], self.order[n:]
        return out

    def tell(self, results):
        pass
'''

RIDGE = """
from tunesmith.costmodel.models.random_model import RandomModel


class Ridge(RandomModel):
    @classmethod
    def load(cls, path):
        return cls()
"""


def make(text: str = "matmul(m=96,n=80,k=64)", rows: int = 40, seed: int = 0) -> Pool:
    w = workload(text)
    return synthetic_pool(Task(w.text, w.func, Target("llvm -mcpu=znver5 -num-cores=2")), rows, seed)


@pytest.fixture(scope="module")
def pools() -> list[Pool]:
    return [make(), make("matmul(m=64,n=48,k=80)", rows=25)]


@pytest.fixture
def oracle(tmp_path: Path) -> str:
    path = tmp_path / "oracle.py"
    path.write_text(ORACLE)
    return f"{path}:Oracle"


class Foreign(Sampler):
    """Proposes given batches."""

    def __init__(self, batches: list[list[Candidate]]) -> None:
        self.batches = batches

    def ask(self, n: int) -> list[Candidate]:
        return self.batches.pop(0) if self.batches else []

    def tell(self, results: Sequence[Result]) -> None:
        pass


def test_a_replay_searches_recorded_times(pools: list[Pool]) -> None:
    pool = pools[0]
    tried = replay(pool, Method("random").make(pool.task, 3), 50, 8)
    assert len(tried) == len(set(tried)) == 50 and all(0 <= i < len(pool) for i in tried)
    assert tried == replay(pool, Method("random").make(pool.task, 3), 50, 8)
    assert tried != replay(pool, Method("random").make(pool.task, 4), 50, 8)
    assert replay(pool, Method("random").make(pool.task, 3), 10, 8)[:8] == tried[:8]


def test_proposals_that_break_the_contract_are_refused(pools: list[Pool]) -> None:
    pool = pools[0]
    rows = [Candidate(0, tuple(r)) for r in pool.sketches[0].rows[:4].tolist()]
    with pytest.raises(UserError, match=r"not in the pool of matmul.*: the row \[1, 2\] of the sketch 'tile rows-vec'"):
        replay(pool, Foreign([[rows[0], Candidate(0, (1, 2))]]), 8, 8)
    with pytest.raises(UserError, match=r"Foreign.ask\(3\) proposed 4 candidates: at most 3"):
        replay(pool, Foreign([rows]), 3, 8)
    with pytest.raises(UserError, match="Foreign proposed Candidate.* twice"):
        replay(pool, Foreign([rows, rows[:1]]), 8, 8)
    assert len(replay(pool, Foreign([rows, []]), 8, 4)) == 4  # an empty proposal ends the search without an error


def test_a_sampler_can_be_given_with_its_model() -> None:
    named = line_up(["random", f"{SMALL}+none", "annealing + xgb(rounds=20)", f"{SMALL}+none"], ["xgb", "analytic"])
    assert [(e.sampler, e.model) for e in named] == [("random", ""), (SMALL, "none"), ("annealing", "xgb(rounds=20)")]
    with pytest.raises(UserError, match="'random' takes no model, but 'random\\+xgb' names one"):
        line_up(["random+xgb"], [])


def test_results_do_not_depend_on_the_number_of_workers(pools: list[Pool], oracle: str) -> None:
    methods = line_up(["random", SMALL, oracle], ["xgb"])
    alone = run_arena(pools, methods, 2, ArenaSettings(48, 16), workers=0)
    spread = run_arena(pools, methods, 2, ArenaSettings(48, 16), workers=2)
    assert list(alone.tried.items()) == list(spread.tried.items())
    assert len(alone.tried) == 12 and not alone.failures and not spread.failures
    assert json.dumps(summarise(alone).to_json()) == json.dumps(summarise(spread).to_json())


def test_resuming_repeats_no_replay(pools: list[Pool], tmp_path: Path, oracle: str) -> None:
    journal = tmp_path / "replays.jsonl"
    seen: list[tuple[int, int]] = []
    first = run_arena(pools, line_up(["random"], []), 2, ArenaSettings(20, 8), workers=0, journal=journal)
    assert first.resumed == 0 and len(journal.read_text().splitlines()) == 4
    more = line_up(["random", oracle], [])
    second = run_arena(
        pools, more, 3, ArenaSettings(20, 8), workers=0, journal=journal, progress=lambda done, total: seen.append((done, total))
    )
    assert second.resumed == 4 and seen[0] == (4, 12) and seen[-1] == (12, 12)
    assert all(second.tried[job] == tried for job, tried in first.tried.items())
    text = journal.read_text()
    assert len(text.splitlines()) == 12
    third = run_arena(pools, more, 3, ArenaSettings(20, 8), workers=0, journal=journal)
    assert third.resumed == 12 and third.tried == second.tried and journal.read_text() == text
    for other in (ArenaSettings(21, 8), ArenaSettings(20, 4)):
        assert run_arena(pools, more, 1, other, workers=0, journal=journal).resumed == 0


def test_the_journal_ignores_invalid_lines(pools: list[Pool], tmp_path: Path, oracle: str) -> None:
    journal = tmp_path / "replays.jsonl"
    run_arena(pools[:1], line_up([oracle], []), 1, ArenaSettings(4, 4), workers=0, journal=journal)
    (line,) = journal.read_text().splitlines()
    data = json.loads(line)
    for damaged in ({**data, "asked": [1, 10**9]}, {**data, "asked": "all"}, {**data, "v": 2}, {**data, "pool": "0"}, 7):
        journal.write_text(json.dumps(damaged) + "\n{torn")
        assert run_arena(pools[:1], line_up([oracle], []), 1, ArenaSettings(4, 4), workers=0, journal=journal).resumed == 0
    journal.write_text(line + "\n")
    assert run_arena(pools[:1], line_up([oracle], []), 1, ArenaSettings(4, 4), workers=0, journal=journal).resumed == 1
    Path(oracle.rpartition(":")[0]).write_text(ORACLE + "\n# edited\n")  # an edited sampler is a different one
    assert run_arena(pools[:1], line_up([oracle], []), 1, ArenaSettings(4, 4), workers=0, journal=journal).resumed == 0


def test_the_better_informed_method_ranks_first(pools: list[Pool], oracle: str) -> None:
    blind = oracle + "(late=50)"
    methods = line_up(["random", blind, oracle], [])
    s = summarise(run_arena(pools, methods, 8, ArenaSettings(60, 10), workers=0))
    assert methods[s.ranking[0].method].sampler == oracle
    assert s.ranking[0].rank == 1.0 and s.ranking[0].slowdown.value == pytest.approx(1.0, abs=1e-12)
    assert s.ranking[0].p == 1.0 and s.ranking[1].p < 0.01 and s.unit == "replay"
    by_name = {(x.pool, methods[x.method].sampler): x for x in s.standings}
    for p in range(len(pools)):
        best = by_name[p, oracle]
        assert [g.trials.value for g in best.goals] == [1.0, 1.0, 1.0] and best.slowdown.value == 1.0
        assert by_name[p, blind].goals[2].trials.value > 50  # the slowest 50 of the pool come first
        assert best.goals[0].of_chance == 1.0 / best.goals[0].chance


def test_random_matches_the_expectation_by_chance() -> None:
    w = workload("matmul(m=96,n=80,k=64)")
    real = Task(w.text, w.func, Target("llvm -mcpu=znver5 -num-cores=2"))
    pool = synthetic_pool(real, 100)
    run = run_arena([pool], [Method("random")], 120, ArenaSettings(400, 16), workers=0)
    for share in (0.6, 0.8, 0.9):
        goal = pool.best / share
        expected = chance_trials(len(pool), int((pool.seconds <= goal).sum()))
        found = median_interval(trials_to(run.curves(0, 0), goal), 0.99)
        assert found.low <= expected <= found.high


def test_curves_are_padded_and_start_at_infinity(pools: list[Pool]) -> None:
    pool = pools[0]
    failed = int(np.flatnonzero(np.isinf(pool.seconds))[0])
    fine = int(np.flatnonzero(np.isfinite(pool.seconds))[0])
    run = ArenaRun((pool,), (Method("random"),), 2, ArenaSettings(4, 4), {Job(0, 0, 1): (failed, fine)})
    assert run.curves(0, 0).tolist() == [[np.inf, *[pool.seconds[fine]] * 3]]
    slowest = pool.seconds[np.isfinite(pool.seconds)].max()
    expected = (np.log(slowest / pool.best) + 3 * np.log(pool.seconds[fine] / pool.best)) / 4
    assert losses(pool, run.curves(0, 0)).tolist() == pytest.approx([expected])
    assert replace(run, settings=ArenaSettings(10**6)).budget(0) == len(pool)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_failing_sampler_is_reported_and_stops_no_other(pools: list[Pool], tmp_path: Path, workers: int) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(ORACLE.replace("return out", "return [Candidate(0, (1, 2))]").replace("Oracle", "Bad"))
    run = run_arena(pools[:1], line_up(["random", f"{bad}:Bad"], []), 2, ArenaSettings(8, 8), workers=workers)
    assert len(run.tried) == 2 and [f.job for f in run.failures] == [Job(0, 1, 0), Job(0, 1, 1)]
    assert "UserError: not in the pool of matmul" in run.failures[0].message and "Traceback" in run.failures[0].detail
    s = summarise(run)
    assert [r.method for r in s.ranking] == [0] and [x.method for x in s.standings] == [0]
    assert s.to_json()["failures"][0]["entrant"] == "bad.py:Bad"  # type: ignore[index]


def test_with_six_pools_the_tests_are_over_pools(oracle: str) -> None:
    pools = [make("matmul(m=32,n=32,k=32)", rows=12, seed=seed) for seed in range(6)]
    s = summarise(run_arena(pools, line_up(["random", oracle + "(late=0)"], []), 3, ArenaSettings(12, 4), workers=0))
    assert s.unit == "pool" and s.pairs[0].p >= 2 / 2**6


@pytest.mark.parametrize("shift", [0.05, 0.15])
def test_adjusted_intervals_of_pairs_exclude_1_exactly_if_bonferronis_p_is_significant(shift: float) -> None:
    """One pair has the interval of its own, and each of three pairs a wider one."""
    rng = np.random.default_rng(0)
    blocks = {n: n * shift + 0.1 * rng.normal(size=20) for n in range(3)}
    pairs = report_module._pairs([0, 1, 2], blocks, 0.95)
    for p in pairs:
        excludes = not p.simultaneous.low <= 1 <= p.simultaneous.high
        assert excludes == (3 * p.p <= 0.05) and (not excludes or p.better(0.95) is not None)
        assert p.simultaneous.low < p.ratio.low < p.ratio.value == p.simultaneous.value < p.ratio.high < p.simultaneous.high
    assert {3 * p.p <= 0.05 for p in pairs} >= {True}
    (alone,) = report_module._pairs([0, 2], blocks, 0.95)
    assert alone.simultaneous == alone.ratio


def test_the_verdict_agrees_with_its_test(pools: list[Pool]) -> None:
    """One method is ahead in 19 of 20 replays and finds nothing in one: its mean is worse, but the signed ranks favour it."""
    pool = pools[0]
    seconds = [np.full(len(s.seconds), 1e-3) for s in pool.sketches]
    seconds[0][:3] = 1.00e-5, 1.02e-5, 1.10e-5
    pool = replace(pool, sketches=tuple(replace(s, seconds=x) for s, x in zip(pool.sketches, seconds, strict=True)))
    others = list(range(5, 20))
    tried = {Job(0, 0, s): tuple([1 if s else 20, *others]) for s in range(20)}
    tried |= {Job(0, 1, s): tuple([2, *others]) for s in range(20)}
    run = ArenaRun((pool,), (Method("random"), Method("evolutionary", "none")), 20, ArenaSettings(16, 4), tried)
    s = summarise(run)
    (pair,) = s.pairs
    assert pair.adjusted < 0.001 and pair.better(0.95) == 0 and pair.ratio.high < 1.0
    assert [r.method for r in s.ranking] == [1, 0] and s.ranking[1].p == 1.0
    (note,) = s.notes
    assert note.startswith("evolutionary + none has the lowest mean slowdown, but random is better in the typical replay")
    back = summarise(replace(run, tried={Job(0, 1 - j.method, j.seed): found for j, found in tried.items()}))
    assert back.pairs[0].better(0.95) == 1 and back.ranking[1].p == 1.0


def test_a_pool_of_disturbed_measurements_is_noted(pools: list[Pool]) -> None:
    tried = {Job(0, 0, s): (0, 1) for s in range(10)}

    def notes(clean: int) -> list[str]:
        pool = replace(pools[0], measured=8, clean=clean)
        return summarise(ArenaRun((pool,), (Method("random"),), 10, ArenaSettings(8, 2), tried)).notes

    assert notes(4) == []
    (note,) = notes(3)
    assert note.startswith(f"{pools[0].name}: 3 of 8 measurements are clean (38%)") and "dataset build --retake" in note


def test_a_resumed_arena_names_the_files_that_changed(pools: list[Pool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once its replays are repeated, the method is not named again; nor is one whose code did not change."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside_named.py").write_text("X = 1\n")
    (tmp_path / "named.py").write_text(
        "import beside_named\nfrom tunesmith.search.samplers.random_sampler import RandomSampler\nclass Mine(RandomSampler): ...\n"
    )
    journal = tmp_path / "replays.jsonl"

    def notes() -> list[str]:
        run = run_arena(pools[:1], line_up(["random", "named.py:Mine"], []), 1, ArenaSettings(4, 2), workers=0, journal=journal)
        assert summarise(run).notes[: len(run.changes)] == list(run.changes)
        return list(run.changes)

    try:
        assert notes() == [] == notes()
        (tmp_path / "beside_named.py").write_text("X = 2\n")
        assert notes() == ["named.py:Mine: beside_named.py changed since the replays in the journal, which are not used"]
        assert notes() == []
        monkeypatch.setattr(source_closure, "_own_digest", lambda: b"another tunesmith")
        assert [n.split(" since")[0] for n in notes()] == [
            f"{name}: tunesmith, an installed package or an import changed" for name in ("random", "named.py:Mine")
        ]
        lines = [json.loads(line) for line in journal.read_text().splitlines()]
        assert [sorted(x["files"]) for x in lines[:2]] == [[], ["beside_named.py", "named.py"]]
    finally:
        sys.modules.pop("beside_named", None)
        sys.path[:] = [p for p in sys.path if p != str(tmp_path)]


def test_edited_imports_and_models_change_the_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal's key covers all code of a method, not only the file of its class."""
    (tmp_path / "greed.py").write_text("GREED = 1\n")
    (tmp_path / "mine.py").write_text(
        "from greed import GREED\nfrom tunesmith.search.samplers.random_sampler import RandomSampler\n"
        "class Mine(RandomSampler):\n    greed = GREED\n"
    )
    (tmp_path / "ridge.py").write_text(RIDGE)
    (tmp_path / "ridge.json").write_text('{"model": "ridge", "schema": 3, "w": 1}')
    methods = [Method(f"{tmp_path}/mine.py:Mine"), Method("evolutionary", f"{tmp_path}/ridge.py:Ridge@{tmp_path}/ridge.json")]
    path, modules = list(sys.path), set(sys.modules)

    def codes() -> list[str]:
        return [Method(e.sampler, e.model).code for e in methods]

    try:
        known = [codes()]
        for name, old, new in (("greed.py", "1", "2"), ("ridge.json", "1", "2"), ("ridge.py", "class", "x = 1\nclass")):
            (tmp_path / name).write_text((tmp_path / name).read_text().replace(old, new, 1))
            known.append(codes())
        assert [len({c[i] for c in known}) for i in (0, 1)] == [2, 3]
        assert Method(methods[0].sampler)._sampler[0].greed == 2  # type: ignore[attr-defined]  # a class defined in the file
        monkeypatch.setattr(source_closure, "_own_digest", lambda: b"another tunesmith")
        assert all(a != b for a, b in zip(codes(), known[-1], strict=True)) and Method("random").code != known[0][0]
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            del sys.modules[name]


def test_invalid_arguments_are_refused(pools: list[Pool]) -> None:
    with pytest.raises(UserError, match="at least 1 trial, in batches of at least 1; got trials=0"):
        ArenaSettings(0)
    with pytest.raises(UserError, match="got 0 pools and 1 methods"):
        run_arena([], [Method("random")], 1)
    with pytest.raises(UserError, match="got seeds=0, workers=1"):
        run_arena(pools, [Method("random")], 0)


def test_specs() -> None:
    assert split_specs("a, b(x=1,y=2),c.py:D(z=off) ,") == ["a", "b(x=1,y=2)", "c.py:D(z=off)"]
    assert parse_spec("b(x=1, y=2.5,z=off,w=none,v=text)") == ("b", {"x": 1, "y": 2.5, "z": False, "w": None, "v": "text"})
    assert parse_spec("a()") == ("a", {})
    for wrong in ("b(x)", "b(x=1", "b(=1)", "b(x=)"):
        with pytest.raises(UserError, match=r"is not of the form NAME or NAME\(key=value,...\)"):
            parse_spec(wrong)


def test_methods_are_samplers_times_models() -> None:
    found = line_up(["random", SMALL], ["xgb(rounds=10)", "none"])
    assert [e.label for e in found] == ["random", f"{SMALL} + xgb(rounds=10)", f"{SMALL} + none"]
    assert len({e.code for e in found}) == 3
    assert pickle.loads(pickle.dumps(found[1])) == found[1]
    assert Method("/a/b/mine.py:Mine(x=1)", "/c/model.json").label == "mine.py:Mine(x=1) + model.json"
    for samplers, models, what in [
        (["evolutionary(drift=1)"], ["xgb"], "the sampler 'evolutionary.drift=1.' has no setting 'drift'. It has: draft, keep"),
        (["random(x=1)"], [], "has no setting 'x'. It has: none"),
        (["evolutionary"], [], "the sampler 'evolutionary' needs a model, but none is given"),
        (["evolutionary"], ["xgb(deep=1)"], "the model 'xgb.deep=1.' has no setting 'deep'"),
        (["evolutionary"], ["xbg"], "unknown cost model 'xbg'. Did you mean 'xgb'"),
        ([], ["xgb"], "an arena needs a sampler"),
        (["annealing"], ["none"], "the sampler 'annealing' cannot run without a model: it has no setting `learning`"),
    ]:
        with pytest.raises(UserError, match=what):
            line_up(samplers, models)


def test_settings_are_passed_to_sampler_and_model(pools: list[Pool]) -> None:
    sampler = Method("evolutionary(draft=64,drafting=off)", "xgb(rounds=7)").make(pools[0].task, 5)
    assert isinstance(sampler, EvolutionarySampler) and sampler.seed == 5
    assert sampler.settings.draft == 64 and not sampler.settings.drafting and sampler.settings.learning
    assert sampler.model.rounds == 7 and sampler.model.seed == 5  # type: ignore[attr-defined]
    off = Method("evolutionary", "none").make(pools[0].task, 0)
    assert isinstance(off, EvolutionarySampler) and not off.settings.learning


def test_errors_of_a_class_are_reported(pools: list[Pool], tmp_path: Path) -> None:
    path = tmp_path / "picky.py"
    path.write_text(
        ORACLE.replace("known = []", "known = [] if int(late) else []").replace("Oracle", "Picky") + "\n\ndef odd(task):\n    pass\n"
    )
    with pytest.raises(UserError, match=r"picky.py:odd.*not a class that derives from tunesmith.search.samplers.sampler.Sampler"):
        line_up([f"{path}:odd"], [])
    with pytest.raises(UserError, match=r"the sampler '.*picky.py:Picky.late=soon.' cannot be created: invalid literal for int"):
        Method(f"{path}:Picky(late=soon)").make(pools[0].task, 0)


@pytest.mark.parametrize("name", [n for n in SAMPLERS.names() if n != "optuna-gp"])  # takes a second per proposal
def test_every_sampler_runs_unchanged(pools: list[Pool], name: str) -> None:
    pool = pools[1]
    try:
        sampler = Method(name, "random").make(pool.task, 0)
    except MissingExtraError as error:
        pytest.skip(str(error))
    tried = replay(pool, sampler, 16, 8)
    assert len(tried) == len(set(tried)) == 16
    assert tried == replay(pool, Method(name, "random").make(pool.task, 0), 16, 8)


def test_ablations_change_the_proposals(pools: list[Pool]) -> None:
    pool = pools[0]
    names = [SMALL, SMALL[:-1] + ",drafting=off)"]
    tried = {
        (name, model): replay(pool, Method(name, model).make(pool.task, 0), 48, 16)
        for name in names
        for model in ("xgb", "analytic", "none")
    }
    assert tried[names[0], "xgb"][:16] == tried[names[0], "none"][:16]  # before the first data
    assert len({tuple(a) for a in tried.values()}) == len(tried)
    analytic = pool.task.space.sketches[0].analytic(pool.task.target)
    estimate = {pool.index(Candidate(0, tuple(r))): float(analytic.seconds(r[None])[0]) for r in pool.sketches[0].rows}

    def mean(name: str) -> float:
        return float(np.mean([estimate[i] for i in tried[name, "none"][:16] if i in estimate]))

    assert mean(names[0]) < mean(names[1])  # the draft ranks by the analytic model


def test_equal_data_give_equal_plots(pools: list[Pool], tmp_path: Path, oracle: str) -> None:
    pytest.importorskip("matplotlib")
    s: ArenaSummary = summarise(run_arena(pools, line_up(["random", oracle], []), 3, ArenaSettings(20, 10), workers=0))
    first, second = plot_arena(s, tmp_path / "a"), plot_arena(s, tmp_path / "b")
    assert [p.name for p in first] == ["curves-0-matmul-m-96-n-80-k-64.svg", "curves-1-matmul-m-64-n-48-k-80.svg", "ranking.svg"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert "oracle.py:Oracle" in one.read_text() and ElementTree.parse(one).getroot().tag.endswith("svg")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write .*file.curves-0"):
        plot_arena(s, tmp_path / "file")


def test_a_sampler_that_exits_fails_its_replays_only(tmp_path: Path) -> None:
    path = tmp_path / "quits.py"
    path.write_text(
        "from tunesmith.search.samplers.random_sampler import RandomSampler\n\n\nclass Quits(RandomSampler):\n"
        "    def ask(self, n):\n        raise SystemExit(3)\n"
    )
    run = run_arena([make()], line_up([f"{path}:Quits", "random"], []), 1, ArenaSettings(8), workers=0)
    assert [f.job.method for f in run.failures] == [0] and run.failures[0].message == "SystemExit: 3"
