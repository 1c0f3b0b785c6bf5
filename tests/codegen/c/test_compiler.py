"""Test the C compiler: its discovery, its flags for a target, and its errors."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tunesmith.codegen.c import compiler
from tunesmith.codegen.c.compiler import CCompiler, NoCompilerError, compile_c, compiler_for, find_compiler, processor_flags, target_flags
from tunesmith.ir.target.architectures import architecture
from tunesmith.ir.target.target import Target
from tunesmith.runtime.elf_symbols import read_symbols
from tunesmith.support.errors import BuildError

X86 = Target("c -mcpu=x86-64-v3 -num-cores=2")
ARM = Target("c -mcpu=neoverse-n1 -mtriple=aarch64-linux-gnu -num-cores=2")
RISCV = Target("c -mcpu=spacemit-x60 -mtriple=riscv64-linux-gnu -num-cores=2")
GCC, CLANG = CCompiler(("gcc",), "gcc"), CCompiler(("clang",), "clang")
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture(autouse=True)
def no_memory_of_compilers() -> Iterator[None]:
    """Find the compiler again in each test."""
    compiler._found.cache_clear()
    yield
    compiler._found.cache_clear()


def program(folder: Path, name: str, text: str) -> Path:
    """An executable script."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_variable_cc_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = program(tmp_path, "mine", "echo '#define __GNUC__ 13'")
    monkeypatch.setenv("CC", f"{path} -pipe")
    assert find_compiler() == CCompiler((str(path), "-pipe"), "gcc")
    program(tmp_path, "mine", "echo '#define __GNUC__ 4'; echo '#define __clang__ 1'; echo '#define __clang_major__ 17'")
    compiler._found.cache_clear()
    assert find_compiler().name == "clang"


def test_the_path_is_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path, "clang", "echo '#define __clang__ 1'; echo '#define __clang_major__ 17'")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_compiler() == CCompiler((str(tmp_path / "clang"),), "clang")
    program(tmp_path, "cc", "echo '#define __GNUC__ 12'")
    compiler._found.cache_clear()
    assert find_compiler() == CCompiler((str(tmp_path / "cc"),), "gcc")


def test_zig_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = program(tmp_path, "zig", "echo '#define __clang__ 1'; echo '#define __clang_major__ 20'")
    monkeypatch.setenv("CC", f"{path} cc")
    assert find_compiler() == CCompiler((str(path), "cc"), "zig")


def test_zig_is_the_last_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "ziglang" else None)
    assert find_compiler().command[1:] == ("-m", "ziglang", "cc")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    compiler._found.cache_clear()
    with pytest.raises(BuildError, match=r"no C compiler found: .* Install one:  apt install gcc .* or  pip install 'tunesmith\[link\]'"):
        find_compiler()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo '#define __GNUC__ 9'", "is GCC 9; the vector extensions need version 12"),
        ("echo '#define __clang__ 1'; echo '#define __clang_major__ 6'", "is Clang 6; the vector extensions need version 12"),
        ("echo '#define __TINYC__ 927'", "is neither GCC nor Clang; the vector extensions need"),
        ("exit 1", "is neither GCC nor Clang"),
    ],
)
def test_unsuitable_compilers_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, message: str) -> None:
    monkeypatch.setenv("CC", str(program(tmp_path, "cc", text)))
    with pytest.raises(BuildError, match=message):
        find_compiler()


def test_a_missing_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/no/such/cc")
    with pytest.raises(BuildError, match="CC is '/no/such/cc', which is no program on PATH. Set it to a C compiler, or unset it"):
        find_compiler()


def test_flags_follow_from_the_target() -> None:
    assert processor_flags(X86) == ["-march=x86-64-v3"]
    wide = Target("c -mcpu=skylake-avx512 -mattr=-avx512dq,+avx512vnni -num-cores=2")
    assert processor_flags(wide) == ["-march=skylake-avx512", "-mavx512vnni", "-mno-avx512dq", "-mprefer-vector-width=512"]
    assert processor_flags(ARM) == ["-mcpu=neoverse-n1"] and processor_flags(ARM, "zig") == ["-mcpu=neoverse_n1"]
    assert processor_flags(X86, "zig") == ["-march=x86_64_v3"]
    assert target_flags(X86, GCC) == ["-march=x86-64-v3"]
    assert target_flags(ARM, CLANG) == ["--target=aarch64-linux-gnu", "-mcpu=neoverse-n1"]
    assert target_flags(ARM, CCompiler(("aarch64-linux-gnu-gcc",), "gcc", "aarch64")) == ["-mcpu=neoverse-n1"]
    assert target_flags(ARM, CCompiler(("clang", "--target=aarch64-linux-gnu"), "clang", "aarch64")) == ["-mcpu=neoverse-n1"]
    assert target_flags(RISCV, CCompiler(("gcc",), "gcc", "riscv64")) == ["-march=rv64imafdcv_zfhmin_zvl128b_zvl256b", "-mabi=lp64d"]
    assert target_flags(RISCV, CLANG)[0] == "--target=riscv64-linux-gnu"
    assert processor_flags(RISCV, "zig") == ["-mcpu=baseline_rv64+m+a+f+d+c+v+zfhmin+zvl128b+zvl256b"]


def test_a_compiler_for_the_architecture_is_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiler, "detect_host", lambda: SimpleNamespace(arch="x86_64"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    program(tmp_path, "gcc", "echo '#define __GNUC__ 13'; echo '#define __x86_64__ 1'")
    assert compiler_for(X86).machine == "x86_64"
    advice = "apt install gcc-aarch64-linux-gnu  or  pip install"
    with pytest.raises(
        NoCompilerError, match=f"the C compiler .*gcc compiles for x86_64 only, and there is no aarch64-linux-gnu-gcc.*{advice}"
    ):
        compiler_for(ARM)
    cross = program(tmp_path, "aarch64-linux-gnu-gcc", "echo '#define __GNUC__ 13'; echo '#define __aarch64__ 1'")
    assert compiler_for(ARM) == CCompiler(("aarch64-linux-gnu-gcc",), "gcc", "aarch64")
    monkeypatch.setenv("CC", str(cross))
    assert compiler_for(ARM) == CCompiler((str(cross),), "gcc", "aarch64")
    with pytest.raises(NoCompilerError, match="compiles for aarch64 only, and there is no x86_64-linux-gnu-gcc"):
        compiler_for(X86)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert compiler_for(X86).name == "zig"


@pytest.mark.parametrize("target", [ARM, RISCV], ids=["aarch64", "riscv64"])
def test_code_for_other_machines(target: Target) -> None:
    try:
        compiler_for(target)
    except NoCompilerError as error:
        pytest.skip(str(error))
    assert read_symbols(compile_c("int twice(int x) { return 2 * x; }", target, "twice")).machine == architecture(target.mtriple)


@needs_compiler
def test_compiled_text_is_a_movable_object() -> None:
    data = compile_c("int twice(int x) { return 2 * x; }", X86, "twice")
    symbols = read_symbols(data)
    assert symbols.movable and symbols.defined == ("twice",) and not symbols.needed
    assert compile_c("int twice(int x) { return 2 * x; }", X86, "twice") == data


@needs_compiler
def test_errors_of_the_compiler_are_told_with_the_functions() -> None:
    with pytest.raises(BuildError, match=r"(?s)broken: .* failed for c -mcpu=x86-64-v3 .*error: .*undeclared"):
        compile_c("int f(void) { return x; }", X86, "broken")


def test_a_compiler_that_hangs_is_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = program(tmp_path, "cc", 'case "$*" in *-dM*) echo "#define __GNUC__ 12";; *) exec sleep 60;; esac')
    monkeypatch.setenv("CC", str(path))
    monkeypatch.setattr(compiler, "_SECONDS", 0.5)
    with pytest.raises(BuildError, match="f: the C compiler failed: .*timed out"):
        compile_c("", X86, "f")
