"""Words for what a target is, from the specific to the general, as in TVM: `("arm_cpu", "cpu")`, `("cuda", "gpu")`."""

from __future__ import annotations

from collections.abc import Mapping

from tunesmith.ir.target.architectures import architecture
from tunesmith.ir.target.attributes import CPU_KINDS, KINDS, TARGET_KINDS, Value, base_kind

_OF_ARCHITECTURE = {"x86_64": "x86", "aarch64": "arm_cpu", "riscv64": "riscv_cpu"}


def keys_of(kind: str, given: tuple[str, ...], values: Mapping[str, Value]) -> tuple[str, ...]:
    """The keys of a target without repetitions.

    Args:
        kind: a known kind.
        given: keys of the user, which come first.
        values: all attributes.
    """
    base = base_kind(kind)
    known = list(() if kind in KINDS else TARGET_KINDS.get(kind).keys)
    if base in CPU_KINDS:
        known += [_OF_ARCHITECTURE[architecture(str(values["mtriple"]))], "cpu"]
    elif base in KINDS:
        known += [base, "gpu"]
    return tuple(dict.fromkeys([*[word for word in given if word not in known], *known]))
