"""Hold compiled object code with its metadata: the result of a builder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tunesmith.runtime.checker.param_spec import ParamSpec


@dataclass(frozen=True, slots=True)
class Pack:
    """A constant argument that a function takes in another layout.

    Attributes:
        function: function that makes the packed copy; its arguments are the constant and the copy.
        position: index of the argument.
        spec: parameter specification of the packed copy.
    """

    function: str
    position: int
    spec: ParamSpec


@dataclass(frozen=True, slots=True)
class Code:
    """One compiled function, ready to load.

    Attributes:
        function: its symbol in the object.
        data: object bytes.
        packs: arguments that are passed packed.
        sizes: values of the sizes of a function with dynamic shapes, which calls pass after the tensors.
    """

    function: str
    data: bytes
    packs: tuple[Pack, ...] = ()
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Artifact:
    """Compiled functions for one target.

    Attributes:
        data: relocatable object bytes.
        functions: names of the compiled functions.  Functions that pack constants also have a packed form, see `code`.
        target: the identity of the target, as JSON, and its host if one was given.
        facts: measurements of the compiler, for records (sizes, times in seconds).
        packed: packed forms by function name: the symbol, and the packs that make the copies.
        sizes: see `Code`; for artifacts of one function with dynamic shapes that is called with these sizes only.
        source: the text that was compiled, for people: for C, that of the kernels.
    """

    data: bytes
    functions: tuple[str, ...]
    target: dict[str, Any]
    facts: dict[str, float] = field(default_factory=dict)
    packed: dict[str, tuple[str, tuple[Pack, ...]]] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    source: str = ""

    def code(self, function: str | None = None) -> Code:
        """One function, by default the first, for repeated calls with the same constants: its packed form if there is one."""
        name = self.functions[0] if function is None else function
        form, packs = self.packed.get(name, (name, ()))
        return Code(form, self.data, packs, self.sizes)
