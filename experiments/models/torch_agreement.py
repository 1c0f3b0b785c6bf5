"""Compare models with torch's results: `python experiments/models/torch_agreement.py [MODEL...] [--log LOG] [--json OUT]`.

Each model is imported from torch and from the ONNX file that torch writes, and run by every executor; with a log also with its records.
The language model is also imported with a dynamic length, for the virtual machine.  Prints the largest difference relative to the largest
element, over all results.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tunesmith
from tunesmith.graph.importers.onnx.importer import from_onnx
from tunesmith.graph.importers.torch.importer import from_torch
from tunesmith.ir.function import IRModule
from tunesmith.support.errors import TunesmithError
from tunesmith.testing.torch_models import get

MODELS = ("resnet18", "resnet50", "mobilenet_v2", "bert_base", "gpt_prefill")
EXECUTORS = ("graph", "vm", "aot")
LENGTHS = (17, 128, 200)
LIMIT = 1e-4


def main() -> None:
    """Print a line for each way to run a model; fails if one is wrong."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("models", nargs="*", default=MODELS)
    arguments.add_argument("--log", type=Path)
    arguments.add_argument("--only-tuned", action="store_true", help="with a log, skip the runs without records")
    arguments.add_argument("--json", type=Path)
    given = arguments.parse_args()
    found = [line for name in given.models for line in lines(name, given.log, given.only_tuned)]
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    wrong = [line for line in found if not line["error"] <= LIMIT]
    print(f"{len(found) - len(wrong)} of {len(found)} within {LIMIT:g}")
    raise SystemExit(bool(wrong))


def lines(name: str, log: Path | None, only_tuned: bool) -> Iterator[dict[str, Any]]:
    """Results of one model."""
    model, inputs = get(name, size="full")
    for source, module in sources(model, inputs, None):
        for records in [log] if only_tuned else [None, log] if log else [None]:
            for executor in EXECUTORS:
                yield checked(name, source, module, executor, records, model, [inputs])
    if name == "gpt_prefill" and not only_tuned:
        length = torch.export.Dim("length", min=2, max=256)
        calls = [(inputs[0][:, :1].expand(1, n).contiguous(), torch.arange(n)) for n in LENGTHS]
        for source, module in sources(model, inputs, ({1: length}, {0: length})):
            yield checked(name, f"{source}, dynamic", module, "vm", None, model, calls)


def sources(model: Any, inputs: Sequence[Any], dynamic: Any) -> Iterator[tuple[str, IRModule]]:
    """The model from each importer."""
    yield "torch", from_torch(model, tuple(inputs), dynamic)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, "model.onnx")
        torch.onnx.export(model, tuple(inputs), path, dynamo=True, external_data=False, dynamic_shapes=dynamic, verbose=False)
        yield "onnx", from_onnx(path)


def checked(
    name: str, source: str, module: IRModule, executor: str, log: Path | None, model: Callable[..., Any], calls: Sequence[Sequence[Any]]
) -> dict[str, Any]:
    """Compile, run and compare one model."""
    start = time.perf_counter()
    error, note = float("nan"), ""
    try:
        compiled = tunesmith.compile(module, records=log, executor=executor)
        made = time.perf_counter() - start
        error = max(difference(compiled(*[x.numpy() for x in inputs]), model(*inputs)) for inputs in calls)
        used = sum(c.status == "used" for c in compiled.coverage)
        note = f"compiled in {made:.1f} s, {used} of {len(compiled.coverage)} functions from records"
    except TunesmithError as problem:
        note = str(problem)
    print(f"{name:14s} {source:15s} {executor:6s} {'tuned' if log else 'untuned':8s} {error:.1e}   {note}", flush=True)
    return {"model": name, "source": source, "executor": executor, "tuned": log is not None, "error": error, "note": note}


def difference(got: Any, expected: Any) -> float:
    """The largest difference relative to the largest element, of the worst result."""
    pairs = zip(as_tuple(got), as_tuple(expected), strict=True)
    return max(float(np.abs(np.asarray(g) - w.numpy()).max() / np.abs(w.numpy()).max()) for g, w in pairs)


def as_tuple(results: Any) -> tuple[Any, ...]:
    """The results of a call as a tuple."""
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


if __name__ == "__main__":
    main()
