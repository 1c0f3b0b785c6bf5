"""Objects whose sections end just below a page are loaded: LLVM's linker aborts the process if it reserves too little for them."""

from __future__ import annotations

import subprocess
import sys

SWEEP = """
import llvmlite.binding as llvm
from tunesmith.runtime import object_loader
from tunesmith.runtime.object_loader import load_object

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="small")
if PLAIN:
    object_loader.with_aligned_sections = lambda data: data
for size in range(4000, 4100, 4):
    text = 'target triple = "%s"\\n' % llvm.get_default_triple()
    text += "@table = constant [%d x i8] zeroinitializer, align 1\\n" % (8192 - 32 - size % 64)
    for name in "fgh":
        skipped = size if name == "f" else 5
        text += 'define i32 @%s(i32 %%x) { call void asm sideeffect ".skip %d", ""()\\n ret i32 %%x }\\n' % (name, skipped)
    for k in range(40):
        text += 'define i32 @s%d(i32 %%x) section ".text.s%d" align 64 { ret i32 %%x }\\n' % (k, k)
    loaded = load_object(machine.emit_object(llvm.parse_assembly(text)))
    assert loaded.address("s39") % 64 == 0
    loaded.close()
print("all")
"""


def sweep(plain: bool) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", SWEEP.replace("PLAIN", str(plain))], capture_output=True, text=True, check=False)


def test_sections_near_the_end_of_a_page_are_loaded() -> None:
    done = sweep(plain=False)
    assert done.returncode == 0 and done.stdout == "all\n", done.stderr


def test_without_alignment_the_linker_aborts() -> None:
    done = sweep(plain=True)
    assert done.returncode != 0 and "pre-allocated" in done.stderr
