"""A kernel with a parallel loop, and a small compiler of IR text: what the tests of the runtime load and call."""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.binding as llvm
import pytest

from tunesmith.codegen.llvm_host_entry import emit_entry
from tunesmith.runtime.param_spec import ParamSpec

VADD = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()

define internal void @vadd.body(ptr %context) {
  %thread = call i32 @omp_get_thread_num()
  %t = sext i32 %thread to i64
  %a = load ptr, ptr %context
  %b.p = getelementptr ptr, ptr %context, i64 1
  %b = load ptr, ptr %b.p
  %c.p = getelementptr ptr, ptr %context, i64 2
  %c = load ptr, ptr %c.p
  %begin = mul i64 %t, 512
  %end = add i64 %begin, 512
  br label %loop
loop:
  %i = phi i64 [ %begin, %0 ], [ %next, %loop ]
  %x.p = getelementptr float, ptr %a, i64 %i
  %y.p = getelementptr float, ptr %b, i64 %i
  %z.p = getelementptr float, ptr %c, i64 %i
  %x = load float, ptr %x.p
  %y = load float, ptr %y.p
  %z = fadd float %x, %y
  store float %z, ptr %z.p
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}

define void @vadd(ptr noalias %a, ptr noalias %b, ptr noalias %c) {
  %context = alloca [3 x ptr], align 8
  store ptr %a, ptr %context
  %b.p = getelementptr ptr, ptr %context, i64 1
  store ptr %b, ptr %b.p
  %c.p = getelementptr ptr, ptr %context, i64 2
  store ptr %c, ptr %c.p
  call void @GOMP_parallel(ptr @vadd.body, ptr %context, i32 2, i32 0)
  ret void
}
"""
"""c = a + b over float32[2, 512], a row a thread."""

VADD_PARAMS = (ParamSpec("A", "float32", (2, 512)), ParamSpec("B", "float32", (2, 512)), ParamSpec("C", "float32", (2, 512), written=True))


def compile_text(text: str, reloc: str = "pic") -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=1, reloc=reloc, codemodel="small")
    module = llvm.parse_assembly(text)
    module.verify()
    return bytes(machine.emit_object(module))


@pytest.fixture(scope="session")
def compile_ir() -> Callable[..., bytes]:
    return compile_text


@pytest.fixture(scope="session")
def vadd_text() -> str:
    """The kernel and its entry point."""
    return VADD + emit_entry("vadd", "vadd", VADD_PARAMS)


@pytest.fixture(scope="session")
def vadd_object(vadd_text: str) -> bytes:
    return compile_text(vadd_text)
