from __future__ import annotations

from collections.abc import Callable

import pytest

from tunesmith.runtime.elf_symbols import OBJECT, read_symbols
from tunesmith.support.errors import RunError


def test_object(vadd_object: bytes) -> None:
    symbols = read_symbols(vadd_object)
    assert symbols.kind == OBJECT
    assert symbols.machine == "x86_64"
    assert symbols.defined == ("__tvm_ffi_vadd", "vadd")
    assert [name for name in symbols.needed if name != "_GLOBAL_OFFSET_TABLE_"] == [
        "GOMP_parallel",
        "omp_get_thread_num",
        "tunesmith_check_v1",
    ]
    assert symbols.movable


def test_hidden_and_weak_symbols_are_omitted(compile_ir: Callable[..., bytes]) -> None:
    text = """
declare extern_weak void @perhaps()
define hidden void @hidden() {
  ret void
}
define weak void @soft() {
  call void @perhaps()
  ret void
}
"""
    symbols = read_symbols(compile_ir(text))
    assert symbols.defined == ("soft",)
    assert "perhaps" not in symbols.needed


def test_code_for_fixed_addresses_is_not_movable(compile_ir: Callable[..., bytes]) -> None:
    text = """
@table = internal global [8 x i32] zeroinitializer
define ptr @f(i64 %i) {
  %p = getelementptr i32, ptr @table, i64 %i
  ret ptr %p
}
"""
    assert read_symbols(compile_ir(text)).movable
    assert not read_symbols(compile_ir(text, reloc="static")).movable


@pytest.mark.parametrize("data", [b"", b"MZ rubbish", b"\x7fELF\x01\x01" + bytes(100)])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(RunError, match="thing is not a 64-bit little-endian ELF file"):
        read_symbols(data, "thing")


def test_damage_is_reported(vadd_object: bytes) -> None:
    with pytest.raises(RunError, match="thing is damaged: its symbol table cannot be read"):
        read_symbols(vadd_object[:200], "thing")
    for end in range(64, len(vadd_object), 97):
        try:
            read_symbols(vadd_object[:end])
        except RunError:
            continue
        pytest.fail(f"{end} of {len(vadd_object)} bytes passed for an object")
