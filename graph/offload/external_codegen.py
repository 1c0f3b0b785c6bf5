"""External code generators: compilers and libraries that take over parts of a graph (source: TVM's BYOC; Chen et al., 2021).

A code generator names the chains of calls that it knows.  `graph.passes.partition` moves them into graph functions that are marked with its
name; no other pass touches those, and `compile_external` has them compiled.  To executors they are functions like our own: the object
defines `__tvm_ffi_NAME`, which checks its arguments, the operands and then the results.

Another distribution adds one with an entry point in the group `tunesmith.external_codegen` that names a class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from tunesmith.codegen.llvm.host_entry import ENTRY_PREFIX
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding
from tunesmith.graph.ir.pattern import Pattern
from tunesmith.ir.function import IRModule
from tunesmith.ir.target.target import Target
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.elf_symbols import read_symbols
from tunesmith.support.errors import BuildError, UserError
from tunesmith.support.registry import Registry


class ExternalCodegen(ABC):
    """What compiles parts of a graph in its own way.  A class in the registry is made without arguments."""

    name: str
    """In `EXTERNAL_CODEGENS`, in the attribute `codegen` of its functions, and part of their names: an identifier."""
    patterns: tuple[Pattern, ...]
    """Chains that it takes, those that it likes best first."""

    @abstractmethod
    def supports(self, calls: Sequence[Binding]) -> bool:
        """Whether it can compile a chain that has one of its patterns: operators, attributes and types say so.

        Shapes are numbers here: chains with symbolic sizes are not offered.
        """

    @abstractmethod
    def compile(self, func: GraphFunc, target: Target) -> bytes:
        """An ELF object that defines `__tvm_ffi_NAME` for a function of that name, position-independent.

        It takes the operands and then the results, as `external_specs` lists them; results must not share memory with anything.
        `codegen.llvm.host_entry.emit_entry` makes such an entry point for `void NAME_kernel(ptr, ...)`.

        Raises:
            BuildError: it cannot be compiled; the message says what is missing.
        """

    @property
    def libraries(self) -> tuple[str, ...]:
        """Shared libraries that its objects need when they are loaded: file names or paths (`runtime.shared_libraries`)."""
        return ()


EXTERNAL_CODEGENS: Registry[type[ExternalCodegen]] = Registry(
    "external codegen", {"blas": "tunesmith.graph.offload.external_blas:BlasCodegen"}
)
"""Classes of code generators by name."""

Codegen = str | ExternalCodegen
"""A name in `EXTERNAL_CODEGENS`, or a code generator with settings of its own."""


def find_codegen(codegen: Codegen) -> ExternalCodegen:
    """The code generator.

    Raises:
        UserError: the name is unknown, or what it stands for is no code generator.
    """
    if isinstance(codegen, ExternalCodegen):
        return codegen
    if not isinstance(codegen, str):
        raise UserError(f"an external code generator is a name or an ExternalCodegen, got {codegen!r}")
    made = EXTERNAL_CODEGENS.get(codegen)
    found = made() if isinstance(made, type) else made
    if not isinstance(found, ExternalCodegen):
        raise UserError(f"the external codegen {codegen!r} is a {type(found).__name__}, not a class derived from ExternalCodegen")
    return found


def external_specs(func: GraphFunc) -> list[ParamSpec]:
    """What the arguments of a function of a code generator must be: operands, then results."""
    inputs = [ParamSpec(p.name, p.type.dtype, p.type.extents) for p in func.params]
    return [*inputs, *[ParamSpec(r.name, r.type.dtype, r.type.extents, written=True) for r in func.results]]


def external_functions(mod: IRModule) -> dict[str, GraphFunc]:
    """The functions of a module that belong to external code generators, by name."""
    return {name: f for name, f in mod.items() if isinstance(f, GraphFunc) and f.codegen is not None}


def compile_external(mod: IRModule, target: Target, codegens: Iterable[ExternalCodegen] = ()) -> tuple[tuple[bytes, ...], tuple[str, ...]]:
    """Objects of all external functions of a module, and the shared libraries that they need, each once.

    Args:
        mod: the module.
        target: what is compiled for.
        codegens: code generators that are used instead of those that the registry has under their names.
    Raises:
        UserError: a function is marked with an unknown name.
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
