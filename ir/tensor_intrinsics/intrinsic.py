"""Declare tensor intrinsics: pairs of a description, which is a loop nest, and an implementation, which is an instruction.

`tensorize` marks a nest that equals the description.  The mark changes nothing in the meaning of the program: the interpreter, the features
and every check see the loops.  Lowering replaces them by the implementation (source: TVM's tensor intrinsics, Exo's instructions).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Poly
from tunesmith.ir.script.parser import parse
from tunesmith.ir.stmt import Stmt
from tunesmith.support.errors import UserError
from tunesmith.support.registry import Registry, instance_of


@dataclass(frozen=True, slots=True)
class Operand:
    """A buffer of a lowered program that an implementation reads or writes.

    Attributes:
        buffer: one-dimensional.
        index: its element at the first iteration of the nest.
        sizes: the values of the sizes in the description's shape of this buffer, by name: distances between rows.
    """

    buffer: Buffer
    index: Poly
    sizes: Mapping[str, Poly]


Implementation = Callable[[Mapping[str, Operand], "Poly | None"], Stmt]
"""Makes the statement that replaces the nest, from the operands by the names of the description's buffers, and the number of leading
iterations of the outermost loop that run: None for all."""


@dataclass(frozen=True)
class TensorIntrinsic:
    """An instruction, or a short sequence of them.

    Attributes:
        name: as records and scripts spell it: the instruction set, a dot, and the instruction.
        description: script text of a function with one loop nest around one block.  Its loops have constant extents; their order is that of
            the nests that it matches.  Sizes may occur in shapes: they match any distance between rows.
        implementation: see `Implementation`.
        features: the target must have all features of one of these sets, as LLVM spells them.
        instruction: the instruction that limits the rate, as `Target.tensor_rates` spells it; empty if the rate is not known.
        slots: its time in multiply-adds of a vector, if the target has no rate for it.
        latency: of a chain of them, in the same unit; 0 if it is that of a multiply-add.
        masked: the implementation accepts a number of leading iterations.  Otherwise loops execute partial tiles.
    Raises:
        UserError: a name without instruction set, or features of another form.  The description is checked when it is used first.
    """

    name: str
    description: str
    implementation: Implementation
    features: tuple[frozenset[str], ...]
    instruction: str = ""
    slots: float = 1.0
    latency: float = 0.0
    masked: bool = False

    def __post_init__(self) -> None:
        if "." not in self.name:
            raise UserError(f"the tensor intrinsic {self.name!r} needs the name of its instruction set in front, such as x86.{self.name}")
        if not isinstance(self.features, tuple) or not self.features or not all(isinstance(f, frozenset) for f in self.features):
            raise UserError(
                f"the tensor intrinsic {self.name}: features={self.features!r} is not a tuple of frozensets, of which the target must have "
                "one. Spell it (frozenset({'avx512f'}),), or (frozenset(),) for every target"
            )

    @cached_property
    def function(self) -> PrimFunc:
        """The description.  UserError if it is not a single function."""
        found = parse(self.description)
        if not isinstance(found, PrimFunc):
            raise UserError(f"the description of the tensor intrinsic {self.name} must be a single function")
        return found

    def is_available(self, features: frozenset[str]) -> bool:
        """Whether a target with these features has the instruction."""
        return any(needed <= features for needed in self.features)

    @property
    def needed(self) -> str:
        """The features as text: `avx512vnni or avxvnni`."""
        return " or ".join(["+".join(sorted(f)) for f in self.features])


_X86 = [f"{name}.{bits}" for name in ("vpdpbusd", "vpdpbusd_s8s8", "vdpbf16ps") for bits in (512, 256, 128)]
_AMX = [
    "tdpbf16ps",
    *[f"tdpb{signs}d" for signs in ("ss", "su", "us", "uu")],
    *[f"{name}.{suffix}" for name in ("tilezero", "tileload", "tilestore") for suffix in ("f32", "s32")],
]
TENSOR_INTRINSICS: Registry[TensorIntrinsic] = Registry(
    "tensor intrinsic",
    {
        f"x86.{name}": f"tunesmith.ir.tensor_intrinsics.{module}:{name.upper().replace('.', '_')}"
        for module, names in (("x86", _X86), ("amx", _AMX))
        for name in names
    },
    contract=instance_of(TensorIntrinsic),
)
"""All tensor intrinsics by name.  Other distributions register their own."""
