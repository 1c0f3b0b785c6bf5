"""Forms of workloads, and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tunesmith
from tunesmith import te
from tunesmith.driver.workloads import POSITIVE, find_module, find_subject, find_subjects, is_workload_text, subject_of_text
from tunesmith.ir import structural
from tunesmith.ir.function import IRModule
from tunesmith.ir.target.target import Target
from tunesmith.ops.workload import workload
from tunesmith.support.errors import UserError

FILE = """
from tunesmith import te
from tunesmith.ops.workload import workload as named

def tensors():
    a = te.placeholder((8,), name="A")
    return [a, te.compute((8,), lambda i: a[i] + 1.0, name="B")]

program = named("relu(shape=4)").func

def operator():
    return named("relu(shape=0004)")

number = 3
nothing = []
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def test_operators_have_their_canonical_name() -> None:
    (subject,) = find_subjects("matmul( k=3, m=1, n=2, ta=0 )")
    assert subject.name == "matmul(m=1,n=2,k=3)"
    assert subject.flops == 12
    task = subject.task(Target("llvm"))
    assert task.name == subject.name and task.flops == 12 and task.reference is not None
    assert find_subject("dense(m=1,n=2,k=3)").func.constants == ("W", "bias")
    assert find_subject("log(shape=4)").ranges == {"X": POSITIVE}
    assert find_subject("relu(shape=4)").ranges == {}
    assert find_subject("gather(m=7,n=3,rows=5)").ranges == {"index": (0, 7)}


def test_programs_in_files(file: Path) -> None:
    tensors = find_subject(f"{file}:tensors")
    assert tensors.name == f"{file}:tensors" and tensors.func.name == "tensors" and tensors.operator is None and tensors.flops == 8
    assert tensors.task(Target("llvm")).flops == 8
    assert structural.equal(find_subject(f"{file}:program").func, workload("relu(shape=4)").func)
    assert find_subject(f"{file}:operator").name == "relu(shape=4)"


def test_several_at_once() -> None:
    a = te.placeholder((8,), name="A")
    mixed = [
        "relu(shape=4)",
        workload("relu(shape=4)"),
        workload("exp(shape=4)").func,
        [a, te.compute((8,), lambda i: a[i] + 1.0, name="B")],
    ]
    assert [s.name for s in find_subjects(mixed)] == ["relu(shape=4)", "exp", "main"]
    module = IRModule({"x": workload("relu(shape=4)").func, "y": workload("exp(shape=4)").func})
    assert [s.name for s in find_subjects(module)] == ["x", "y"]
    with pytest.raises(UserError, match="the module has x, y"):
        find_subject(module)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no workload was given"),
        (None, "got NoneType"),
        (np.zeros(3), "a workload is a text"),
        ("rulu(shape=4)", "Did you mean 'relu'"),
        ("relu", "is not a workload. Spell it NAME"),
        ("net.pt2", r"(?s)net.pt2 is a program of torch.export, .*from_torch\(torch.export.load\('net.pt2'\)\)\n.*pass net.py:model"),
        ("absent.py:f", "there is no file absent.py"),
        ([workload("relu(shape=4)").func, workload("relu(shape=5)").func], "two different programs are named 'relu'"),
    ],
)
def test_refusals(given: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_subjects(given)  # type: ignore[arg-type]


MODEL = """
import numpy as np
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Var
from tunesmith.ops.workload import workload

def model(rows=4):
    b = GraphBuilder("main")
    x, w = b.input("x", (rows, 8)), b.constant(np.ones((8, 8), np.float32), "w")
    y = b.relu(b.matmul(x, w))
    return IRModule({"main": b.finish(b.softmax(b.relu(b.matmul(y, w))))})

made = model()

def small():
    b = GraphBuilder("main")
    return IRModule({"main": b.finish(b.tanh(b.input("x", (4,))))})

def sized():
    return model(Var("n"))

def programs():
    return IRModule([workload("relu(shape=4)").func, workload("exp(shape=4)").func])
"""


def test_models_become_their_tasks(tmp_path: Path) -> None:
    """Each task once, with its number of calls; from files with the model's name as prefix."""
    file = tmp_path / "models.py"
    file.write_text(MODEL)
    for name in ("model", "made"):
        text = f"{file}:{name}"
        module = find_module(text)
        assert list(module) == ["main"] and find_module([text])["main"] is not None
        found = find_subjects([text, "relu(shape=4)"])
        assert [(s.name, s.weight) for s in found] == [
            (f"{name}/fused_matmul_relu", 2.0),
            (f"{name}/op_softmax", 1.0),
            ("relu(shape=4)", 1.0),
        ]
        assert found[0].func.constants == ("b",) and found[0].operator is None and found[0].task(Target("llvm")).weight == 2.0
    assert [s.name for s in find_subjects(module)] == ["fused_matmul_relu", "op_softmax"]
    for one in (find_subject, subject_of_text):
        assert one(f"{file}:small").name == "small/op_tanh"
        with pytest.raises(UserError, match="expected one function, but .*models.py:model.* has .*fused_matmul_relu.*, .*op_softmax"):
            one(f"{file}:model")
        assert one(f"{file}:model/op_softmax").name == "model/op_softmax" and one(f"{file}:programs/exp").func.name == "exp"
    assert [s.name for s in find_subjects(f"{file}:programs")] == ["programs/relu", "programs/exp"]
    assert list(find_module(f"{file}:model/op_softmax")) == ["op_softmax"]
    with pytest.raises(
        UserError, match=r"models.py:model has no function 'model/x'. Its functions: model/fused_matmul_relu, model/op_softmax"
    ):
        find_subjects(f"{file}:model/x")


def test_modules_to_compile(tmp_path: Path, file: Path) -> None:
    path = tmp_path / "models.py"
    path.write_text(MODEL)
    for given in ("relu(shape=4)", ["relu(shape=4)", "softmax(m=4,n=8)"], f"{path}:programs", f"{file}:program", f"{file}:operator"):
        module = find_module(given)
        assert "main" not in module and list(module) == [s.func.name for s in find_subjects(given)]
    for wrong in (None, 3, f"{file}:number"):
        with pytest.raises(UserError):
            find_module(wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"the model has the dynamic size n: pass the sizes to tune it for, as in sizes='n=1..128'"):
        find_subjects(f"{path}:sized")
    with pytest.raises(UserError, match="holds no 'absent'"):
        find_module(f"{path}:absent")


def test_refusals_of_files(file: Path) -> None:
    with pytest.raises(UserError, match="holds no 'absent'"):
        find_subject(f"{file}:absent")
    with pytest.raises(UserError, match="is an int. It must be a PrimFunc"):
        find_subject(f"{file}:number")
    with pytest.raises(UserError, match="is an empty list. It must be a PrimFunc"):
        find_subject(f"{file}:nothing")
    file.write_text("1 / 0")
    with pytest.raises(UserError, match="failed with ZeroDivisionError"):
        find_subject(f"{file}:program")


ARGUMENTS = """
def sized(m, *, n, k=3): pass

class Made:
    def __init__(self, size): pass

builtin = len
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sized", "m, n of sized have no default. Give each one, or name a function without arguments that calls sized"),
        ("Made", "size of Made has no default. Give it one"),
        ("builtin", "obj of builtin has no default"),
    ],
)
def test_functions_with_required_arguments_are_refused(tmp_path: Path, name: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(ARGUMENTS)
    for find in (find_module, find_subjects, subject_of_text):
        with pytest.raises(UserError, match=f"mine.py:{name}' is called without arguments, but {message}"):
            find(f"{path}:{name}")


def test_a_function_with_dynamic_shapes_needs_sizes() -> None:
    n = te.var("n")
    x = te.placeholder((n,), name="X")
    doubled = te.create_prim_func([x, te.compute((n,), lambda i: x[i] * 2.0, "Y")], "doubled")
    (subject,) = find_subjects(doubled)
    with pytest.raises(UserError, match=r"doubled has dynamic shapes: pass the sizes to tune it for, as in sizes='n=1..128'"):
        subject.task(Target("llvm"))
    assert list(find_module(doubled)) == ["doubled"]


@pytest.mark.parametrize("raised", ["ValueError('odd')", "SystemExit(3)", "NotImplementedError()"])
def test_exceptions_of_a_function_in_a_file(raised: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"def f():\n    raise {raised}\n", encoding="utf-8")
    with pytest.raises(UserError, match=rf"mine\.py:f raised {raised.partition('(')[0]}: .* at .*mine\.py:2 in f"):
        find_subjects(f"{file}:f")


def test_onnx_files_are_models(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "small", values[:1], values[1:])
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    assert find_module(str(path))["main"].result_names == ("y",)
    assert [s.name for s in find_subjects(str(path))] == ["net/op_relu"]
    assert [s.name for s in find_subjects(f"{path}/op_relu")] == ["net/op_relu"]
    assert find_module(f"{path}/op_relu")["op_relu"].name == "op_relu"
    with pytest.raises(UserError, match=r"net.onnx has no function 'net/x'. Its functions: net/op_relu"):
        find_subjects(f"{path}/x")
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Softmax", ["h"], ["y"])]
    onnx.save(helper.make_model(helper.make_graph(nodes, "two", values[:1], values[1:]), opset_imports=[helper.make_opsetid("", 17)]), path)
    with pytest.raises(UserError, match=r"has net/.*Name one, as in .*net.onnx/op_relu"):
        find_subject(str(path))
    upper = path.rename(tmp_path / "NET.ONNX")
    assert [s.name for s in find_subjects(f"{upper}/op_relu")] == ["NET/op_relu"] and find_module(str(upper))["main"].result_names == ("y",)
    with pytest.raises(UserError, match="absent.onnx"):
        find_module(str(tmp_path / "absent.onnx"))


@pytest.mark.parametrize("text", ["relu(shape=4)", "relu", "suite:resnet18", "a.py:f", "a.onnx", "a.onnx/f", "a.pt2", "a.ONNX", "a.Onnx/f"])
def test_texts_that_name_no_log(text: str) -> None:
    assert is_workload_text(text)
    assert not is_workload_text("log.jsonl") and not is_workload_text("onnx/log")


def test_a_log_may_have_the_name_of_an_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("relu").touch()
    assert not is_workload_text("relu")


def test_torch_modules_are_imported_first(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "net.py"
    path.write_text("import torch\ndef make():\n    return torch.nn.ReLU()\n")
    with pytest.raises(UserError, match=r"net.py:make.* is .*ReLU.*\. Import a torch model first: tunesmith.from_torch"):
        find_subjects(f"{path}:make")


def test_from_torch_takes_no_path() -> None:
    pytest.importorskip("torch")
    with pytest.raises(UserError, match=r"load the file first, from_torch\(torch.export.load\('net.pt2'\)\)"):
        tunesmith.from_torch("net.pt2")
