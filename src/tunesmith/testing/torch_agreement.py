"""Compare an imported torch model with torch: shapes, element types, NaN positions, signs of zero, values within a tolerance."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tunesmith.driver.compile_model import compile_model
from tunesmith.graph.importers.torch.importer import from_torch
from tunesmith.graph.ir import interpret
from tunesmith.ir.function import IRModule
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.support.errors import InternalError, MissingExtraError, UserError
from tunesmith.testing.torch_cases import CaseModel, TorchCase

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "torch", "tunesmith.testing.torch_agreement") from error

Execute = Callable[[IRModule, Sequence[np.ndarray]], Sequence[np.ndarray]]
TOLERANCES = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-11}


def interpreted(mod: IRModule, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Results computed with the operators' numpy references."""
    return interpret.run(mod["main"], list(inputs), mod)


def executed(executor: str) -> Execute:
    """A function that runs compiled code with default schedules on the executor "graph", "vm" or "aot"."""

    def run(mod: IRModule, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        made = compile_model(mod, Target.detect(), executor=executor, untuned=default_schedule)(*inputs)
        return made if isinstance(made, tuple) else (made,)

    return run


EXECUTORS: dict[str, Execute] = {"interpreter": interpreted, "graph": executed("graph"), "vm": executed("vm"), "aot": executed("aot")}


def leaves(tree: Any) -> list[Any]:
    """The tensors and numbers of a pytree in torch's order, without None."""
    return [x for x in torch.utils._pytree.tree_leaves(tree) if x is not None]


def difference(got: np.ndarray, wanted: Any, tolerance: float | None = None, signs: bool = True, sums: bool = True) -> str:
    """The difference between a result and torch's; "" if there is none."""
    want = np.asarray(torch.as_tensor(wanted).detach().resolve_conj().resolve_neg().numpy())
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"it is {got.dtype}{list(got.shape)}, torch has {want.dtype}{list(want.shape)}"
    if want.dtype.kind == "f":
        near = TOLERANCES[str(want.dtype)] if tolerance is None else tolerance
        size = np.abs(want[np.isfinite(want)]).max(initial=0) if want.size else 0
        least = float(np.finfo(want.dtype).tiny) if not sums else near * min(float(size), 1.0)
        with np.errstate(invalid="ignore"):
            same = np.isclose(got, want, rtol=near, atol=least, equal_nan=True)
        if signs:
            same &= (got != 0) | (want != 0) | (np.signbit(got) == np.signbit(want))
    else:
        same = got == want
    if same.all():
        return ""
    at = tuple([int(i) for i in np.argwhere(~same)[0]])
    return f"{np.count_nonzero(~same)} of {same.size} elements differ, first at {at}: {got[at]!r}, torch has {want[at]!r}"


def _eager(model: Any, inputs: Sequence[Any]) -> Any:
    """Torch's results, without its warnings, for example about degrees of freedom, which the cases provoke."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model(*inputs)


def disagreement(model: Any, inputs: Sequence[Any], execute: Execute, tolerance: float | None = None) -> str:
    """The difference between the results of an imported model and torch's; "" if there is none.  Signs of zero are not compared: in
    torch the sign of the larger of two zeros depends on the vector width."""
    mod, tensors = from_torch(model, tuple(inputs)), [t for t in leaves(tuple(inputs)) if isinstance(t, torch.Tensor)]
    got = execute(mod, [t.contiguous().numpy().copy() for t in tensors])
    reference = leaves(_eager(model, inputs))
    if len(got) != len(reference):
        return f"it has {len(got)} results, torch {len(reference)}"
    found = [difference(np.asarray(g), w, tolerance, signs=False) for g, w in zip(got, reference, strict=True)]
    return next((f"result {i}: {text}" for i, text in enumerate(found) if text), "")


def verdicts(cases: Sequence[TorchCase], execute: Execute) -> dict[str, str]:
    """The verdict on each case, imported together as one model: "ok", "refused: ...", "wrong: ...", or "crash: ..." for errors not
    meant for users.  If the joint model fails, the cases are tested in halves."""
    model = CaseModel(cases)
    inputs = model.example()
    arrays = [t.contiguous().numpy().copy() for t in leaves(inputs)]
    reference = _eager(model, ({name: case.tensors() for name, case in model.cases.items()},))
    try:
        got = iter(execute(from_torch(model, (inputs,)), arrays))
    except Exception as error:
        if len(cases) > 1:
            half = len(cases) // 2
            return verdicts(cases[:half], execute) | verdicts(cases[half:], execute)
        expected = isinstance(error, UserError) and not isinstance(error, InternalError)
        return {cases[0].name: f"refused: {error}" if expected else f"crash: {type(error).__name__}: {error}"}
    out = {}
    for name, tree in reference.items():
        case = model.cases[name]
        found = [difference(np.asarray(next(got)), w, case.tolerance, case.signs, case.sums) for w in leaves(tree)]
        out[name] = next((f"wrong: result {i}: {text}" for i, text in enumerate(found) if text), "ok")
    return out


def mismatch(case: TorchCase, verdict: str) -> str:
    """The difference between a verdict and the case's expectation; "" if there is none."""
    if not case.refused:
        return "" if verdict == "ok" else verdict
    if verdict.startswith("refused: ") and case.refused in verdict:
        return ""
    return f"it should be refused ({case.refused!r}), but the verdict is {verdict}"
