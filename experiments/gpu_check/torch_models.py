"""Compare models that are compiled for the device with the same models of torch: results, copies, and times."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

import tunesmith
from tunesmith.driver.compile_model import CompiledModel
from tunesmith.experiments.gpu_check.session import Session
from tunesmith.graph.importers.torch.importer import from_torch
from tunesmith.measure.device_lease import device_lease
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.device import Device
from tunesmith.testing.torch_models import get

LARGE = ("resnet18", "bert_base", "gpt2_decode", "mobilenet_v2", "unet")
"""Compared in full size on CUDA, and in small size elsewhere."""
LIMIT = 1e-4
"""Largest error of a correct result, relative to its largest element."""
REPEATS = 7
TRIALS = 4000
"""Trials of a model at most; its time ends first."""
SAMPLE_S = 0.02
"""Minimum duration of a sample."""


def models(session: Session, found: dict[str, Any]) -> None:
    """Compile, compare and time each model, as long as there is time; a model that fails is reported, and the next one follows."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    wrong = []
    for name in session.models or LARGE:
        if session.left() < 15:
            found[name] = {"skipped": "no time was left"}
            continue
        try:
            found[name] = entry = _model(session, name)
        except Exception as error:
            found[name] = entry = {"failed": f"{type(error).__name__}: {error}"[:1500]}
            session.say(f"  {name} FAILED: {entry['failed']}")
        if "failed" in entry or entry["error"] > LIMIT or entry["copied"] != entry["edges"]:
            wrong.append(name)
        session.save()
    if wrong:
        session.failures["models"] = f"wrong or failed: {', '.join(wrong)}"


def _model(session: Session, name: str) -> dict[str, Any]:
    model, inputs = get(name, "full" if session.kind == "cuda" else "small")
    mod = from_torch(model, inputs)
    begun = time.perf_counter()
    made = tunesmith.compile(mod, session.target)
    entry: dict[str, Any] = {"compile_s": time.perf_counter() - begun}
    systems = {"ours": made}
    if session.model_seconds:
        log = session.out / "models.jsonl"
        tunesmith.tune(mod, session.target, log, budget=tunesmith.Budget(trials=TRIALS, seconds=session.model_seconds), progress=False)
        systems["ours tuned"] = made = tunesmith.compile(mod, session.target, log)
    assert isinstance(made, CompiledModel)
    arrays = [x.numpy() for x in inputs]
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    expected = [np.asarray(y) for y in _several(copy.deepcopy(model).double()(*wide))]
    with _copied_bytes(Device(session.kind)) as copied:
        made(*arrays)
        copied.clear()
        results = [np.asarray(y) for y in _several(made(*arrays))]
    entry |= {
        "error": max([float(np.abs(r - e).max() / max(np.abs(e).max(), 1e-30)) for r, e in zip(results, expected, strict=True)]),
        "copied": sum(copied),
        "edges": sum([a.nbytes for a in (*arrays, *results)]),
    }
    with device_lease(Device(session.kind)):
        entry["profile_us"] = [(r.function, r.microseconds) for r in made.profile(*arrays, repeats=5)]
        entry |= _times(session, systems, model, inputs, arrays)
    times = ", ".join([f"{k.removesuffix('_us')} {v:.0f} us" for k, v in entry.items() if k.endswith("_us") and isinstance(v, float)])
    copies = f"copied {entry['copied']} of {entry['edges']} B"
    session.say(f"  {name}: error {entry['error']:.1e}, {copies}, {times}, compiled in {entry['compile_s']:.1f} s")
    for function, microseconds in sorted(entry["profile_us"], key=lambda x: -x[1])[:5]:
        session.say(f"    {function}: {microseconds:.1f} us")
    return entry


def _times(session: Session, made: dict[str, Any], model: Any, inputs: Sequence[Any], arrays: Sequence[np.ndarray]) -> dict[str, float]:
    """Microseconds of a call, medians of interleaved samples by the host's clock; all inputs and results are on the device."""
    device = Device(session.kind)
    systems: dict[str, tuple[Any, Any]] = {}
    for name, compiled in made.items():
        for i, a in enumerate(arrays):
            compiled.set_input(i, DeviceArray.from_numpy(device, a))
        systems[f"{name}_us"] = (compiled.run, lambda: device.api.synchronise(0))
    if session.kind == "cuda":
        there, x = copy.deepcopy(model).cuda(), [i.cuda() for i in inputs]

        def eager() -> None:
            with torch.no_grad():
                there(*x)

        systems["eager_us"] = (eager, torch.cuda.synchronize)
        graph = _graph(eager)
        if graph is not None:
            systems["eager_graph_us"] = (graph, torch.cuda.synchronize)
    taken: dict[str, list[float]] = {s: [] for s in systems}
    number = {s: _calls(*systems[s]) for s in systems}
    for _ in range(REPEATS):
        for s, (call, wait) in systems.items():
            taken[s].append(_seconds(call, wait, number[s]) / number[s] * 1e6)
    return {s: float(np.median(t)) for s, t in taken.items()}


def _graph(call: Any) -> Any:
    """The call as a CUDA graph; None if torch cannot capture it."""
    try:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay
    except Exception:
        return None


def _calls(call: Any, wait: Any) -> int:
    number = 3
    while (seconds := _seconds(call, wait, number)) < SAMPLE_S:
        number = max(number + 1, int(number * min(20.0, 1.2 * SAMPLE_S / seconds)))
    return number


def _seconds(call: Any, wait: Any, number: int) -> float:
    wait()
    begun = time.perf_counter()
    for _ in range(number):
        call()
    wait()
    return time.perf_counter() - begun


def _several(results: Any) -> Sequence[Any]:
    return results if isinstance(results, (tuple, list)) else (results,)


@contextmanager
def _copied_bytes(device: Device) -> Iterator[list[int]]:
    """The sizes of the copies between host and device that are made in the body."""
    api, sizes = device.api, []
    real = api.copy

    def counted(source: Any, target: Any, nbytes: int, *rest: Any, **more: Any) -> None:
        if {source.device.kind, target.device.kind} == {"cpu", device.kind}:
            sizes.append(nbytes)
        real(source, target, nbytes, *rest, **more)

    api.copy = counted  # type: ignore[method-assign]
    try:
        yield sizes
    finally:
        del api.copy  # type: ignore[method-assign]
