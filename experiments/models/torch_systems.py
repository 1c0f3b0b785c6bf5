"""Prepare models with torch: eager, in channels-last memory, and compiled by Inductor; and their results in float64, as the reference."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch._inductor.config

from tunesmith.measure.baselines.model_call import ModelCall, arrays


def eager(model: Any, inputs: Sequence[Any], threads: int, files: object) -> ModelCall:
    """The model as it is."""
    torch.set_num_threads(threads)

    def run() -> Any:
        with torch.no_grad():
            return model(*inputs)

    return ModelCall(run, run)


def channels_last(model: Any, inputs: Sequence[Any], threads: int, files: object) -> ModelCall:
    """Weights and images in channels-last memory."""
    last = torch.channels_last
    moved = [x.to(memory_format=last) if x.ndim == 4 else x for x in inputs]
    return eager(model.to(memory_format=last), moved, threads, files)


def compiled(model: Any, inputs: Sequence[Any], threads: int, files: object) -> ModelCall:
    """Inductor's code with frozen weights."""
    return _compiled(eager, model, inputs, threads, files)


def _compiled(prepare: Callable[..., ModelCall], model: Any, inputs: Sequence[Any], threads: int, files: object) -> ModelCall:
    """The compiled model, run three times."""
    torch._inductor.config.freezing = True
    call = prepare(torch.compile(model), inputs, threads, files)
    for _ in range(3):
        call.run()
    return call


def eager_bf16(model: Any, inputs: Sequence[Any], threads: int, files: object) -> ModelCall:
    """torch's automatic mixed precision: products in bfloat16, reductions and norms in float32."""
    call = eager(model, inputs, threads, files)

    def run() -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return call.run()

    def results() -> Any:
        made = run()
        return tuple([x.float() for x in made]) if isinstance(made, (tuple, list)) else made.float()

    return ModelCall(run, results, "bf16")


def compiled_bf16(model: Any, inputs: Sequence[Any], threads: int, files: object) -> ModelCall:
    """Inductor's code of the model in automatic mixed precision."""
    return _compiled(eager_bf16, model, inputs, threads, files)


def float64_outputs(model: Any, inputs: Sequence[Any]) -> list[np.ndarray]:
    """The results of the model with weights and inputs in float64."""
    with torch.no_grad():
        wide = [x.double() if x.is_floating_point() else x for x in inputs]
        return arrays(copy.deepcopy(model).double()(*wide))
