"""Compile LLVM IR text to object code or assembly.

The input is vectorised, unrolled and has reduced addresses, so the pipeline is `sroa` alone, with loop strength reduction off: the
same speed as O3 in a tenth of the compile time (docs/design/002-llvm.md).
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from tunesmith.codegen.llvm.host import LlvmOptions
from tunesmith.runtime.c_abi import with_extensions
from tunesmith.runtime.threads import load_openmp
from tunesmith.support.errors import BuildError, InternalError


@cache
def _start() -> None:
    load_openmp()  # before LLVM can load it: see runtime/threads.py
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.set_option("tunesmith", "-disable-lsr")
    disable_antidependency_breaking()


@cache
def disable_antidependency_breaking() -> None:
    """Disable LLVM's anti-dependency breaking after register allocation, for this process.

    That pass renames registers, and does not see that physical tile registers are live across iterations of a loop.  Processors rename
    registers themselves.
    """
    llvm.set_option("tunesmith", "-break-anti-dependencies=none")


@cache
def _machine(options: LlvmOptions) -> Any:
    _start()
    target = llvm.Target.from_triple(options.triple)
    return target.create_target_machine(cpu=options.cpu, features=options.features, opt=2, reloc="pic", codemodel="small")


def _check_half(text: str, options: LlvmOptions) -> None:
    """Refuse float16 on RISC-V processors without conversions: LLVM would call functions that libraries of Linux do not have."""
    if options.triple.startswith("riscv") and "zfh" not in options.features and _HALF.search(text):
        raise BuildError(
            f"float16 needs instructions that {options.cpu} lacks: compute in float32, or add -mattr=+zfhmin if the processor has them"
        )


_HALF = re.compile(r"^[^;\n]*\bhalf\b", re.MULTILINE)
"""The type in a line, but for its comment."""


def _optimised(text: str, options: LlvmOptions) -> tuple[Any, Any]:
    _check_half(text, options)
    machine = _machine(options)
    try:
        module = llvm.parse_assembly(with_extensions(text, options.triple))
    except RuntimeError as e:
        raise InternalError(f"generated LLVM IR does not parse: {e}\n{text[:4000]}") from None
    module.triple = options.triple
    module.data_layout = str(machine.target_data)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=0))
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.run(module, builder)
    return module, machine


def compile_object(text: str, options: LlvmOptions) -> bytes:
    """Relocatable object bytes of a module.

    Args:
        text: LLVM IR.
        options: triple, cpu and features, from `codegen.llvm.host.llvm_options(target)`.
    Raises:
        BuildError: float16 on a RISC-V processor without it.
        InternalError: the text is not valid IR.
    """
    module, machine = _optimised(text, options)
    return bytes(machine.emit_object(module))


def compile_assembly(text: str, options: LlvmOptions) -> str:
    """The assembly that `compile_object` would encode, for display."""
    module, machine = _optimised(text, options)
    return str(machine.emit_assembly(module))
