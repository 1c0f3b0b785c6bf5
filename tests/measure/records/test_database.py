"""Test the database: the best candidate, separation of targets, independence of the order of arrival."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from tunesmith.ir import structural
from tunesmith.ir.script.printer import script
from tunesmith.ir.target.target import Target
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.log import RecordLog
from tunesmith.measure.records.record import ERROR_KINDS, ErrorInfo, Record, WorkloadLine
from tunesmith.measure.records.status import IN_MODEL
from tunesmith.ops.workload import workload
from tunesmith.support.errors import RecordError, UserError
from tunesmith.support.seeds import stream

Make = Callable[..., Record]

CPU = {"kind": "llvm", "mcpu": "znver5", "num-cores": 2}
GPU = {"kind": "cuda", "arch": "sm_90"}


def _timed(make: Make, row: int, seconds: float, **changes: object) -> Record:
    return make(row=(row,), samples=(seconds,), **changes)


def _best_row(database: Database) -> int | None:
    best = database.best("w0", CPU)
    return None if best is None else best.row[0]


def test_best_is_the_fastest_verified_record(make_record: Make) -> None:
    database = Database()
    assert database.best("w0", CPU) is None
    assert database.top("w0", CPU, 3) == []
    assert database.measured("w0", CPU) == set()
    database.add(_timed(make_record, 1, 3.0))
    database.add(_timed(make_record, 2, 0.1, verified=False))
    database.add(_timed(make_record, 3, 0.1, verified=False, error=ErrorInfo("wrong_result", "off")))
    database.add(make_record(row=(4,), samples=(), verified=False, error=ErrorInfo("crash", "SIGILL")))
    assert _best_row(database) == 1
    database.add(_timed(make_record, 5, 2.0))
    assert _best_row(database) == 5
    assert [r.row for r in database.top("w0", CPU, 9)] == [(5,), (1,)]
    assert [r.row for r in database.top("w0", CPU, 2, unverified=True)] == [(2,), (5,)]
    assert database.measured("w0", CPU) == {("tile-3", (row,)) for row in range(1, 6)}
    assert len(database) == 5


def test_records_are_not_shared_between_targets(make_record: Make) -> None:
    database = Database([make_record()])
    assert database.best("w0", dict(reversed(CPU.items()))) is not None
    for target in (GPU, {**CPU, "num-cores": 4}, {"kind": "llvm"}, {}):
        assert database.best("w0", target) is None
        assert database.top("w0", target, 1) == []
        assert database.measured("w0", target) == set()
    assert database.best("w1", CPU) is None
    database.add(make_record(target=GPU, samples=(1e-9,)))
    assert _best_row(database) == 4
    assert database.best("w0", CPU) == make_record()
    assert database.tasks() == [("w0", CPU), ("w0", GPU)]
    with pytest.raises(RecordError, match="`target`"):
        database.best("w0", {"kind": object()})


def test_a_target_is_given_as_itself_or_as_its_json(make_record: Make) -> None:
    target = Target("llvm -num-cores=2")
    database = Database([make_record(target=target.to_json())])
    for given in (target, target.to_json()):
        assert database.best("w0", given) == make_record(target=target.to_json())
        assert [len(database.top("w0", given, 3)), len(database.evidence("w0", given, 3)), len(database.measured("w0", given))] == [1, 1, 1]
        assert len(database.records("w0", given)) == 1 and database.tuned_sizes("w0", given) == []
    for ask in (database.best, database.measured, database.records, lambda w, t: database.top(w, t, 1)):
        with pytest.raises(UserError, match=r"target='llvm': expected a Target, such as Target\('llvm'\), or its JSON"):
            ask("w0", "llvm")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["mine.py:logsum", "relu(shape=4)", "net/op_relu", "net.onnx"])
def test_a_name_is_no_digest(make_record: Make, name: str) -> None:
    database = Database([make_record()])
    for ask in (database.best, database.measured, database.records, lambda w, t: database.top(w, t, 1)):
        with pytest.raises(UserError, match=r"workload='.*': expected the digest of a program, such as report.tasks\[0\].digest; Database"):
            ask(name, CPU)
    database.add_workload(WorkloadLine("w0", name, ""))
    with pytest.raises(UserError, match=r"that of this workload is 'w0'"):
        database.best(name, CPU)
    with pytest.raises(UserError, match="workload=None: expected the digest"):
        database.best(None, CPU)  # type: ignore[arg-type]


def test_a_workload_with_records_may_have_any_digest(make_record: Make) -> None:
    database = Database([make_record(workload="a/b")])
    assert database.best("a/b", CPU) is not None and len(database.records("a/b")) == 1


def test_copies_count_once_and_the_highest_status_rank_counts(make_record: Make) -> None:
    record = _timed(make_record, 1, 1.0, verified=False)
    database = Database([record, _timed(make_record, 2, 2.0)])
    assert not database.add(record)
    assert _best_row(database) == 2
    assert not database.add(dataclasses.replace(record, verified=True))
    assert _best_row(database) == 1
    assert not database.add(dataclasses.replace(record, error=ErrorInfo("wrong_result", "off")))
    assert not database.add(dataclasses.replace(record, verified=True))
    assert _best_row(database) == 2
    assert len(database) == len(database.records()) == 2


def test_later_measurement_replaces_a_lucky_one(make_record: Make) -> None:
    database = Database([_timed(make_record, 1, 1.0), _timed(make_record, 2, 1.1), _timed(make_record, 3, 1.12)])
    assert _best_row(database) == 1
    database.add(_timed(make_record, 1, 1.2, timestamp=3.0))
    assert _best_row(database) == 1  # the others lost to its lucky time and were not measured again
    database.add(_timed(make_record, 2, 1.15, timestamp=4.0))
    assert _best_row(database) == 2
    database.add(_timed(make_record, 2, 0.5, timestamp=5.0, verified=False))  # an unverified output does not count
    assert [r.seconds for r in database.top("w0", CPU, 3)] == [1.15, 1.12, 1.2]
    database.add(_timed(make_record, 4, 0.99, timestamp=6.0))  # below all times of the best
    assert _best_row(database) == 4


def test_a_candidate_chosen_in_a_model_leads_until_a_later_one_is_faster_than_all(make_record: Make) -> None:
    database = Database([_timed(make_record, 1, 1.0), _timed(make_record, 2, 1.1), _timed(make_record, 3, 1.2)])
    chosen = _timed(make_record, 2, 1.1, extra={IN_MODEL: True}, timestamp=5.0)
    database.add(chosen)
    assert _best_row(database) == 2
    assert [r.row for r in database.top("w0", CPU, 3)] == [(2,), (1,), (3,)]
    assert [r.row for r in database.top("w0", CPU, 2, unverified=True)] == [(1,), (2,)]
    database.add(_timed(make_record, 4, 1.05))
    database.add(_timed(make_record, 5, 0.5, verified=False))
    assert _best_row(database) == 2
    database.add(_timed(make_record, 6, 0.9))
    assert _best_row(database) == 6
    database.add(_timed(make_record, 3, 1.2, extra={IN_MODEL: True}, timestamp=6.0))
    assert _best_row(database) == 3  # the last choice counts
    database.add(make_record(row=(3,), samples=(), verified=False, error=ErrorInfo("wrong_result", "off"), timestamp=7.0))
    assert _best_row(database) == 6
    assert _best_row(pickle.loads(pickle.dumps(database))) == 6


def test_a_choice_in_a_model_outlives_further_measurements_of_the_candidates(make_record: Make) -> None:
    """As those of the leaders of a later search; only a new candidate is faster than all before."""
    database = Database([_timed(make_record, 1, 1.0), _timed(make_record, 2, 1.1), _timed(make_record, 3, 1.2)])
    database.add(_timed(make_record, 2, 1.1, extra={IN_MODEL: True}, timestamp=5.0))
    for n, row in enumerate((1, 2, 3, 1)):
        database.add(_timed(make_record, row, 0.99 + 0.1 * row, timestamp=6.0 + n))
        assert _best_row(database) == 2
    database.add(_timed(make_record, 1, 0.5, timestamp=20.0))
    assert _best_row(database) == 2
    database.add(_timed(make_record, 4, 0.6, timestamp=21.0))
    assert _best_row(database) == 2
    database.add(_timed(make_record, 5, 0.4, timestamp=22.0))
    assert _best_row(database) == 5


@pytest.mark.parametrize("mark", [False, 1, "true", None])
def test_only_the_mark_itself_prefers_a_candidate(make_record: Make, mark: object) -> None:
    records = [_timed(make_record, 1, 1.0), _timed(make_record, 2, 1.1, extra={IN_MODEL: mark})]
    assert _best_row(Database(records)) == 1


def test_noisy_measurement_replaces_no_clean_one(make_record: Make) -> None:
    database = Database([_timed(make_record, 1, 1.0), _timed(make_record, 2, 1.1)])
    for n, (seconds, clean, counts) in enumerate([(1.5, False, 1.0), (0.9, False, 1.0), (1.05, True, 1.05), (9.0, False, 1.05)]):
        database.add(_timed(make_record, 1, seconds, timestamp=2e3 + n, clean=clean))
        assert [r.seconds for r in database.top("w0", CPU, 2)] == [counts, 1.1]
        assert [r.seconds for r in Database(database.evidence("w0", CPU, 2)).top("w0", CPU, 2)] == [counts, 1.1]


def test_the_latest_of_noisy_measurements_counts_until_a_clean_one(make_record: Make) -> None:
    database = Database([_timed(make_record, 1, 3.0, clean=False)])
    for n, (seconds, clean, counts) in enumerate([(4.0, False, 4.0), (2.0, True, 2.0), (1.0, False, 2.0)]):
        database.add(_timed(make_record, 1, seconds, timestamp=2e3 + n, clean=clean))
        assert [r.seconds for r in database.top("w0", CPU, 1)] == [counts]
    unverified = Database([_timed(make_record, 1, 1.0, verified=False), _timed(make_record, 1, 2.0, timestamp=2e3, clean=False)])
    assert [r.seconds for r in unverified.top("w0", CPU, 1)] == [2.0], "a verified measurement has priority even if it is noisy"


def test_log_order_counts_and_timestamps_do_not(make_record: Make) -> None:
    database = Database([_timed(make_record, 1, 1e-6, timestamp=4102444800.0)])  # the year 2100
    for k in range(3):
        database.add(_timed(make_record, 1, 5e-6, timestamp=1000.0 + k))
    assert database.best("w0", CPU) == _timed(make_record, 1, 5e-6, timestamp=1002.0)
    database.add(make_record(row=(1,), samples=(), timestamp=0.0, verified=False, error=ErrorInfo("crash", "late")))
    assert database.best("w0", CPU) is None


@pytest.mark.parametrize("kind", ERROR_KINDS)
def test_failure_invalidates_earlier_measurements(make_record: Make, kind: str) -> None:
    failed = make_record(row=(1,), samples=(), timestamp=2.0, verified=False, error=ErrorInfo(kind, "no more"))
    database = Database([_timed(make_record, 1, 1.0), _timed(make_record, 2, 2.0)])
    assert _best_row(database) == 1
    database.add(failed)
    assert _best_row(database) == 2
    assert [r.row for r in database.top("w0", CPU, 9, unverified=True)] == [(2,)]
    database.add(_timed(make_record, 1, 1.0, timestamp=3.0))
    assert _best_row(database) == 1


def test_impossible_times_are_ignored(make_record: Make) -> None:
    func = workload("matmul(m=48,n=64,k=64)").func
    digest, target = structural.digest(func), Target("llvm -mcpu=znver5 -num-cores=2")
    mine = {"workload": digest, "target": target.to_json()}
    records = [_timed(make_record, 1, 3e-9, **mine), _timed(make_record, 2, 4e-6, **mine), _timed(make_record, 3, 5e-10, **mine)]
    line = WorkloadLine(digest, "matmul", script(func))
    for database in (Database(records, [line]), Database(records)):
        best = database.best(digest, target.to_json(), func)
        assert best is not None and best.row == (2,)
    database = Database(records)  # without the program only the shortest possible time is a bound
    assert database.best(digest, target.to_json()) == records[0]
    database.add_workload(line)
    assert database.best(digest, target.to_json()) == records[1]
    database.add(_timed(make_record, 1, 3e-6, timestamp=2e3, **mine))
    assert database.best(digest, target.to_json()) == database.records()[-1]
    lies = WorkloadLine(digest, "matmul", script(workload("relu(shape=1)").func))
    assert Database(records, [lies]).best(digest, target.to_json()) == records[0]
    assert Database(records, [WorkloadLine(digest, "matmul", "garbage")]).best(digest, target.to_json()) == records[0]


def test_schedules_with_equal_name_and_row_are_distinct_candidates(make_record: Make) -> None:
    old, new = _timed(make_record, 1, 1.0, trace=[["old", {}, []]]), _timed(make_record, 1, 2.0, trace=[["new", {}, []]])
    database = Database([old, new])
    assert database.top("w0", CPU, 9) == [old, new]
    database.add(_timed(make_record, 1, 9.0, trace=[["new", {}, []]], timestamp=2e3))
    assert database.best("w0", CPU) == old


def test_no_best_after_the_last_candidate_fails(make_record: Make) -> None:
    record = make_record()
    database = Database([record])
    database.add(dataclasses.replace(record, verified=False, error=ErrorInfo("wrong_result", "off")))
    assert database.best("w0", CPU) is None
    assert database.records("w0", CPU)[0].error is not None


def test_best_does_not_depend_on_the_time_of_the_query(make_record: Make, tmp_path: Path) -> None:
    draw = stream(0, "test-database")
    for case in range(60):
        asked, log = Database(), RecordLog(tmp_path / f"{case}.jsonl")
        for number in range(12):
            wrong = draw.random() < 0.2
            record = _timed(
                make_record,
                int(draw.integers(3)),
                float(draw.integers(1, 4)),
                seed=number,
                timestamp=float(draw.integers(4)),
                clean=bool(draw.random() < 0.7),
                verified=not wrong and bool(draw.random() < 0.7),
                error=ErrorInfo("timeout", "") if wrong else None,
                extra={IN_MODEL: True} if draw.random() < 0.15 else {},
            )
            asked.add(record)
            log.append(record)
            best, top = asked.best("w0", CPU), asked.top("w0", CPU, 9)
            assert best == (top[0] if top else None)
        loaded = Database.from_log(log.path)
        assert loaded.top("w0", CPU, 9) == top
        for k in (1, 2, 3):
            pruned = Database(sorted(loaded.evidence("w0", CPU, k), key=loaded.records().index))
            assert pruned.top("w0", CPU, 9) == top[:k]


def test_order_of_the_paths_does_not_matter(tmp_path: Path, make_record: Make) -> None:
    wrong = make_record(row=(1,), samples=(), timestamp=5.0, verified=False, error=ErrorInfo("wrong_result", "off"))
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    RecordLog(one).append(_timed(make_record, 1, 1.0, timestamp=9.0), wrong, _timed(make_record, 2, 2.0, timestamp=6.0))
    RecordLog(two).append(_timed(make_record, 1, 1.0, timestamp=7.0), _timed(make_record, 3, 3.0, timestamp=8.0), wrong)
    orders = [[r.timestamp for r in Database.from_log(paths).records()] for paths in ([one, two], [two, one], [one, two, one])]
    assert orders == [[7.0, 8.0, 9.0, 5.0, 6.0]] * 3  # the order of each log is kept


def test_from_logs(tmp_path: Path, make_record: Make) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    workload = WorkloadLine("w0", "matmul", "script")
    RecordLog(one).append(workload, _timed(make_record, 1, 2.0))
    RecordLog(two).append(workload, _timed(make_record, 1, 2.0), _timed(make_record, 2, 1.0, workload="w1"))
    with two.open("a") as file:
        file.write("garbage\n")
    database = Database.from_log([one, str(two)])
    assert len(database) == 2
    assert database.workloads() == {"w0": workload}
    assert [digest for digest, _ in database.tasks()] == ["w0", "w1"]
    assert [r.row for r in database.records(workload="w1")] == [(2,)]
    assert database.records(target=GPU) == []
    assert (database.report.bad_count, database.report.duplicates) == (1, 2)
    assert len(Database.from_log(str(one))) == 1
    with pytest.raises(RecordError, match="cannot read"):
        Database.from_log(tmp_path / "nowhere.jsonl")


def test_first_definition_of_a_workload_is_kept() -> None:
    database = Database(workloads=[WorkloadLine("w0", "a", "1"), WorkloadLine("w0", "b", "2")])
    assert database.workloads()["w0"].script == "1"


def test_concurrent_adds_and_queries(make_record: Make, in_threads: Callable[..., None]) -> None:
    database = Database()

    def work(first: int) -> None:
        for number in range(first, first + 200):
            database.add(_timed(make_record, number, 1.0 + number, seed=number))
            database.best("w0", CPU)
            database.top("w0", CPU, 3)
            database.measured("w0", CPU)

    in_threads(work, (0, 100, 200, 300))
    assert len(database) == 500
    assert _best_row(database) == 0


def test_copies_and_pickles_are_independent_databases(make_record: Make, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("damaged\n")
    database = Database.from_log(path)
    database.add(_timed(make_record, 1, 2e-3))
    for made in (pickle.loads(pickle.dumps(database)), copy.copy(database), copy.deepcopy(database)):
        assert made.records() == database.records() and made.report.bad_count == 1
        made.add(_timed(make_record, 2, 1e-3))
        assert (_best_row(made), _best_row(database), len(database)) == (2, 1, 1)


def test_records_of_changed_passes_are_kept_apart(make_record: Make) -> None:
    changes = {"without": ["simplify"], "options": {"version_loops": {"most": 2}}}
    database = Database([_timed(make_record, 1, 3.0), _timed(make_record, 2, 1.0, passes=changes)])
    other = database.compiled_with(dict(reversed(changes.items())))
    assert _best_row(database) == 1 and _best_row(other) == 2 and len(database) == len(other) == 1
    assert other.compiled_with(changes) is other and other.compiled_with({}) is database is database.compiled_with({})
    assert other.add(_timed(make_record, 3, 0.5)) and _best_row(database) == 3 and _best_row(other) == 2
    assert database.add(_timed(make_record, 4, 0.1, passes=changes)) and _best_row(other) == 4
    assert _best_row(database.compiled_with({"without": ["simplify"]})) is None
    line = WorkloadLine("w0", "name", "text")
    database.add_workload(line)
    assert other.workloads() == {"w0": line}
    assert len(database.changes_measured("w0")) == 1 and other.changes_measured("w0") == [""] and not database.changes_measured("w1")
    for copied in (copy.copy(other), pickle.loads(pickle.dumps(other))):
        assert _best_row(copied) == 4 and _best_row(copied.compiled_with({})) == 3 and copied.compiled_with({}) is not database
    assert database.views() == [database, other, database.compiled_with({"without": ["simplify"]})] and other.views()[0] is other
    assert not database.changes and '"without":["simplify"]' in other.changes
