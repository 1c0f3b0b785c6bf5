from __future__ import annotations

import ctypes
import io
import platform
import subprocess
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from tunesmith.codegen.llvm import link
from tunesmith.codegen.llvm.data_object import PAGE, DataSymbol, write_data_object
from tunesmith.runtime.elf_symbols import OBJECT, read_symbols


@pytest.fixture(scope="module")
def like() -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="small")
    return bytes(machine.emit_object(llvm.parse_assembly("define void @f() {\n  ret void\n}\n")))


def written(symbols: list[DataSymbol], like: bytes) -> bytes:
    file = io.BytesIO()
    write_data_object(file, symbols, like)
    return file.getvalue()


def test_symbols_and_bytes(like: bytes) -> None:
    pieces = [b"abc", memoryview(bytes(range(256)) * 20)]
    data = written([DataSymbol("first", [b"x"], 1), DataSymbol("second", pieces, 5123), DataSymbol("none", [], 0)], like)
    symbols = read_symbols(data)
    assert (symbols.kind, symbols.defined, symbols.needed, symbols.movable) == (OBJECT, ("first", "none", "second"), (), True)
    assert symbols.machine == read_symbols(like).machine
    assert data[PAGE : PAGE + 1] == b"x" and data[2 * PAGE : 2 * PAGE + 5123] == b"".join(pieces)
    assert data == written([DataSymbol("first", [b"x"], 1), DataSymbol("second", pieces, 5123), DataSymbol("none", [], 0)], like)


@pytest.mark.parametrize("linker", ["ld", "cc", "ziglang"])
def test_linkers_align_it_to_a_page(tmp_path: Path, like: bytes, linker: str) -> None:
    found = link.linkers(platform.machine())
    if linker not in found:
        pytest.skip(f"{linker} is not installed")
    body = bytes(range(256)) * 100
    Path(tmp_path, "data.o").write_bytes(written([DataSymbol("head", [b"tiny"], 4), DataSymbol("body", [body], len(body))], like))
    flags = ["-nostdlib"] if linker == "cc" else []
    done = subprocess.run(
        [*found[linker], "-shared", *flags, "-o", "data.so", "data.o"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    library = ctypes.CDLL(str(tmp_path / "data.so"))
    address = ctypes.addressof(ctypes.c_char.in_dll(library, "body"))
    assert address % PAGE == 0
    assert ctypes.string_at(address, len(body)) == body
    assert ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, "head")), 4) == b"tiny"
