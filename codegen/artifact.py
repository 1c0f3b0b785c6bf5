"""What compiling gives: object bytes and what they are, the only thing a builder ships."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tunesmith.runtime.checker.param_spec import ParamSpec


@dataclass(frozen=True, slots=True)
class Pack:
    """A constant argument that a function takes in another layout.

    Attributes:
        function: makes the packed copy: called with the constant and the copy.
        position: of the argument.
        spec: of the packed copy.
    """

    function: str
    position: int
    spec: ParamSpec


@dataclass(frozen=True, slots=True)
class Code:
    """One function ready to be loaded.

    Attributes:
        function: its name in the object.
        data: object bytes.
        packs: arguments that it takes packed.
    """

    function: str
    data: bytes
    packs: tuple[Pack, ...] = ()


@dataclass(frozen=True, slots=True)
class Artifact:
    """Compiled functions for one target.

    Attributes:
        data: relocatable object bytes.
        functions: names of the functions that were compiled.  Those that pack constants may have other forms beside them: `code`.
        target: the target, as JSON.
        facts: what the compiler measured, for records (sizes, times in seconds).
        packed: forms that take constants packed, by name of the function: their names, and what makes the packed copies.
    """

    data: bytes
    functions: tuple[str, ...]
    target: dict[str, Any]
    facts: dict[str, float] = field(default_factory=dict)
    packed: dict[str, tuple[str, tuple[Pack, ...]]] = field(default_factory=dict)

    def code(self, function: str | None = None) -> Code:
        """One function, by default the first, for calls with the same constants: in its packed form where there is one."""
        name = self.functions[0] if function is None else function
        form, packs = self.packed.get(name, (name, ()))
        return Code(form, self.data, packs)
