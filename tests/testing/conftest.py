"""Fixtures of the tests of emulated AMX: code from LLVM IR and from assembly, and the end of forked processes."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import traceback
import warnings
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np
import pytest

from tunesmith.runtime.processor import EMULATED
from tunesmith.testing import amx_emulator
from tunesmith.testing.amx_emulator import Counts

Functions = Callable[[str], Callable[..., None]]
FEATURES = "+amx-tile,+amx-bf16,+amx-int8,+amx-fp16"


@pytest.fixture
def emulator(amx: Counts) -> Counts:
    """AMX instructions are emulated."""
    if not amx.emulated:
        pytest.skip("the processor has AMX")
    return amx


@pytest.fixture(scope="session")
def compiled() -> Callable[[str], Functions]:
    return compile_ir


@pytest.fixture(scope="session")
def assembly() -> Callable[..., Functions]:
    return assemble


@pytest.fixture(scope="session")
def end_of() -> Callable[[Callable[[], None]], tuple[int, str]]:
    return end_of_fork


def compile_ir(text: str) -> Functions:
    """The functions of a module of LLVM IR, by name.  Arguments are addresses and integers; attribute group #0 has AMX."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    machine = llvm.Target.from_default_triple().create_target_machine(features=FEATURES)
    module = llvm.parse_assembly(f'{text}\nattributes #0 = {{ "target-features"="{FEATURES}" }}\n')
    module.verify()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()

    def find(name: str) -> Callable[..., None]:
        pointer = ctypes.CFUNCTYPE(None)(engine.get_function_address(name))

        def call(*arguments: int | np.ndarray) -> None:
            pointer(*(ctypes.c_int64(x) if isinstance(x, int) else ctypes.c_void_p(x.ctypes.data) for x in arguments))

        call.engine = engine  # type: ignore[attr-defined]  # it owns the code
        return call

    return find


def assemble(**functions: str) -> Functions:
    """Functions of assembly lines, which find their arguments in rdi, rsi, rdx, rcx and may change every register but rsp."""
    saved = ("rbx", "rbp", "r12", "r13", "r14", "r15")
    first, last = [f"push %{r}" for r in saved], [f"pop %{r}" for r in reversed(saved)]
    text = ""
    for name, body in functions.items():
        lines = r"\0A".join([*first, *body.strip().split("\n"), *last, "ret"])
        text += f'define void @{name}() naked noinline #0 {{\n  call void asm sideeffect "{lines}", ""()\n  unreachable\n}}\n'
    return compile_ir(text)


def end_of_fork(call: Callable[[], None]) -> tuple[int, str]:
    """The signal that ends a forked process which makes the call, 0 if none does, and its stderr.

    AssertionError if the call raises.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads: the child runs only compiled code
        child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.dup2(writer, 2)
            # Below the emulator, in place of handlers that print tracebacks.
            signal.signal(signal.SIGILL, signal.SIG_DFL)
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            if EMULATED:
                amx_emulator._library().amx_emulator_install()
            call()
            os._exit(0)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(99)  # the child runs no more tests
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code <= 0, text
    return -code, text
