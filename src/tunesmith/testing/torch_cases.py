"""Torch functions and modules with unusual arguments: the table that the importer of torch models is compared with torch by.

A case is a function of tensors, or a module, and its inputs.  What torch computes eagerly is the truth; the imported graph computes the
same, or the import refuses the model with a message that holds `refused`.  The tables are in the modules `torch_cases_*`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tunesmith.support.errors import MissingExtraError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "torch", "tunesmith.testing.torch_cases") from error

Tensor = Any


@dataclass(frozen=True)
class TorchCase:
    """One function with one set of inputs.

    Attributes:
        name: unique in a table.
        function: of the tensors in `inputs`; an nn.Module is used in evaluation mode.
        inputs: tensors, or shapes of tensors of normal numbers.
        refused: a part of the message by which the import refuses it; empty for what is imported.
        tolerance: relative; None for that of the element type.
        sums: whether an error may be as large as the tolerance of the largest element, as in sums of elements.
        signs: whether the sign of zero is compared.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    refused: str = ""
    tolerance: float | None = None
    signs: bool = True
    sums: bool = True

    def tensors(self) -> tuple[Tensor, ...]:
        """The inputs, drawn anew: a function may write into them."""
        generator = torch.Generator().manual_seed(7)
        return tuple([torch.randn(x, generator=generator) if isinstance(x, tuple) else x.detach().clone() for x in self.inputs])


class CaseTable(dict[str, TorchCase]):
    """Cases by name; `common` are the attributes of all of them that say nothing else."""

    def __init__(self, **common: Any) -> None:
        super().__init__()
        self._common = common

    def add(self, name: str, function: Callable[..., Any], *inputs: Any, **options: Any) -> None:
        """A case; a name can be used once."""
        assert name not in self, name
        self[name] = TorchCase(name, function, inputs, **{**self._common, **options})


class CaseModel(torch.nn.Module):
    """Several cases as one model, since tracing costs more than a small graph: inputs and results are those of all cases in turn."""

    def __init__(self, cases: Iterable[TorchCase]) -> None:
        super().__init__()
        self.cases = {c.name: c for c in cases}
        self.parts = torch.nn.ModuleList([c.function for c in self.cases.values() if isinstance(c.function, torch.nn.Module)])
        self.eval()

    def forward(self, inputs: dict[str, tuple[Tensor, ...]]) -> dict[str, Any]:
        """Results by case."""
        return {name: case.function(*inputs[name]) for name, case in self.cases.items()}

    def example(self) -> dict[str, tuple[Tensor, ...]]:
        """The inputs of all cases."""
        return {name: case.tensors() for name, case in self.cases.items()}
