"""Files of script text as workloads: what is one, the names in it, and that it is not run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tunesmith
from tunesmith.cli.main import main
from tunesmith.driver.opt import opt
from tunesmith.driver.script_file import is_script, load_script
from tunesmith.driver.workloads import find_module, find_subject, find_subjects
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.support.errors import ScriptError, UserError

FUNCTION = """@T.prim_func
def {name}(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    T.func_attr({{"global_symbol": "{name}", "tir.noalias": T.bool(True)}})
    for i in range(8):
        with T.sblock("B"):
            v = T.axis.spatial(8, i)
            T.reads(A[v])
            T.writes(B[v])
            B[v] = A[v] * T.float32({factor})
"""
DOUBLE, TRIPLE = FUNCTION.format(name="double", factor=2.0), FUNCTION.format(name="triple", factor=3.0)
COMMENTS = "# from tvm.script import ir as I\n# from tvm.script import tir as T\n\n"
MODULE = f"{COMMENTS}@I.ir_module\nclass Module:\n" + "".join(f"    {line}\n" for line in (DOUBLE + "\n" + TRIPLE).splitlines())


def file_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "dump.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MODULE, True),
        (COMMENTS + DOUBLE, True),
        (f"{COMMENTS}{DOUBLE}\n\n{TRIPLE}", True),
        (f"import tvm\nfrom tvm.script import tir as T\n\n{DOUBLE}", True),
        (f"from __future__ import annotations\n{DOUBLE}", True),
        (f"from tunesmith import script as T\n{DOUBLE}", False),
        (f"{DOUBLE}\nx = 3\n", False),
        (f"import os\n{DOUBLE}", False),
        ("def plain():\n    return 3\n", False),
        ("@cache\ndef plain():\n    return 3\n", False),
        ("", False),
        ("def broken(:\n", False),
    ],
)
def test_what_is_script_text(text: str, expected: bool) -> None:
    assert is_script(text) == expected


def test_names_in_a_script(tmp_path: Path) -> None:
    file = file_of(tmp_path, MODULE)
    f, module = load_script(f"{file}:triple"), load_script(f"{file}:Module")
    assert isinstance(f, PrimFunc) and f.name == "triple"
    assert isinstance(module, IRModule) and sorted(module) == ["double", "triple"]
    assert [s.name for s in find_subjects(f"{file}:Module")] == ["Module/double", "Module/triple"]
    assert find_subject(f"{file}:triple").flops == 8
    assert sorted(find_module(f"{file}:Module")) == ["double", "triple"] and sorted(find_module(f"{file}:triple")) == ["triple"]
    with pytest.raises(UserError, match=r"the script .*dump.py has no 'tripel', but double, triple, Module. Did you mean 'triple'\?"):
        find_subject(f"{file}:tripel")
    functions = file_of(tmp_path, f"from tvm.script import tir as T\n\n{DOUBLE}\n{TRIPLE}")
    assert find_subject(f"{functions}:double").func.name == "double"
    assert opt(f"{functions}:double", "simplify").script == opt(alone(tmp_path), "simplify").script


def alone(tmp_path: Path) -> Path:
    path = tmp_path / "double.py"
    path.write_text(DOUBLE)
    return path


def test_a_script_is_not_run(tmp_path: Path) -> None:
    text = DOUBLE.replace("    for i", "    raise SystemExit(3)\n    for i").replace(
        '(8,), "float32"))', "(print('run') or 8,), \"float32\"))"
    )
    with pytest.raises(ScriptError, match=r"dump.py:2"):
        find_subject(f"{file_of(tmp_path, text)}:double")
    with pytest.raises(UserError, match="there is no file"):
        find_subject(f"{tmp_path / 'missing.py'}:double")


def test_the_command_line_takes_files_of_scripts(tmp_path: Path) -> None:
    file, log, library = file_of(tmp_path, MODULE), tmp_path / "log.jsonl", tmp_path / "lib.so"
    arguments = ["tune", f"{file}:double", "--trials", "1", "--batch", "1", "--sampler", "random", "--workers", "0", "--log", str(log)]
    for each in (arguments, ["show", f"{file}:double"], ["compile", f"{file}:Module", "-o", str(library)]):
        done = CliRunner().invoke(main, each)
        assert done.exit_code == 0, done.output
    assert json.loads(log.read_text().splitlines()[-1])
    out = np.zeros(8, np.float32)
    tunesmith.load_module(library)["triple"](np.arange(8, dtype=np.float32), out)
    np.testing.assert_array_equal(out, 3 * np.arange(8))
