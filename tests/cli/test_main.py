"""The command line: output, JSON and exit statuses."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import tunesmith
from tunesmith.cli.main import main
from tunesmith.measure.records.log import RecordLog
from tunesmith.support.errors import UserError

TUNING = ["--sampler", "random", "--workers", "0"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture
def log(hand: ModuleType, tmp_path: Path) -> Path:
    path: Path = hand.write_log(tmp_path / "log.jsonl", hand.record_of(hand.matmul()))
    return path


def test_show_a_log(hand: ModuleType, log: Path, tmp_path: Path) -> None:
    result = run("show", log, "--script", "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    assert hand.MATMUL in result.stdout and "T.vectorized(16)" in result.stdout
    (entry,) = json.loads((tmp_path / "out.json").read_text())
    assert entry["workload"] == hand.MATMUL
    data = run("show", log, "--json", "-")
    assert json.loads(data.stdout)[0]["digest"] == entry["digest"]
    assert hand.MATMUL in data.stderr


def test_show_a_workload_and_misuse(log: Path) -> None:
    result = run("show", "relu(shape=64)", "--json", "-")
    assert result.exit_code == 0 and json.loads(result.stdout)["sketches"]
    assert run("show", "relu(shape=64)").exit_code == 0
    assert "T.block" in run("show", "relu(shape=64)", "--script").stdout
    wrong = run("show", log, "--space")
    assert wrong.exit_code == 2 and "--space takes a WORKLOAD" in wrong.stderr
    wrong = run("show", log, "--sizes", "n=1..8")
    assert wrong.exit_code == 2 and "--sizes takes a WORKLOAD" in wrong.stderr


RULE = """
def mine(func, target):
    return [("refused", lambda s: s.get_block("Z")), ("plain", lambda s: None)]
"""


def test_a_refused_schedule_is_one_line_without_a_location(tmp_path: Path) -> None:
    rule = tmp_path / "rule.py"
    rule.write_text(RULE)
    options = ["--rules", f"{rule}:mine", "--log", tmp_path / "log.jsonl", "--trials", "1", "--target", "llvm"]
    result = run("tune", "relu(shape=64)", *options, *TUNING)
    assert result.exit_code == 0 and result.output.count("is refused, 'refused'") == 1, result.output
    assert "click" not in result.output and "SketchWarning" not in result.output


def test_warnings_of_a_command_have_no_location(tmp_path: Path) -> None:
    file = tmp_path / "sums.py"
    file.write_text(SUMS)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result = run("compile", f"{file}:f", "--target", "llvm", "-o", tmp_path / "f.so")
    assert result.exit_code == 0 and "! f: block B: the axis vk is spatial" in result.stderr
    assert "ProgramWarning" not in result.stderr and ".py" not in result.stderr.replace(str(file), "")


SUMS = """
from tunesmith import script as T


@T.prim_func
def f(A: T.Buffer((4, 8), "float32"), C: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 8):
        with T.block("B"):
            vi, vk = T.axis.remap("SS", [i, k])
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk]
"""


def test_replay(hand: ModuleType, log: Path) -> None:
    result = run("replay", log, "--verify", "--json", "-")
    (row,) = json.loads(result.stdout)
    assert result.exit_code == 0 and row["ok"] and row["workload"] == hand.MATMUL
    RecordLog(log).append(hand.record_of(hand.matmul(), seconds=1e-9, trace=[["melt", {}, []]]))
    failed = run("replay", log)
    assert failed.exit_code == 1 and "melt" in failed.stdout


def test_replay_reports_bad_lines(hand: ModuleType, log: Path, tmp_path: Path) -> None:
    with log.open("a") as file:
        file.write("not json\n")
    partly = run("replay", log)
    assert partly.exit_code == 0 and "1 bad lines" in partly.stdout and hand.MATMUL in partly.stdout
    (tmp_path / "bad.jsonl").write_text('{"skatch":1}\nnot json\n')
    unreadable = run("replay", tmp_path / "bad.jsonl")
    assert unreadable.exit_code == 1 and "2 bad lines" in unreadable.stdout and "the log holds no record" in unreadable.stdout
    (tmp_path / "empty.jsonl").touch()
    empty = run("replay", tmp_path / "empty.jsonl")
    assert empty.exit_code == 0 and "the log holds no record" in empty.stdout


def test_bench(hand: ModuleType, log: Path) -> None:
    result = run("bench", hand.MATMUL, "--log", log, "--against", "openblas", "--starts", 1, "--rounds", 1, "--json", "-")
    assert result.exit_code == 0, result.stderr
    assert [row["system"] for row in json.loads(result.stdout)["rows"]] == ["tunesmith", "openblas"]
    assert "start 1 of 1" in result.stderr and "timing tunesmith, openblas" in result.stderr
    listed = run("bench", "--baselines")
    assert listed.exit_code == 0 and not listed.stderr
    assert re.search(r"^openblas +numpy [\d.]+ +numpy with OpenBLAS$", listed.stdout, re.MULTILINE)


def test_json_that_cannot_be_written_is_refused_first(hand: ModuleType, log: Path, tmp_path: Path) -> None:
    nowhere, folder = tmp_path / "none" / "x.json", tmp_path
    for out, why in ((nowhere, f"there is no folder {nowhere.parent}. Create it first"), (folder, "it is a folder")):
        result = run("bench", hand.MATMUL, "--log", log, "--against", "openblas", "--json", out)
        said = " ".join(result.stderr.split())
        assert result.exit_code == 2 and "start 1 of" not in said and f"cannot write {out}: {why}" in said


def test_json_goes_to_pipes_in_folders_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunesmith.cli.common.os.access", lambda path, mode: False)
    os.mkfifo(tmp_path / "pipe")
    refused, accepted = [run("replay", tmp_path / "none.jsonl", "--json", tmp_path / name) for name in ("file", "pipe")]
    assert "you may not write in the folder" in " ".join(refused.stderr.split()) and refused.exit_code == 2
    assert "cannot write" not in accepted.stderr and "none.jsonl" in accepted.stderr


def test_earlier_names_of_options_are_accepted_with_a_warning() -> None:
    listed = run("bench", "--peers")
    assert listed.exit_code == 0 and listed.stdout == run("bench", "--baselines").stdout
    assert listed.stderr == "! --peers is an earlier name of --baselines, which replaces it\n"
    assert "peers" not in run("bench", "--help").output


def test_tune_and_its_json(tmp_path: Path) -> None:
    log, out = tmp_path / "log.jsonl", tmp_path / "out.json"
    arguments = ["tune", "matmul(m=64,n=64,k=64)", "--target", "llvm", "--trials", 4, "--log", log, *TUNING]
    result = run(*arguments, "--json", out)
    assert result.exit_code == 0, result.output
    (task,) = json.loads(out.read_text())["tasks"]
    assert task["trials"] == 4 and task["best_us"] > 0 and task["errors"] == {}
    assert set(task["seconds"]) == {"total", "draft", "verify", "build", "measure", "train"}
    assert "4/4 trials" in result.stderr and "4/4 trials" not in result.stdout
    lines = log.read_text()
    assert run(*arguments).exit_code == 0 and log.read_text().startswith(lines)
    added = [json.loads(line) for line in log.read_text()[len(lines) :].splitlines()]
    assert {x["policy"]["kind"] for x in added if x["kind"] == "record"} <= {"interleaved"}, "only a noisy best is timed again"


def test_tune_with_rules_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def sketches(func, target):\n    return [('as it is', lambda sch: None)]\n")
    log = tmp_path / "log.jsonl"
    arguments = ["tune", "relu(shape=64)", "--target", "llvm", "--log", log, *TUNING, "--rule", f"{tmp_path}/mine.py:sketches"]
    result = run(*arguments, "--trials", 2)
    assert result.exit_code == 0 and '"as it is"' in log.read_text(), result.output
    assert run(*arguments, "--rule", "pointwise", "--trials", 3).exit_code == 0
    assert len({record.sketch for record in RecordLog(log).load().records}) > 1
    both = ["tune", "relu(shape=64)", "--target", "llvm", "--log", tmp_path / "both.jsonl", *TUNING]
    assert run(*both, "--rules", f"default,{tmp_path}/mine.py:sketches", "--trials", 12).exit_code == 0
    assert {record.sketch for record in RecordLog(tmp_path / "both.jsonl").load().records} >= {"as it is", "pointwise"}
    result = run(*both, "--rules", "default,,pointwise")
    assert result.exit_code == 2 and "--rules default,,pointwise: a name is empty. Separate names by one comma" in result.stderr
    result = run(*both, "--rules", "default,pointwise")
    assert result.exit_code == 1 and "several sketches named 'pointwise' for relu" in result.output
    result = run(*arguments, "--rule", "pointwyse")
    assert result.exit_code == 2 and "unknown search rule 'pointwyse'. Did you mean 'pointwise'" in result.stderr


def test_tune_ends_with_1_when_a_task_fails(tmp_path: Path) -> None:
    sampler = tmp_path / "broken.py"
    sampler.write_text(
        "from tunesmith.search.samplers.random_sampler import RandomSampler\nfrom tunesmith.support.errors import RunError\n"
        "class Broken(RandomSampler):\n    def ask(self, n):\n        raise RunError('out of ideas')\n"
    )
    arguments = ["--target", "llvm", "--workers", 0, "--sampler", f"{sampler}:Broken", "--log", tmp_path / "l.jsonl"]
    result = run("tune", "relu(shape=64)", *arguments)
    assert result.exit_code == 1 and "relu(shape=64): out of ideas" in result.stdout


def test_compile(hand: ModuleType, log: Path, tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    result = run("compile", hand.MATMUL, "relu(shape=8)", "--records", log, "-o", library, "--json", "-")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == {
        "functions": ["matmul", "relu"],
        "with_record": ["matmul"],
        "without_record": ["relu"],
        "bytes_sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
    }
    assert "relu (" in result.stderr and "missing" in result.stderr
    assert tunesmith.load_module(library).functions == ("matmul", "relu")
    assert ": 1 function, 1 with a record" in run("compile", hand.MATMUL, "--records", log, "-o", library).stdout.replace("\n", "")
    wrong = run("compile", hand.MATMUL, "--records", log, "-o", library, "--error-growth", "0.5")
    assert wrong.exit_code == 2 and "error_growth" in wrong.stderr and "at least 1" in wrong.stderr
    assert run("compile", hand.MATMUL, "--records", log, "-o", library, "--error-growth", "1").exit_code == 0
    strict = run("compile", "relu(shape=8)", "--records", log, "-o", library, "--strict")
    assert strict.exit_code == 2 and "1 of 1 functions" in strict.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--executor", "aot", "--name", "1 bad"), "cannot start the names of C functions"),
        (("--header", "n.h"), "--header requires a model and --executor aot"),
        (("--executor", "vm", "--header", "n.h"), "--header requires a model and --executor aot"),
        (("--name", "net"), 'requires executor="aot"'),
        (("--executor", "jit"), "there is no executor 'jit'"),
    ],
)
def test_wrong_options_of_models_are_refused_before_compiling(
    options: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "net.py"
    code.write_text(
        "from tunesmith.graph.ir.builder import GraphBuilder\nfrom tunesmith.ir.function import IRModule\n\n"
        "def net():\n    b = GraphBuilder()\n    return IRModule({'main': b.finish(b.relu(b.input('x', (2, 4))))})\n"
    )
    monkeypatch.setattr("tunesmith.driver.compile_model.offloading", None)
    result = run("compile", f"{code}:net", "-o", tmp_path / "n.so", *options)
    assert result.exit_code == 2 and message in " ".join(result.stderr.split()), result.output


def test_a_library_that_hides_a_python_file_is_refused(tmp_path: Path) -> None:
    """Python looks for extensions first, and would import the library in place of the file."""
    (tmp_path / "net.py").write_text("")
    refused = run("compile", "relu(shape=8)", "-o", tmp_path / "net.so")
    assert refused.exit_code == 2 and "write libnet.so" in " ".join(refused.output.split()) and not (tmp_path / "net.so").exists()
    assert run("compile", "relu(shape=8)", "-o", tmp_path / "libnet.so").exit_code == 0


def test_compile_with_checked_indices(tmp_path: Path) -> None:
    code = tmp_path / "pick.py"
    code.write_text(
        "from tunesmith import script as T\n\n@T.prim_func\n"
        'def pick(I: T.Buffer((2,), "int64"), A: T.Buffer((4,), "float32"), C: T.Buffer((2,), "float32")):\n'
        "    for i in range(2):\n        with T.block('C'):\n            v = T.axis.spatial(2, i)\n"
        "            C[v] = T.lookup(I[v], 4, lambda at: A[at])\n"
    )
    result = run("compile", f"{code}:pick", "--bounds-check", "-o", tmp_path / "lib.so")
    assert result.exit_code == 0, result.stderr
    given = np.array([1, 9], np.int64), np.arange(4, dtype=np.float32), np.zeros(2, np.float32)
    with pytest.raises(tunesmith.TunesmithError, match="9"):
        tunesmith.load_module(tmp_path / "lib.so")["pick"](*given)


def test_doctor(tmp_path: Path) -> None:
    result = run("doctor", "--quick", "--json", "-")
    assert result.exit_code == 0 and json.loads(result.stdout)["cpu"]["num_cores"] >= 1
    assert "Machine" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["tune", "rulu(shape=3)"], 2, "Did you mean 'relu'"),
        (["tune"], 2, "Missing argument"),
        (["tune", "relu(shape=3)", "--trials", "0"], 2, "trials=0"),
        (["tune", "relu(shape=3)", "--workers", "rya", "--target", "llvm"], 2, 'workers is a number of processes, "ray" or "ray:N"'),
        (["tune", "relu(shape=3)", "--model", "xbg"], 2, "Did you mean 'xgb'"),
        (["bench", "relu(shape=3)", "--log", "none.jsonl"], 2, "none.jsonl"),
        (["replay", "none.jsonl"], 2, "none.jsonl"),
        (["show", "none.jsonl"], 2, "none.jsonl"),
        (["show", "relu"], 2, "Usage: relu(shape"),
        (["show", "none.onnx"], 2, "none.onnx"),
        (["show", "net.pt2"], 2, "from_torch(torch.export.load('net.pt2'))"),
        (["compile", "relu(shape=3)", "-o", "nowhere/lib.so"], 1, "nowhere does not exist"),
        (["compile", "relu(shape=3)", "-o", "lib.so", "--log", "log.jsonl"], 2, "No such option --log. Did you mean --records?"),
        (["tune", "relu(shape=3)", "--records", "log.jsonl"], 2, "No such option --records. Did you mean --log?"),
        (["show", "log.jsonl", "--log", "log.jsonl"], 2, "No such option"),
        (["fly"], 2, "No such command"),
    ],
)
def test_mistakes_give_a_message_and_a_status(
    arguments: list[str], status: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == status
    assert message in result.stderr and "Traceback" not in result.stderr and result.stdout == ""


def test_an_output_that_cannot_be_written_is_misuse(log: Path, tmp_path: Path) -> None:
    result = run("show", log, "--json", tmp_path / "absent" / "out.json")
    assert result.exit_code == 2 and "cannot write" in result.stderr


def test_an_internal_error_is_shown_with_its_traceback(monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    from tunesmith.support.errors import InternalError

    def broken(*arguments: Any, **settings: Any) -> None:
        raise InternalError("impossible")

    monkeypatch.setattr("tunesmith.driver.show.open_records", broken)
    result = run("show", log)
    assert result.exit_code == 1 and "impossible" in result.stderr and "Please report it" in result.stderr


def test_notes_of_an_error_are_shown(monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    error = UserError("no such package")
    error.add_note("while loading the device 'lab'")

    def refused(*arguments: Any, **settings: Any) -> None:
        raise error

    monkeypatch.setattr("tunesmith.driver.show.open_records", refused)
    result = run("show", log)
    assert result.exit_code == 2 and "error: no such package\nwhile loading the device 'lab'" in result.stderr


def test_the_installed_command(hand: ModuleType, log: Path) -> None:
    command = [sys.executable, "-c", "from tunesmith.cli.main import main; main()", "show", str(log), "--trace"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert hand.MATMUL in done.stdout and "sch.vectorize" in done.stdout and "\x1b" not in done.stdout and done.stderr == ""
    version = subprocess.run([*command[:3], "--version"], capture_output=True, text=True, check=True)
    assert tunesmith.__version__ in version.stdout


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_standard_output_that_cannot_encode(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "mine.py").write_text(
        "from tunesmith import te\ndef main():\n    x = te.placeholder((4,), name='x')\n"
        "    return [x, te.compute((4,), lambda i: x[i] + 1.0, 'y\u00e9')]\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "tunesmith", "show", "--script", "mine.py:main"]
    settings = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, env=settings, cwd=tmp_path, check=False)
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr.decode()
    assert "y\u00e9".encode(encoding, "replace") in done.stdout


def test_standard_output_on_a_full_disk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Full(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, _: object) -> int:
            if full:
                raise OSError(28, "No space left on device")
            return 1 << 20

    full, kept = True, []
    for arguments in (["show", "relu(shape=4)"], ["--version"], ["bench", "--baselines"]):
        kept.append(io.TextIOWrapper(io.BufferedWriter(Full()), "utf-8"))
        monkeypatch.setattr(sys, "stdout", kept[-1])
        with pytest.raises(SystemExit) as caught:
            main(arguments, prog_name="tunesmith")
        assert caught.value.code == 1
        said = capsys.readouterr().err
        assert said.startswith("error: cannot write the result: [Errno 28] No space left on device") and said.count("\n") == 1
    full = False  # let their buffers be flushed at exit


def test_a_python_file_is_not_a_log(tmp_path: Path) -> None:
    file = tmp_path / "ops.py"
    file.write_text("def f(): ...\n")
    new = tmp_path / "new.jsonl"
    for words in (
        ("show", file),
        ("replay", file),
        ("log", "verify", file),
        ("log", "stats", file),
        ("log", "merge", file, "-o", new),
        ("log", "prune", file, "-o", new),
        ("compile", "relu(shape=4)", "--records", file, "-o", tmp_path / "x.so"),
        ("tune", "relu(shape=4)", "--log", file),
    ):
        result = run(*words)
        assert result.exit_code == 2 and "is a Python file, not a log" in result.stderr and "ops.py:NAME" in result.stderr, words
    assert file.read_text() == "def f(): ...\n" and not new.exists()
    result = run("tune", file, "--log", new)
    assert result.exit_code == 2 and "ops.py:NAME" in result.stderr


def test_an_interrupt_while_the_command_line_is_imported() -> None:
    code = """
import sys
class Interrupting:
    def find_spec(self, name, *rest):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from tunesmith.__main__ import run
run()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "error: interrupted\n")


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "tunesmith", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"tunesmith, version {tunesmith.__version__}\n"
