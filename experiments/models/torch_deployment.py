"""Deploy a model from a log to a C program: `python experiments/models/torch_deployment.py MODEL --log LOG`.

Two new processes compile the model ahead of time with the log, without a search; their libraries must have equal bytes.  A C program
calls the library; its output must match torch's within 1e-4 of the largest element, and the output from Python exactly.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from tunesmith.runtime.module import load_module
from tunesmith.testing.torch_models import get

LIMIT = 1e-4

COMPILE = """
import sys
import time
import tunesmith
from tunesmith.graph.importers.torch.importer import from_torch
from tunesmith.testing.torch_models import get

name, log, folder = sys.argv[1:]
model, inputs = get(name, size="full")
module = from_torch(model, inputs)
start = time.perf_counter()
made = tunesmith.compile(module, records=log, executor="aot", name="model")
compiled = time.perf_counter() - start
made.export_library(f"{folder}/libmodel.so", header=f"{folder}/model.h")
used = f'{sum(c.status == "used" for c in made.coverage)} of {len(made.coverage)} functions from records'
print(f"compiled in {compiled:.1f} s, exported after {time.perf_counter() - start:.1f} s, {used}")
"""

MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include "model.h"

static void *file(const char *path, const char *mode, void *data, size_t size)
{
    FILE *f = fopen(path, mode);
    if (f == NULL || (mode[0] == 'r' ? fread(data, 1, size, f) : fwrite(data, 1, size, f)) != size) exit(2);
    fclose(f);
    return data;
}

int main(void)
{
    static char arrays[INPUTS][BYTES], results[BYTES];
    struct model_inputs inputs;
    struct model_outputs outputs;
    const void **in = (const void **)&inputs;
    void **out = (void **)&outputs;
    size_t sizes[INPUTS] = {SIZES};
    int i;
    for (i = 0; i < INPUTS; i++) {
        char path[32];
        snprintf(path, sizeof path, "input%d", i);
        in[i] = file(path, "rb", arrays[i], sizes[i]);
    }
    out[0] = results;
    if (model_signature() != MODEL_SIGNATURE || model_run(&inputs, &outputs, NULL) != MODEL_OK) return 1;
    file("output", "wb", results, RESULT);
    return 0;
}
"""


def main() -> None:
    """Compile twice and compare the libraries, then run from C and compare the outputs."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("model")
    arguments.add_argument("--log", required=True)
    given = arguments.parse_args()
    model, inputs = get(given.model, size="full")
    with torch.no_grad():
        (expected, *more) = results if isinstance(results := model(*inputs), tuple) else (results,)
    if more:
        raise SystemExit("the C program supports models with one result only")
    with tempfile.TemporaryDirectory() as root:
        folders = [Path(root, name) for name in ("first", "second")]
        for folder in folders:
            folder.mkdir()
            done = subprocess.run(
                [sys.executable, "-c", COMPILE, given.model, given.log, folder], capture_output=True, text=True, check=True
            )
            library = (folder / "libmodel.so").read_bytes()
            print(
                f"{done.stdout.strip()}; library of {len(library):,} bytes, sha256 {hashlib.sha256(library).hexdigest()[:16]}", flush=True
            )
        first, second = [(f / "libmodel.so").read_bytes() for f in folders]
        assert first == second, "the libraries differ"
        got = run_c(folders[0], [x.numpy() for x in inputs], expected.numpy())
        again = np.asarray(load_module(folders[0] / "libmodel.so")(*[x.numpy() for x in inputs]))
        error = float(np.abs(got - expected.numpy()).max() / np.abs(expected.numpy()).max())
        print(f"from C: {error:.1e} of torch's largest element; equal bytes from Python: {np.array_equal(got, again)}")
        raise SystemExit(not (error <= LIMIT and np.array_equal(got, again)))


def run_c(folder: Path, inputs: list[np.ndarray], like: np.ndarray) -> np.ndarray:
    """The output of the C program for these inputs."""
    for i, array in enumerate(inputs):
        array.tofile(folder / f"input{i}")
    (folder / "main.c").write_text(MAIN)
    most = max(a.nbytes for a in (*inputs, like))
    sizes = ", ".join(str(a.nbytes) for a in inputs)
    facts = {"INPUTS": len(inputs), "BYTES": most, "SIZES": sizes, "RESULT": like.nbytes}
    words = [
        "cc",
        "-O1",
        "main.c",
        "-o",
        "main",
        "libmodel.so",
        "-Wl,-rpath,$ORIGIN",
        *[f"-D{name}={value}" for name, value in facts.items()],
    ]
    subprocess.run(words, cwd=folder, check=True)
    subprocess.run([folder / "main"], cwd=folder, env={}, check=True)
    return np.fromfile(folder / "output", like.dtype).reshape(like.shape)


if __name__ == "__main__":
    main()
