"""Translate targets to LLVM options, and check that code for a target can run on this machine.

Options depend only on the target, so that equal inputs give equal bytes on every machine; the host is queried only to refuse code that
would fail here with an illegal instruction.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from platform import machine as this_machine

import llvmlite.binding as llvm

from tunesmith.ir.target.architectures import architecture
from tunesmith.ir.target.detect import detect_host
from tunesmith.ir.target.target import Target
from tunesmith.runtime.generic_code import generic_features, generic_triple
from tunesmith.support.errors import BuildError


@dataclass(frozen=True, slots=True)
class LlvmOptions:
    """Arguments of `create_target_machine`: triple, CPU, feature flags (`+a,-b`)."""

    triple: str
    cpu: str
    features: str


def llvm_options(target: Target) -> LlvmOptions:
    """LLVM options of a target; independent of the machine, because `native` was resolved when the target was made."""
    # LLVM applies flags one after the other: a flag that adds a feature after its implied features are removed would add these again.
    flags = sorted(filter(None, target.mattr.split(",")), key=lambda flag: flag[0] == "-")
    if "-neon" in flags:  # LLVM keeps SVE without NEON, and then aborts on vectors of constant length
        flags.append("-sve")
    if architecture(target.mtriple) == "riscv64":  # its generic processor has no instruction set but the integers
        flags = [*[f"+{name}" for name in sorted(target.features)], *flags]
    return LlvmOptions(target.mtriple, target.mcpu, ",".join(flags))


def generic_options(machine: str | None = None) -> LlvmOptions:
    """LLVM options of the generic CPU of a machine, named as in `platform.machine()`; of this one by default."""
    return LlvmOptions(generic_triple(machine), "", generic_features(machine or this_machine()))


@cache
def host_cpu_name() -> str:
    """LLVM's name of this CPU; under a hypervisor that reports a false model it can differ from `Target.detect().mcpu`."""
    return str(llvm.get_host_cpu_name())


@cache
def host_features() -> frozenset[str]:
    """The CPU features that LLVM detects on this machine."""
    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


def missing_features(target: Target) -> list[str]:
    """CPU features that code for `target` may use and this machine lacks, sorted."""
    return sorted(target.features - host_features())


def check_runs_here(target: Target) -> None:
    """Refuse a target whose code cannot run in this process.

    Raises:
        BuildError: the target has another architecture, or CPU features that this machine lacks.
    """
    host = detect_host()
    arch = architecture(target.mtriple)
    if arch != host.arch:
        raise BuildError(
            f"code for {target} cannot run here: it is {arch}, this machine is {host.arch}. Run it on its machine, or use Target.detect(). "
            'Candidates are measured where they run: tune on that machine, or with Ray workers on such machines (workers="ray"); compiling '
            "with the log needs no such machine."
        )
    missing = missing_features(target)
    if missing:
        raise BuildError(
            f"code for {target} cannot run here: this {host.model_name} ({host.mcpu}) lacks {', '.join(missing)}. "
            "Run it on its machine, or use Target.detect()."
        )
