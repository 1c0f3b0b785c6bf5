from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from tunesmith.codegen.llvm import link
from tunesmith.codegen.llvm.export import export_library
from tunesmith.codegen.llvm.host_entry import emit_entry
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.support.errors import BuildError

THREADED = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
define internal void @body(ptr %counter) {
  %old = atomicrmw add ptr %counter, i64 1 seq_cst
  ret void
}
define void @count(ptr noalias %counter) {
  call void @GOMP_parallel(ptr @body, ptr %counter, i32 3, i32 0)
  ret void
}
"""
"""Add the number of threads of a parallel region to the argument."""

PARAMS = [ParamSpec("n", "int64", (1,), written=True)]

USER = """
import sys
sys.modules["torch"] = None  # TVM-FFI would import it, which takes seconds
import numpy, tvm_ffi
f = tvm_ffi.load_module(sys.argv[1])
n = numpy.zeros(1, "int64")
for _ in range(20):
    f.count(n)
assert n[0] == 60, n
try:
    f.count(numpy.zeros(2, "int64"))
except ValueError as error:
    print(error)
assert not [name for name in sys.modules if name.startswith("tunesmith")]
"""


def compile_text(text: str, reloc: str = "pic") -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=1, reloc=reloc, codemodel="small")
    return bytes(machine.emit_object(llvm.parse_assembly(text)))


@pytest.fixture(scope="module")
def threaded() -> bytes:
    return compile_text(THREADED + emit_entry("count", "count", PARAMS))


def use(library: Path) -> str:
    """Output of a process with TVM-FFI and without tunesmith, with an empty environment; checks its exit status."""
    folders = f"import sys; sys.path.extend({[p for p in sys.path if p]!r})"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"{folders}\n{USER}", str(library)], env={}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("linker", ["ld", "cc", "ziglang"])
def test_library_runs_without_tunesmith(tmp_path: Path, threaded: bytes, linker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = link.linkers(platform.machine())
    if linker not in found:
        pytest.skip(f"{linker} is not installed")
    monkeypatch.setattr(link, "linkers", lambda machine: {linker: found[linker]})
    library = export_library(tmp_path / "count.so", [threaded])
    for _ in range(3):
        assert use(library) == "count: argument 0 (n): expected int64[1], got shape [2]\n"


def test_equal_objects_give_equal_bytes(tmp_path: Path, threaded: bytes) -> None:
    (tmp_path / "elsewhere").mkdir()
    first = export_library(tmp_path / "a.so", [threaded]).read_bytes()
    assert export_library(tmp_path / "elsewhere" / "b.so", [threaded]).read_bytes() == first
    assert b"libgomp.so.1" in first


def test_serial_code_needs_no_openmp(tmp_path: Path) -> None:
    text = "define void @k(ptr %a) {\n  store i64 5, ptr %a\n  ret void\n}\n" + emit_entry("k", "k", PARAMS)
    assert b"libgomp" not in export_library(tmp_path / "k.so", [compile_text(text)]).read_bytes()


def test_objects_are_joined_and_the_file_is_replaced(tmp_path: Path, threaded: bytes) -> None:
    other = compile_text("define void @k(ptr %a) {\n  store i64 5, ptr %a\n  ret void\n}\n" + emit_entry("five", "k", PARAMS))
    library = tmp_path / "both.so"
    library.write_text("what was there before")
    held = os.open(library, os.O_RDONLY)
    try:
        assert export_library(library, [threaded, other]) == library
        assert os.read(held, 99) == b"what was there before"
    finally:
        os.close(held)
    data = library.read_bytes()
    assert b"__tvm_ffi_count" in data and b"__tvm_ffi_five" in data
    assert [p.name for p in tmp_path.iterdir()] == ["both.so"]


def test_every_attempt_is_reported(tmp_path: Path, threaded: bytes) -> None:
    with pytest.raises(BuildError) as caught:
        export_library(tmp_path / "twice.so", [threaded, threaded])
    text = str(caught.value)
    assert text.startswith(f"cannot link {tmp_path / 'twice.so'}. Tried:")
    for start in link.linkers(platform.machine()).values():
        assert " ".join(start) + " -shared" in text
    assert "multiple definition" in text or "duplicate symbol" in text
    assert not list(tmp_path.iterdir())


def test_no_linker(tmp_path: Path, threaded: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "linkers", lambda machine: {})
    with pytest.raises(BuildError, match=r"neither `ld` nor `cc` is on PATH(.|\n)*pip install 'tunesmith\[link\]'"):
        export_library(tmp_path / "x.so", [threaded])


def test_code_for_fixed_addresses_is_refused(tmp_path: Path) -> None:
    data = compile_text(THREADED + emit_entry("count", "count", PARAMS), reloc="static")
    with pytest.raises(BuildError, match=r'object 0 is not position-independent. Compile it with reloc="pic"'):
        export_library(tmp_path / "x.so", [data])


def test_invalid_inputs_of_the_linker(tmp_path: Path, threaded: bytes) -> None:
    with pytest.raises(BuildError, match="there are no objects to link"):
        export_library(tmp_path / "x.so", [])
    with pytest.raises(BuildError, match="cannot export: object 1 is not a 64-bit little-endian ELF file"):
        export_library(tmp_path / "x.so", [threaded, b"rubbish"])
    with pytest.raises(BuildError, match="the folder .*missing does not exist"):
        export_library(tmp_path / "missing" / "x.so", [threaded])


def test_only_regular_files_are_replaced(tmp_path: Path, threaded: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.so").write_text("old")
    (tmp_path / "real" / "a.so").chmod(0o750)
    (tmp_path / "link.so").symlink_to("real/a.so")
    assert export_library(tmp_path / "link.so", [threaded]) == tmp_path / "link.so"
    assert (tmp_path / "link.so").is_symlink() and (tmp_path / "real" / "a.so").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "real" / "a.so").read_bytes().startswith(b"\x7fELF")
    os.mkfifo(tmp_path / "pipe")
    for path, why in (
        (tmp_path / "real", "real': it is a folder"),
        (tmp_path / "pipe", "pipe': it exists, is no regular file"),
        ("a\0", "null"),
        ("\ud800", "no file can have this name"),
        (None, "a path is a text or a Path, not None"),
        (b"a.so", "a path is a text or a Path, not b'a.so'"),
    ):
        with pytest.raises(BuildError, match=why):
            export_library(path, [threaded])  # type: ignore[arg-type]
    assert (tmp_path / "pipe").is_fifo()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(BuildError, match=r"cannot export .*b.so: No space left on device. Check permissions and free space"):
        export_library(tmp_path / "b.so", [threaded])
    assert sorted(os.listdir(tmp_path)) == ["link.so", "pipe", "real"]
