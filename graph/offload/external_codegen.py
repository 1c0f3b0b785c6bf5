"""Define the interface of external code generators, which compile parts of a graph.

Source: TVM's BYOC; Chen et al., 2021.

A code generator declares the chains of calls that it supports.  `graph.passes.partition` moves such chains into graph functions marked
with the name of the generator.  Other passes do not change these functions, and `compile_external` compiles them.  Executors call them
like functions compiled by tunesmith: the object defines `__tvm_ffi_NAME`, which takes the operands and then the results, and checks them.

Another distribution adds a code generator by an entry point in the group `tunesmith.external_codegen` that refers to a class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from tunesmith.codegen.cpu.entry_points import ENTRY_PREFIX
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding
from tunesmith.graph.ir.pattern import Pattern
from tunesmith.ir.function import IRModule
from tunesmith.ir.target.target import Target
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.elf_symbols import read_symbols
from tunesmith.support.errors import BuildError, UserError
from tunesmith.support.registry import Registry, derived_from


class ExternalCodegen(ABC):
    """A compiler for parts of a graph.  Classes in the registry are instantiated without arguments."""

    name: str
    """Name in `EXTERNAL_CODEGENS` and in the attribute `codegen` of its functions; an identifier, because it is part of their names."""
    patterns: tuple[Pattern, ...]
    """Patterns of supported chains, in order of preference."""

    @abstractmethod
    def supports(self, calls: Sequence[Binding]) -> bool:
        """Whether it can compile a chain that matches one of its patterns, judged by operators, attributes and types.

        All shapes are static: chains with dynamic shapes are not passed.
        """

    @abstractmethod
    def compile(self, func: GraphFunc, target: Target) -> bytes:
        """A position-independent ELF object that defines `__tvm_ffi_NAME` for a function of that name.

        The entry point takes the operands and then the results, in the order of `external_specs`; results must not alias other memory.
        `codegen.llvm.host_entry.emit_entry` emits such an entry point for `void NAME_kernel(ptr, ...)`.

        Raises:
            BuildError: the function cannot be compiled; the message states what is missing.
        """

    @property
    def libraries(self) -> tuple[str, ...]:
        """Shared libraries required to load its objects: file names or paths (`runtime.shared_libraries`)."""
        return ()


EXTERNAL_CODEGENS: Registry[type[ExternalCodegen]] = Registry(
    "external codegen",
    {"blas": "tunesmith.graph.offload.external_blas:BlasCodegen"},
    contract=derived_from(ExternalCodegen),
)
"""Classes of code generators by name."""

Codegen = str | ExternalCodegen
"""A name in `EXTERNAL_CODEGENS`, or a code generator."""


def find_codegen(codegen: Codegen) -> ExternalCodegen:
    """The code generator for a name; a code generator is returned as it is.

    Raises:
        UserError: the name is unknown, or is not registered for a code generator.
    """
    if isinstance(codegen, ExternalCodegen):
        return codegen
    if not isinstance(codegen, str):
        raise UserError(f"an external code generator must be a name or an ExternalCodegen, got {codegen!r}")
    return EXTERNAL_CODEGENS.get(codegen)()


def external_specs(func: GraphFunc) -> list[ParamSpec]:
    """The parameter specifications of an external function: operands, then results."""
    inputs = [ParamSpec(p.name, p.type.dtype, p.type.extents) for p in func.params]
    return [*inputs, *[ParamSpec(r.name, r.type.dtype, r.type.extents, written=True) for r in func.results]]


def external_functions(mod: IRModule) -> dict[str, GraphFunc]:
    """The functions of a module that external code generators compile, by name."""
    return {name: f for name, f in mod.items() if isinstance(f, GraphFunc) and f.codegen is not None}


def compile_external(mod: IRModule, target: Target, codegens: Iterable[ExternalCodegen] = ()) -> tuple[tuple[bytes, ...], tuple[str, ...]]:
    """Compile all external functions of a module; returns their objects and the shared libraries that these need, without repetitions.

    Args:
        mod: the module.
        target: target of the compilation.
        codegens: code generators that replace the registered ones of the same names.
    Raises:
        UserError: the code generator of a function is unknown.
        BuildError: a code generator cannot compile a function, or its object does not define the entry point.
    """
    known = {c.name: c for c in codegens}
    objects: list[bytes] = []
    libraries: list[str] = []
    for name, func in external_functions(mod).items():
        assert func.codegen is not None
        if func.codegen not in known:
            known[func.codegen] = find_codegen(func.codegen)
        codegen = known[func.codegen]
        data = codegen.compile(func, target)
        entry = ENTRY_PREFIX + name
        if entry not in read_symbols(data, f"the object of the external codegen {codegen.name!r} for {name}").defined:
            raise BuildError(f"the object of the external codegen {codegen.name!r} for {name} does not define {entry}")
        objects.append(data)
        libraries += codegen.libraries
    return tuple(objects), tuple(dict.fromkeys(libraries))
