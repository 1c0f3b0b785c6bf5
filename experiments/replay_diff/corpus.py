"""Generate the corpus of the replay diff: all compiler outputs for a fixed set of programs, as named texts and bytes.

Four parts: the best of a seeded draw of every sketch of every suite workload, for two processors and two GPU languages; programs of the
fuzzer; the scripts of the golden files; and small torch models for all executors.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tunesmith.codegen.backends.backend import backend_of
from tunesmith.datasets.suites import SUITES
from tunesmith.driver.compile import compile
from tunesmith.graph.importers.torch.importer import from_torch
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.printer import script
from tunesmith.ir.structural import digest
from tunesmith.ir.target.target import Target
from tunesmith.ops.workload import workload
from tunesmith.search.analytic_schedule import analytic_schedule
from tunesmith.search.samplers.proposal_generator import ProposalGenerator
from tunesmith.search.task import Task
from tunesmith.support.errors import TunesmithError
from tunesmith.support.seeds import stream
from tunesmith.testing.program_fuzz.generate import generate
from tunesmith.testing.program_fuzz.render import render
from tunesmith.testing.torch_models import get

TARGETS = (
    "llvm -mcpu=znver4 -num-cores=2",
    "llvm -mcpu=sapphirerapids -num-cores=8",
    "nvidia/h200",
    "opencl -num-cores=2",
)
SMALL_TARGET = "llvm -mcpu=x86-64-v3 -num-cores=2"
MODELS = ("resnet18", "mobilenet_v2", "unet", "bert_base", "gpt_prefill", "gpt_decode_cat")
DRAWN = 256
FUZZ_SEEDS = 200

Artefacts = dict[str, str | bytes]
"""Outputs of one item, by name."""
Item = tuple[str, Callable[[], Iterator[tuple[str, Artefacts]]]]
"""A key, and a generator of artefacts, each with a sub-key."""


def items(golden: Path) -> Iterator[Item]:
    """All items, in a fixed order.  `golden` is the folder of golden files."""
    workloads = sorted({w for name in SUITES.names() for w in SUITES.get(name)})
    for target in TARGETS:
        for w in workloads:
            yield f"{target} | {w}", lambda w=w, target=target: _sketches(w, Target(target))
    for seed in range(FUZZ_SEEDS):
        yield f"fuzz | {seed}", lambda seed=seed: _fuzzed(seed)
    for path in sorted(golden.rglob("*.txt")):
        if path.is_file():
            yield f"golden | {path.relative_to(golden).as_posix()}", lambda path=path: _golden(path.read_text(encoding="utf-8"))
    for name in MODELS:
        for executor in ("vm",) if name == "gpt_decode_cat" else ("graph", "vm", "aot"):
            yield f"model | {name} | {executor}", lambda name=name, executor=executor: _model(name, executor)


def _sketches(text: str, target: Target) -> Iterator[tuple[str, Artefacts]]:
    made = workload(text)
    task = Task(text, made.func, target)
    yield "task", {"digest": task.digest, "script": script(made.func), "left_out": "\n".join(task.space.left_out)}
    proposals = ProposalGenerator(task)
    drawn = proposals.draw(DRAWN * len(task.space.sketches), stream(0, "replay-diff", text))
    best = {c.sketch: (value, c) for value, c in reversed(drawn.best(len(drawn)))}
    for k, sketch in enumerate(task.space.sketches):
        out: Artefacts = {
            "trace": json.dumps(sketch.trace.to_json()),
            "constraints": "\n".join(c.label for c in sketch.constraints),
            "params": "\n".join(f"{p.name} {list(p.domain)}" for p in sketch.params),
            "size": str(sketch.space.size()),
        }
        if k in best:
            value, candidate = best[k]
            program = sketch.concretize(candidate.row)
            out |= {
                "row": str(candidate.row),
                "analytic": repr(float(value)),
                "replayed": json.dumps(sketch.trace_of(candidate.row).to_json()),
            }
            out |= _compiled(program, target)
        yield sketch.name, out
    if target.is_cpu:
        yield "untuned", {"script": script(analytic_schedule(made.func, target))}


def _compiled(program: PrimFunc, target: Target) -> Artefacts:
    """A program as script, lowered, and as source; or the refusal."""
    out: Artefacts = {"script": script(program)}
    try:
        backend = backend_of(target)
        out["lowered"] = script(backend.pipeline(program, target))
        out["source"] = backend.source([program], target)
    except TunesmithError as error:
        out["refused"] = type(error).__name__
    return out


def _fuzzed(seed: int) -> Iterator[tuple[str, Artefacts]]:
    found = generate(seed)
    if found is not None:
        yield from _parsed(render(found.program))


def _golden(text: str) -> Iterator[tuple[str, Artefacts]]:
    yield from _parsed(text)


def _parsed(text: str) -> Iterator[tuple[str, Artefacts]]:
    try:
        parsed = parse(text)
    except TunesmithError as error:
        yield "parsed", {"refused": type(error).__name__}
        return
    functions = parsed.values() if isinstance(parsed, IRModule) else [parsed]
    for f in functions:
        if isinstance(f, PrimFunc):
            yield f"{f.name} cpu", {"digest": digest(f), **_compiled(f, Target(SMALL_TARGET))}
            yield f"{f.name} gpu", _compiled(f, Target("nvidia/h200"))


def _model(name: str, executor: str) -> Iterator[tuple[str, Artefacts]]:
    model, inputs = get(name)
    made = compile(from_torch(model, inputs), Target(SMALL_TARGET), executor=executor)
    for g, f in made.module.items():
        if isinstance(f, PrimFunc):
            yield g, {"script": script(f), "digest": digest(f)}
    with tempfile.TemporaryDirectory() as folder:
        path = made.export_library(Path(folder) / "model.so")
        yield "library", {"bytes": path.read_bytes()}
