"""toy: an external code generator for squared_relu of float32: LLVM IR written by hand."""

from math import prod

from tunesmith.codegen.llvm.compile import compile_object
from tunesmith.codegen.llvm.host import llvm_options
from tunesmith.codegen.llvm.host_entry import emit_entry
from tunesmith.graph.ir.pattern import Pattern
from tunesmith.graph.offload.external_codegen import ExternalCodegen, external_specs

LOOP = """
define void @NAME_kernel(ptr noalias %x, ptr noalias %y) {
start:
  br label %loop
loop:
  %i = phi i64 [ 0, %start ], [ %next, %loop ]
  %from = getelementptr float, ptr %x, i64 %i
  %to = getelementptr float, ptr %y, i64 %i
  %value = load float, ptr %from
  %below = fcmp olt float %value, 0.0
  %positive = select i1 %below, float 0.0, float %value
  %square = fmul float %positive, %positive
  store float %square, ptr %to
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, COUNT
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


class ToyCodegen(ExternalCodegen):
    name = "toy"
    patterns = (Pattern("squared_relu", ("squared_relu",)),)

    def supports(self, calls):
        return calls[0].results[0].type.dtype == "float32"

    def compile(self, func, target):
        count = prod(func.params[0].type.extents)
        kernel = LOOP.replace("NAME", func.name).replace("COUNT", str(count))
        entry = emit_entry(func.name, f"{func.name}_kernel", external_specs(func))
        return compile_object(kernel + entry, llvm_options(target))
