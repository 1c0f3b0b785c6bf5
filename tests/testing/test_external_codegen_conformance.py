"""Run the conformance suite on BLAS offload, and check that each of its tests detects a code generator that breaks the contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import pytest

from tunesmith.codegen.cpu.entry_points import ENTRY_PREFIX
from tunesmith.codegen.llvm.compile import compile_object
from tunesmith.codegen.llvm.host import llvm_options
from tunesmith.codegen.llvm.host_entry import emit_entry
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, Operand
from tunesmith.graph.ir.pattern import Pattern
from tunesmith.graph.offload.external_blas import BlasCodegen
from tunesmith.graph.offload.external_codegen import ExternalCodegen, external_specs
from tunesmith.ir.target.target import Target
from tunesmith.testing.external_codegen_conformance import ExternalCodegenConformance, Graph, Make

suite = ExternalCodegenConformance()

ADD = """
define void @NAME_kernel(ptr %x, ptr %y, ptr %z) {
start:
  br label %loop
loop:
  %i = phi i64 [ 0, %start ], [ %next, %loop ]
  %px = getelementptr float, ptr %x, i64 %i
  %py = getelementptr float, ptr %y, i64 %i
  %pz = getelementptr float, ptr %z, i64 %i
  %a = load float, ptr %px
  %b = load float, ptr %py
  %s = OPERATION
  store float %s, ptr %pz
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, COUNT
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


class Add(ExternalCodegen):
    """A correct code generator for subtractions of float32, whose parts a subclass damages."""

    name = "added"
    patterns = (Pattern("subtract", ("subtract",)),)
    operation = "fsub float %a, %b"
    less = 0

    def supports(self, calls: Sequence[Binding]) -> bool:
        operands = calls[0].operation.args
        return all(o.type == calls[0].results[0].type and o.type.dtype == "float32" for o in operands)

    def symbol(self, func: GraphFunc) -> str:
        return func.name

    def text(self, func: GraphFunc) -> str:
        count = str(prod(func.params[0].type.extents) - self.less)
        kernel = ADD.replace("NAME", self.symbol(func)).replace("COUNT", count).replace("OPERATION", self.operation)
        return kernel + emit_entry(func.name, f"{self.symbol(func)}_kernel", external_specs(func))

    def compile(self, func: GraphFunc, target: Target) -> bytes:
        return compile_object(self.text(func), llvm_options(target))


def subtraction(b: GraphBuilder, dtype: str) -> Operand:
    return b.subtract(b.input("x", (5, 3), dtype), b.input("y", (5, 3), dtype))


class TestAdd(ExternalCodegenConformance):
    @pytest.fixture
    def make(self) -> Make:
        return Add

    @pytest.fixture
    def graph(self) -> Graph:
        return subtraction


class TestBlas(ExternalCodegenConformance):
    @pytest.fixture
    def make(self) -> Make:
        return BlasCodegen

    @pytest.fixture
    def graph(self) -> Graph:
        def dense(b: GraphBuilder, dtype: str) -> Operand:
            product = b.matmul(b.input("x", (7, 3), dtype), b.input("w", (3, 5), dtype))
            return b.add(product, b.input("bias", (5,), dtype))

        return dense


class Spaced(Add):
    name = "my codegen"


class NoPattern(Add):
    patterns = ()


class OneLibrary(Add):
    @property
    def libraries(self) -> tuple[str, ...]:
        return []  # type: ignore[return-value]


class Reversed(Add):
    operation = "fsub float %b, %a"


class FlushesNan(Add):
    """Subtracts what is a number, and gives b elsewhere."""

    operation = "select i1 %ordered, float %d, float %b"

    def text(self, func: GraphFunc) -> str:
        return super().text(func).replace("  %s =", "  %d = fsub float %a, %b\n  %ordered = fcmp ord float %a, %b\n  %s =")


class Nothing(Add):
    def supports(self, calls: Sequence[Binding]) -> bool:
        return False


class Moody(Add):
    asked = 0

    def supports(self, calls: Sequence[Binding]) -> bool:
        type(self).asked += 1
        return self.asked % 2 == 1


class Counts(Add):
    def supports(self, calls: Sequence[Binding]) -> bool:
        return len(calls)


class Anonymous(Add):
    """All kernels have one name."""

    def symbol(self, func: GraphFunc) -> str:
        return "anonymous"


class OwnName(Add):
    """The entry point does not have the name of the function."""

    def text(self, func: GraphFunc) -> str:
        return super().text(func).replace(ENTRY_PREFIX + func.name, ENTRY_PREFIX + "mine")


class Unequal(Add):
    compiled = 0

    def text(self, func: GraphFunc) -> str:
        type(self).compiled += 1
        return super().text(func) + f"@count_{self.compiled} = constant i32 0\n"


class Partial(Add):
    less = 1


class Beyond(Add):
    """Writes one element too many."""

    less = -1


class OneOperand(Add):
    """Ignores its second operand."""

    operation = "fsub float %a, %a"


class Pops(Add):
    """Empties the list of calls."""

    def supports(self, calls: Sequence[Binding]) -> bool:
        found = super().supports(calls)
        calls.clear()  # type: ignore[attr-defined]
        return found


class InPlace(Add):
    """Stores to its operand, too."""

    def text(self, func: GraphFunc) -> str:
        return super().text(func).replace("  store float %s, ptr %pz", "  store float %s, ptr %pz\n  store float %s, ptr %px")


class Unchecked(Add):
    """The entry point looks at no argument."""

    def text(self, func: GraphFunc) -> str:
        return f"define i32 @{ENTRY_PREFIX}{func.name}(ptr %self, ptr %args, i32 %n, ptr %result) {{\n  ret i32 0\n}}\n"


class ThisMachine(Add):
    """Generates code for this machine only, without a refusal."""

    def compile(self, func: GraphFunc, target: Target) -> bytes:
        return super().compile(func, Target("llvm"))


BROKEN: list[tuple[Callable[..., None], type[ExternalCodegen], str]] = [
    (suite.test_results_agree_with_the_interpreter, Reversed, r"float32, result 0: \d+ of 15 elements differ"),
    (suite.test_results_agree_with_the_interpreter, FlushesNan, "float32, with NaN and infinities, result 0: "),
    (suite.test_results_agree_with_the_interpreter, Nothing, "is supported for none of float32, float64, float16, int32"),
    (suite.test_supports_is_a_function_of_the_chain, Moody, "supports changes its answer"),
    (suite.test_supports_is_a_function_of_the_chain, Counts, "supports returns a int, not a bool"),
    (suite.test_operands_may_be_constants, Reversed, "all operands but x are constants, result 0"),
    (suite.test_objects_define_their_own_names, Anonymous, "objects of two functions both define anonymous_kernel"),
    (suite.test_objects_define_their_own_names, OwnName, "does not define __tvm_ffi_added_subtract"),
    (suite.test_equal_functions_give_equal_objects, Unequal, "equal functions give different objects"),
    (suite.test_every_element_is_written, Partial, "added_subtract in memory that held nan, result 0: 1 of 15 elements differ"),
    (suite.test_every_element_is_written, Beyond, "added_subtract, result 0: elements behind the array were written"),
    (suite.test_results_agree_with_the_interpreter, OneOperand, "float32, result 0: "),
    (suite.test_supports_is_a_function_of_the_chain, Pops, "supports modified the list of calls"),
    (suite.test_every_element_is_written, InPlace, "added_subtract changed its operand a"),
    (suite.test_arguments_are_checked, Unchecked, "an argument is missing, and no RunError is raised"),
    (suite.test_models_can_be_stored, Reversed, "a model that was stored, result 0"),
]


@pytest.mark.parametrize(("test", "broken", "message"), BROKEN)
def test_broken_code_generators_are_detected(test: Callable[..., None], broken: type[ExternalCodegen], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        test(broken, subtraction)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Spaced, "the name 'my codegen' is part of function names"),
        (NoPattern, "there is no pattern"),
        (OneLibrary, r"libraries must be a tuple of texts, got \[\]"),
    ],
)
def test_wrong_descriptions_are_detected(broken: type[ExternalCodegen], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        suite.test_description(broken)


def test_code_of_the_wrong_machine_is_detected() -> None:
    with pytest.raises(AssertionError, match=r"the object for llvm .* is code of \w+, expected \w+ or a BuildError"):
        suite.test_code_of_another_machine(ThisMachine, subtraction)


def test_a_chain_that_matches_no_pattern_is_detected() -> None:
    with pytest.raises(AssertionError, match="no pattern matches the chain of the fixture `graph`"):
        suite.test_supports_is_a_function_of_the_chain(Add, lambda b, dtype: b.neg(b.input("x", (2,), dtype)))
