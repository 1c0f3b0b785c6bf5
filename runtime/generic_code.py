"""Compile LLVM IR for the generic processor of a machine: argument checks, entry points and stubs, which every such processor runs."""

from __future__ import annotations

import platform

import llvmlite.binding as llvm

from tunesmith.runtime.c_abi import with_extensions
from tunesmith.runtime.elf_symbols import MACHINES
from tunesmith.support.errors import BuildError

_FEATURES = {"riscv64": "+m,+a,+f,+d,+c"}
"""Instruction sets of the generic processor that LLVM does not assume, by machine: those of a Linux distribution, which set the ABI."""


def generic_features(machine: str) -> str:
    """LLVM's flags of the instruction sets of the generic processor."""
    return _FEATURES.get(machine, "")


def generic_triple(machine: str | None = None) -> str:
    """The triple of a machine, named as in `platform.machine()`; of this one by default.

    Raises:
        BuildError: no code is generated for this machine.
    """
    if machine is None or machine == platform.machine():
        return str(llvm.get_default_triple())
    if machine not in MACHINES.values():
        raise BuildError(f"no code is generated for the machine {machine}. There are: {', '.join(MACHINES.values())}")
    return f"{machine}-unknown-linux-gnu"


def generic_object(text: str, machine: str | None = None, opt: int = 2) -> bytes:
    """A position-independent object.

    Args:
        text: a module in LLVM IR.
        machine: name of the machine as in `platform.machine()`; this one by default.
        opt: optimization level of code generation, from 0 to 3.
    Raises:
        BuildError: no code is generated for this machine.
    """
    triple = generic_triple(machine)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    features = generic_features(machine or platform.machine())
    target = llvm.Target.from_triple(triple).create_target_machine(features=features, opt=opt, reloc="pic", codemodel="small")
    return bytes(target.emit_object(llvm.parse_assembly(with_extensions(text, triple))))
