"""Fixtures of the runtime tests: a kernel with a parallel loop, a small compiler of IR text, and two lowered models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np
import pytest

from tunesmith.codegen.llvm.aot import build_aot
from tunesmith.codegen.llvm.build import build
from tunesmith.codegen.llvm.host_entry import emit_entry
from tunesmith.graph.emit.graph_program import emit_graph_program
from tunesmith.graph.emit.vm_program import emit_vm_program
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.node import TensorType
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Index, Var, poly
from tunesmith.ir.target.target import Target
from tunesmith.ops import tensor_expression as te
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.executor.executable import Executable

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
"""c = a + b over float32[2, 512], one row per thread."""

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


@dataclass(frozen=True)
class Model:
    """A lowered model: its programs, object code, and reference function."""

    graph: Executable
    vm: Executable
    aot: Executable
    reference: Callable[..., tuple[np.ndarray, ...]]


def _dense(m: Index, k: int, n: int, name: str) -> PrimFunc:
    x, w, b = te.placeholder((m, k), name="x"), te.placeholder((k, n), name="w"), te.placeholder((n,), name="b")
    r = te.reduce_axis(k)
    product = te.compute((m, n), lambda i, j: te.sum(x[i, r] * w[r, j], axis=r), "product")
    return te.create_prim_func([x, w, b, te.compute((m, n), lambda i, j: product[i, j] + b[j], "y")], name)


def _plus(n: Index, name: str) -> PrimFunc:
    a, b = te.placeholder((n,), name="a"), te.placeholder((n,), name="b")
    return te.create_prim_func([a, b, te.compute((n,), lambda i: a[i] + b[i], "c")], name)


@pytest.fixture(scope="session")
def model() -> Model:
    """y = (x @ w + b), flat, twice added to c, as [2, 32]; also x @ w + b itself, and x."""
    rng = np.random.default_rng(0)
    w, b, c = [rng.integers(-3, 4, shape).astype("float32") for shape in ((8, 16), (16,), (64,))]
    g = GraphBuilder()
    x = g.input("x", (4, 8))
    (h,) = g.call_function("dense", [x, g.constant(w, "w"), g.constant(b, "b")], [TensorType.of((4, 16))], name="h")
    flat = g.reshape(h, shape=(64,))
    (once,) = g.call_function("plus", [flat, g.constant(c, "c")], [TensorType.of((64,))])
    (twice,) = g.call_function("plus", [once, g.constant(c, "c")], [TensorType.of((64,))])
    func = g.finish(g.reshape(twice, shape=(2, 32), name="y"), h, x)
    functions = [_dense(4, 8, 16, "dense"), _plus(64, "plus")]
    module = IRModule({"main": func, **{f.name: f for f in functions}})
    code = build(functions, Target.detect()).data

    def reference(x: np.ndarray) -> tuple[np.ndarray, ...]:
        h = x @ w + b
        return (h.reshape(64) + c + c).reshape(2, 32), h, x

    program, constants = emit_graph_program(module)
    native, native_code = build_aot(functions, program, constants, "two_step", Target.detect())
    return Model(
        Executable("graph", program, constants, code),
        Executable("vm", *emit_vm_program(module), code),
        Executable("aot", native, constants, native_code),
        reference,
    )


@pytest.fixture(scope="session")
def sized_model() -> Executable:
    """y = x @ w + b, flat, for x of n < 129 rows; w[i, j] = i - j, b[j] = j."""
    n = poly(Var("n"))
    w, b = np.subtract.outer(np.arange(8), np.arange(16)).astype("float32"), np.arange(16, dtype="float32")
    g = GraphBuilder()
    x = g.input("x", (n, 8))
    (h,) = g.call_function("dense", [x, g.constant(w, "w"), g.constant(b, "b")], [TensorType.of((n, 16))], [n])
    g.assume(n < 129)
    dense = _dense(te.var("n"), 8, 16, "dense")
    module = IRModule({"main": g.finish(g.reshape(h, shape=(n * 16,), name="y")), "dense": dense})
    return Executable("vm", *emit_vm_program(module), build([dense], Target.detect()).data)
