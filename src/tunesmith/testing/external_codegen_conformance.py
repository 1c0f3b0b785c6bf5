"""Conformance tests for external code generators: derive a class from `ExternalCodegenConformance` and define two fixtures.

    class TestMine(ExternalCodegenConformance):
        @pytest.fixture
        def make(self):
            return MyCodegen

        @pytest.fixture
        def graph(self):
            return lambda b, dtype: b.relu(b.input("x", (5, 3), dtype))

`graph` is one chain that the code generator compiles, for at least one of `DTYPES`.  The tests are skipped if a library is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tunesmith.codegen.cpu.entry_points import ENTRY_PREFIX
from tunesmith.driver.compile_model import CompiledModel, compile_model
from tunesmith.graph.ir import interpret
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, Constant, Operand, Value
from tunesmith.graph.ir.pattern import Pattern, chains
from tunesmith.graph.offload.external_codegen import ExternalCodegen, external_functions, find_codegen
from tunesmith.graph.passes.partition import partition
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Index
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.runtime.elf_symbols import OBJECT, read_symbols
from tunesmith.runtime.executor.executable import Executable
from tunesmith.runtime.module import Module, load_executable
from tunesmith.runtime.shared_libraries import load_library
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError, RunError, ScriptError
from tunesmith.support.seeds import stream
from tunesmith.testing.array_agreement import check_arrays, check_guards, guarded

Make = Callable[[], ExternalCodegen]
"""Factory of code generators."""
Graph = Callable[[GraphBuilder, str], Operand]
"""Adds the inputs and calls of a chain to a builder, for a dtype; returns the result."""

DTYPES = ("float32", "float64", "float16", "int32")
TARGET = Target("llvm")
FOREIGN = {"aarch64": Target("llvm -mcpu=neoverse-n1 -num-cores=4"), "x86_64": Target("llvm -mcpu=x86-64-v3 -num-cores=4")}


def example_module(graph: Graph, dtype: str) -> IRModule | None:
    """The chain as a model; None if one of its operators does not exist for the dtype."""
    b = GraphBuilder("main")
    try:
        return IRModule({"main": b.finish(graph(b, dtype))})
    except ScriptError:
        return None


def example_arrays(func: GraphFunc, special: bool = False, seed: int = 0) -> list[np.ndarray]:
    """Small whole numbers, so that sums are exact in any order; `special` adds NaN, infinities and -0.0 to floats."""
    draw = stream(seed, "external codegen conformance")
    arrays = [np.asarray(draw.integers(-4, 5, p.type.extents)).astype(dt.to_numpy(p.type.dtype)) for p in func.params]
    for k, a in enumerate(arrays):
        if special and a.dtype.kind == "f":  # at other positions in each operand
            a.reshape(-1)[k : k + 4] = np.array([np.nan, np.inf, -np.inf, -0.0], a.dtype)[: max(0, a.size - k)]
    return arrays


class ExternalCodegenConformance:
    """The tests; each docstring states a requirement."""

    @pytest.fixture
    def make(self) -> Make:
        """A factory of code generators: the class."""
        raise NotImplementedError("override the fixture `make` to return a factory of code generators, for example the class")

    @pytest.fixture
    def graph(self) -> Graph:
        """A chain that the code generator compiles."""
        raise NotImplementedError("override the fixture `graph` to return a function that adds a chain to a GraphBuilder")

    def test_description(self, make: Make) -> None:
        """The name is an identifier; there are patterns, of operators that exist; `libraries` are texts."""
        codegen = ready(make)
        assert codegen.name.isidentifier(), f"the name {codegen.name!r} is part of function names: use letters, digits and underscores"
        assert codegen.patterns, "there is no pattern: no chain is ever passed to `supports`"
        for pattern in codegen.patterns:
            assert isinstance(pattern, Pattern) and pattern.steps, f"{pattern!r} is not a Pattern"
        assert isinstance(codegen.libraries, tuple) and all(isinstance(x, str) for x in codegen.libraries), (
            f"libraries must be a tuple of texts, got {codegen.libraries!r}"
        )
        assert find_codegen(codegen) is codegen

    def test_results_agree_with_the_interpreter(self, make: Make, graph: Graph) -> None:
        """For every dtype, also for NaN, infinities and -0.0; what is not supported is compiled by tunesmith."""
        supported = []
        for dtype in DTYPES:
            mod = example_module(graph, dtype)
            if mod is None:
                continue
            codegen = ready(make)
            model = _compiled(mod, codegen)
            claimed = bool(external_functions(partition(mod, codegen)))
            assert claimed == bool(_external(model)), f"{dtype}: `supports` accepts the chain, and it is not compiled by the code generator"
            supported += [dtype] * claimed
            for special in (False, True):
                _check_model(model, mod, f"{dtype}{', with NaN and infinities' if special else ''}", special)
        assert supported, f"the chain of the fixture `graph` is supported for none of {', '.join(DTYPES)}"

    def test_supports_is_a_function_of_the_chain(self, make: Make, graph: Graph) -> None:
        """`supports` returns the same bool for the same chain, when asked again and in every instance."""
        for dtype in DTYPES:
            for calls in _matches(make, graph, dtype):
                codegen = ready(make)
                given = list(calls)
                first = codegen.supports(calls)
                assert calls == given, f"{dtype}: supports modified the list of calls"
                assert isinstance(first, bool), f"{dtype}: supports returns a {type(first).__name__}, not a bool"
                assert (codegen.supports(calls), ready(make).supports(calls)) == (first, first), f"{dtype}: supports changes its answer"

    def test_operands_may_be_constants(self, make: Make, graph: Graph) -> None:
        """Each operand but one is a constant of the model in turn; constants are operands of the function, in its order."""
        dtype, mod = _supported(make, graph)
        for k, kept in enumerate(mod["main"].params):
            b = _WithConstants(k)
            constant = IRModule({"main": b.finish(graph(b, dtype))})
            _check_model(_compiled(constant, ready(make)), constant, f"all operands but {kept.name} are constants")

    def test_objects_define_their_own_names(self, make: Make, graph: Graph) -> None:
        """An object defines the entry point of its function; two functions of one chain can be linked: no symbol is defined twice."""
        codegen, func = ready(make), _external_function(make, graph)
        defined = []
        for name in (func.name, f"{func.name}_again"):
            symbols = read_symbols(codegen.compile(func.with_(name=name), TARGET), f"the object of {name}")
            assert symbols.kind == OBJECT and symbols.movable, f"the object of {name} must be a position-independent, relocatable object"
            assert ENTRY_PREFIX + name in symbols.defined, f"the object of {name} does not define {ENTRY_PREFIX}{name}"
            defined.append(set(symbols.defined))
        both = sorted(defined[0] & defined[1])
        assert not both, f"objects of two functions both define {', '.join(both)}: put the name of the function into its symbols"

    def test_equal_functions_give_equal_objects(self, make: Make, graph: Graph) -> None:
        """In one instance and in another: exported models must be reproducible."""
        func, first, second = _external_function(make, graph), ready(make), ready(make)
        objects = [codegen.compile(func, TARGET) for codegen in (first, first, second)]
        assert all(isinstance(o, bytes) for o in objects), f"compile returns a {type(objects[0]).__name__}, not bytes"
        assert objects[0] == objects[1] == objects[2], "equal functions give different objects"

    def test_every_element_is_written(self, make: Make, graph: Graph) -> None:
        """Direct calls, into memory with other contents, compute the results; operands and the memory around results are unchanged."""
        func = _external_function(make, graph)
        called, arrays = _loaded(ready(make), func), example_arrays(func)
        expected = interpret.run(func, arrays)
        for fill in (np.nan, 77):
            fills = [fill if e.dtype.kind == "f" else 77 for e in expected]
            results, memories = zip(*[guarded(e, x) for e, x in zip(expected, fills, strict=True)], strict=True)
            operands = [a.copy() for a in arrays]
            called(*operands, *results)
            check_arrays(results, expected, f"{func.name} in memory that held {fill}")
            for k, (memory, x) in enumerate(zip(memories, fills, strict=True)):
                check_guards(memory, x, f"{func.name}, result {k}")
            for p, a, b in zip(func.params, operands, arrays, strict=True):
                assert np.array_equal(a, b), f"{func.name} changed its operand {p.name}"

    def test_arguments_are_checked(self, make: Make, graph: Graph) -> None:
        """The entry point refuses missing arguments, other shapes and other dtypes with RunError, and computes nothing."""
        func = _external_function(make, graph)
        called, operands = _loaded(ready(make), func), example_arrays(func)
        results = [np.zeros(r.type.extents, dt.to_numpy(r.type.dtype)) for r in func.results]
        given = [*operands, *results]
        refused = {"an argument is missing": given[:-1]}
        for k, a in enumerate(given):
            refused[f"argument {k} has another shape"] = [*given[:k], np.zeros((*a.shape, 2), a.dtype), *given[k + 1 :]]
            refused[f"argument {k} has another dtype"] = [*given[:k], np.zeros(a.shape, np.int8), *given[k + 1 :]]
        for what, arguments in refused.items():
            try:
                called(*arguments)
            except RunError:
                continue
            raise AssertionError(f"{func.name}: {what}, and no RunError is raised: check arguments as `emit_entry` does")

    def test_code_of_another_machine(self, make: Make, graph: Graph) -> None:
        """`compile` gives an object for the target's machine, or raises a BuildError with a message."""
        func = _external_function(make, graph)
        for machine, target in FOREIGN.items():
            try:
                data = ready(make).compile(func, target)
            except BuildError as error:
                assert str(error), f"the BuildError for {target} has no message"
                continue
            found = read_symbols(data).machine
            assert found == machine, f"the object for {target} is code of {found}, expected {machine} or a BuildError"

    def test_models_can_be_stored(self, make: Make, graph: Graph) -> None:
        """A compiled model that is written and read again computes the same."""
        _, mod = _supported(make, graph)
        again = load_executable(Executable.from_bytes(_compiled(mod, ready(make)).executable.to_bytes()))
        arrays = example_arrays(mod["main"])
        check_arrays(_listed(again(*arrays)), interpret.run(mod["main"], arrays), "a model that was stored")


class _WithConstants(GraphBuilder):
    """All inputs but one are constants."""

    def __init__(self, kept: int) -> None:
        super().__init__("main")
        self.kept, self.asked = kept, 0

    def input(self, name: str, shape: Sequence[Index], dtype: str = "float32") -> Value:
        value = super().input(name, shape, dtype)
        self.asked += 1
        if self.asked - 1 == self.kept:
            return value
        self.params.remove(value)
        data = stream(self.asked, "external codegen constants").integers(-4, 5, value.type.extents)
        constant: Value | Constant = Constant(name, np.asarray(data).astype(dt.to_numpy(dtype)))
        return constant  # type: ignore[return-value]  # operators take both


def ready(make: Make) -> ExternalCodegen:
    """A new code generator; skips the test if a library that it needs is missing."""
    codegen = make()
    try:
        for library in codegen.libraries:
            load_library(library)
    except (BuildError, RunError) as error:
        pytest.skip(str(error))
    return codegen


def _compiled(mod: IRModule, codegen: ExternalCodegen) -> CompiledModel:
    return compile_model(mod, TARGET, untuned=default_schedule, offload=(codegen,))


def _external(model: CompiledModel) -> list[str]:
    return [c.function for c in model.coverage if c.status == "external"]


def _listed(results: np.ndarray | tuple[np.ndarray, ...]) -> list[np.ndarray]:
    return list(results) if isinstance(results, tuple) else [results]


def _check_model(model: CompiledModel, mod: IRModule, what: str, special: bool = False) -> None:
    arrays = example_arrays(mod["main"], special)
    with np.errstate(all="ignore"):
        expected = interpret.run(mod["main"], arrays)
    check_arrays(_listed(model(*arrays)), expected, what)


def _matches(make: Make, graph: Graph, dtype: str) -> list[list[Binding]]:
    """The chains of the example that match a pattern."""
    mod = example_module(graph, dtype)
    if mod is None:
        return []
    body = mod["main"].body
    found = [[body.bindings[i] for i in chain] for pattern in ready(make).patterns for chain in chains(body, pattern)]
    assert found, f"no pattern matches the chain of the fixture `graph`:\n{mod['main']}"
    return found


def _supported(make: Make, graph: Graph) -> tuple[str, IRModule]:
    """The first dtype for which the chain is supported, and the model."""
    for dtype in DTYPES:
        mod = example_module(graph, dtype)
        if mod is not None and external_functions(partition(mod, ready(make))):
            return dtype, mod
    raise AssertionError(f"the chain of the fixture `graph` is supported for none of {', '.join(DTYPES)}")


def _external_function(make: Make, graph: Graph) -> GraphFunc:
    """The function that the code generator compiles."""
    return next(iter(external_functions(partition(_supported(make, graph)[1], ready(make))).values()))


def _loaded(codegen: ExternalCodegen, func: GraphFunc) -> Callable[..., object]:
    """The compiled function in this process."""
    return Module.from_object(codegen.compile(func, TARGET))[func.name]
