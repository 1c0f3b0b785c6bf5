"""Compile a model ahead of time, export it with a C header, and call it from a C program without Python.

The model is built by hand, so that only tunesmith is needed; `tunesmith.from_torch` and `tunesmith.from_onnx` give the same kind of module.
The C program is `main.c` beside this file.  It is compiled with the system's C compiler, or with that of the package `ziglang`.

    python examples/model_to_c/export.py [FOLDER]
"""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

import tunesmith
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.ir.function import IRModule

PIXELS, HIDDEN, CLASSES = 64, 32, 4
MAIN_C = Path(__file__).resolve().with_name("main.c")


def weights():
    """The parameters of the model; a real one would be trained."""
    rng = np.random.default_rng(0)
    shapes = (PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,)
    return [(rng.standard_normal(shape) / 8).astype(np.float32) for shape in shapes]


def classifier():
    """Two dense layers and a softmax."""
    b = GraphBuilder("main")
    w0, b0, w1, b1 = [b.constant(w) for w in weights()]
    image = b.input("image", (1, PIXELS))
    hidden = b.relu(b.add(b.matmul(image, w0), b0))
    return IRModule({"main": b.finish(b.softmax(b.add(b.matmul(hidden, w1), b1), axis=1))})


def reference(image):
    """The same in numpy."""
    w0, b0, w1, b1 = weights()
    scores = np.maximum(image @ w0 + b0, 0) @ w1 + b1
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def c_compiler():
    """The command of a C compiler, or None."""
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    return [sys.executable, "-m", "ziglang", "cc"] if importlib.util.find_spec("ziglang") else None


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "net_library")
    folder.mkdir(parents=True, exist_ok=True)

    # executor="aot" compiles the whole model into one C function; `name` is the prefix of its functions and types.
    # With records="log.jsonl" of `tunesmith.tune(model, ...)` it has tuned kernels.
    model = tunesmith.compile(classifier(), executor="aot", name="net")
    library = model.export_library(folder / "libnet.so", header=folder / "net.h")
    print(f"wrote {library} and net.h, which declares:")
    print("\n".join(line for line in (folder / "net.h").read_text().splitlines() if line.startswith("int32_t")))

    # The input that main.c makes, too.
    image = (np.arange(PIXELS, dtype=np.float32) / PIXELS)[None]
    expected = reference(image)
    np.testing.assert_allclose(model(image), expected, rtol=1e-5)
    # The same file is loaded from Python.
    np.testing.assert_array_equal(tunesmith.load_module(library)(image), model(image))

    compiler = c_compiler()
    if compiler is None:
        print("there is no C compiler: main.c is not built.  Install one, or the package ziglang")
        return
    # The working directory is `folder`; `$ORIGIN` makes the program look for libnet.so in its own folder.
    command = [*compiler, "-O2", "-Wall", "-I.", str(MAIN_C), "-L.", "-lnet", "-Wl,-rpath,$ORIGIN", "-o", "classify"]
    print(" ".join(command).replace(str(MAIN_C), MAIN_C.name))
    subprocess.run(command, cwd=folder, check=True)
    printed = subprocess.run([str((folder / "classify").resolve())], check=True, capture_output=True, text=True).stdout
    print(printed, end="")
    np.testing.assert_allclose([float(line.split()[-1]) for line in printed.splitlines()], expected[0], rtol=1e-4)
    print("main.c: equal to numpy")


if __name__ == "__main__":
    main()
