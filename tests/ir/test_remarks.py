"""Test the diagnosis of programs that are probably mistakes: undefined programs are rejected, unusual ones get remarks."""

from __future__ import annotations

import numpy as np
import pytest

import tunesmith
from tunesmith import te
from tunesmith.datasets.suites import SUITES
from tunesmith.driver.tune_options import grouped
from tunesmith.ir.remarks import ProgramWarning, checked, refuse_uninitialised, remarks
from tunesmith.ir.script.parser import parse
from tunesmith.ir.verify import verify
from tunesmith.ops.workload import workload
from tunesmith.support.errors import ScriptError


def matmul(kinds: str, init: str, own: bool = False, value: str = "C[vi] + A[vi, vk]", after: str = "") -> tunesmith.Schedule:
    """Row sums in many variants."""
    lines = ["@T.prim_func", 'def f(A: T.Buffer((4, 8), "float32"), D: T.Buffer((4,), "float32")):']
    buffer = "C" if own else "D"
    lines += ['    C = T.alloc_buffer((4,), "float32")'] if own else []
    lines += ["    for i, k in T.grid(4, 8):", '        with T.block("B"):', f'            vi, vk = T.axis.remap("{kinds}", [i, k])']
    lines += ["            with T.init():", f"                C[vi] = {init}"] if init else []
    lines += [f"            C[vi] = {value}"]
    if own:
        lines += ["    for i in T.serial(4):", '        with T.block("E"):']
        lines += ["            vi = T.axis.spatial(4, i)", "            D[vi] = C[vi]"]
    text = "\n".join(lines)
    return tunesmith.Schedule(parse(text if own else text.replace("C[", f"{buffer}[")))


def labels(schedule: tunesmith.Schedule) -> list[str]:
    return [r.label for r in remarks(schedule.func)]


def test_a_buffer_that_is_only_ever_updated_is_refused() -> None:
    func = matmul("SR", "", own=True).func
    message = r"the block B updates C\[vi\] .*nothing initialises C(.|\n)*with T.init\(\):\n        C\[vi\] = 0.0"
    for refuse in (verify, refuse_uninitialised, tunesmith.build, tunesmith.compile):
        with pytest.raises(ScriptError, match=message):
            refuse(func)
    with pytest.raises(ScriptError, match="nothing initialises C"):
        tunesmith.tune(func, **grouped(target="llvm", trials=1, log=None, progress=False))
    refuse_uninitialised(matmul("SR", "0.0", own=True).func)
    # Initialised explicitly: the load is conditional.
    refuse_uninitialised(matmul("SR", "", own=True, value="T.select(vk == 0, T.float32(0), C[vi]) + A[vi, vk]").func)


def test_a_reduction_without_init_accumulates_into_the_argument() -> None:
    schedule = matmul("SR", "")
    assert labels(schedule) == ["accumulates-into-argument"]
    module = tunesmith.build(schedule, "llvm")
    assert isinstance(module, tunesmith.CompiledModule)
    (remark,) = module.remarks
    assert (
        remark.startswith("f: block B: it accumulates into the previous contents of the argument D")
        and "with T.init(): D[vi] = 0.0" in remark
    )
    a, d = np.ones((4, 8), np.float32), np.full(4, 5, np.float32)
    module(a, d)
    assert d.tolist() == [13.0] * 4, "which is legal"
    assert labels(matmul("SR", "0.0")) == []
    schedule = matmul("SR", "0.0")
    block = schedule.get_block("B")
    schedule.decompose_reduction(block, schedule.get_loops(block)[1])
    assert labels(schedule) == [], "the init is a block of its own"


def test_a_spatial_axis_that_reduces_is_named() -> None:
    schedule = matmul("SS", "0.0")
    with pytest.warns(ProgramWarning, match='the axis vk is spatial .* so the init runs before each .* write "SR" instead of "SS"'):
        (remark,) = checked(schedule.func)
    assert remark.label == "init-repeated"
    with pytest.warns(ProgramWarning, match="init-repeated"):
        tunesmith.build(schedule, "llvm")
    assert labels(matmul("SS", "")) == ["accumulates-over-spatial"]
    assert labels(matmul("SS", "", value="A[vi, vk]")) == ["overwrites"]
    assert labels(matmul("SS", "", value="T.float32(1)")) == [], "each iteration writes the same"


def test_scatters_have_no_remarks() -> None:
    """Their elements depend on data, and the author of a `te.scatter` does not write its axes."""
    x = te.placeholder((4, 8), "uint8", name="x")
    y = te.scatter(lambda b: 0, (4, 8), lambda i, j: (te.cast("int64", x[i, j]),), lambda old, i, j: old + 1, shape=256, dtype="int32")
    assert remarks(te.create_prim_func([x, y])) == []


def test_show_reports_remarks(capsys: pytest.CaptureFixture[str]) -> None:
    from tunesmith.driver.show import show_workload

    shown = show_workload(matmul("SR", "").func, target="llvm -mcpu=znver4 -num-cores=2", space=False)
    assert "! block B: it accumulates into the previous contents of the argument D" in str(shown) and shown.data["remarks"]


def test_operators_have_no_remarks() -> None:
    for text in SUITES.get("operators"):
        assert checked(workload(text).func) == [], text


def test_the_warning_names_the_users_line() -> None:
    func = matmul("SS", "0.0").func
    for compiler in (tunesmith.build, tunesmith.compile):
        with pytest.warns(ProgramWarning) as caught:
            compiler(func)
        assert [w.filename for w in caught] == [__file__]


@pytest.mark.parametrize("where", ["loop", "value"])
def test_a_size_that_no_parameter_determines_is_refused(where: str) -> None:
    extent, value = ("n", "A[v]") if where == "loop" else ("4", 'A[v] + T.cast(n, "float32")')
    func = parse(f"""@T.prim_func
def f(A: T.Buffer((4,), "float32"), C: T.Buffer((4,), "float32")):
    n = T.int64()
    for i in T.serial({extent}):
        with T.block("C"):
            v = T.axis.spatial({extent}, i)
            C[v] = {value}
""")
    message = "no argument determines the size n: it is neither a parameter .* `n: T.int64`, or write a number\nin function f"
    for refuse in (checked, tunesmith.build, tunesmith.compile, lambda f: tunesmith.build(tunesmith.Schedule(f))):
        with pytest.raises(ScriptError, match=message):
            refuse(func)
    with pytest.raises(ScriptError, match=message):
        tunesmith.tune(func, **grouped(target="llvm", trials=1, log=None, progress=False))


def test_sizes_of_parameters_are_determined() -> None:
    head = '@T.prim_func\ndef f(A: T.Buffer((n,), "float32"), n: T.int64):\n'
    checked(parse(head + "    for i in T.serial(n):\n        A[i] = T.float32(0.0)\n"))
