"""Objects with any number of calls of other libraries are loaded, although LLVM's linker reserves nothing for their stubs."""

from __future__ import annotations

import subprocess
import sys

SWEEP = """
import ctypes
import llvmlite.binding as llvm
from tunesmith.runtime import object_loader
from tunesmith.runtime.object_loader import load_object

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="small")
if PLAIN:
    object_loader.with_space_for_stubs = lambda data: data
for calls in [1, 2, 5, 20, 50, *range(170, 420, 3)]:
    body = "".join("%%r%d = call i64 @labs(i64 %%r%d)\\n" % (k + 1, k) for k in range(calls))
    text = 'target triple = "%s"\\n' % llvm.get_default_triple()
    if calls % 2:
        text += "@table = constant [%d x ptr] [%s]\\n" % (calls + 339, ", ".join(["ptr @g"] * (calls + 339)))
    text += "declare i64 @labs(i64)\\ndefine i64 @g(i64 %%r0) {\\n%s ret i64 %%r%d\\n}\\n" % (body, calls)
    loaded = load_object(machine.emit_object(llvm.parse_assembly(text)))
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(loaded.address("g"))(-3) == 3
    loaded.close()
print("all")
"""


def sweep(plain: bool) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", SWEEP.replace("PLAIN", str(plain))], capture_output=True, text=True, check=False)


def test_objects_with_any_number_of_stubs_are_loaded() -> None:
    done = sweep(plain=False)
    assert done.returncode == 0 and done.stdout == "all\n", done.stderr


def test_without_more_space_the_linker_aborts() -> None:
    done = sweep(plain=True)
    assert done.returncode != 0 and "pre-allocated" in done.stderr
