"""Define torch test cases: functions and modules with unusual arguments, for comparing the importer with torch.

A case is a function of tensors, or a module, with inputs.  Torch's eager result is the reference; the imported graph must compute the
same, or the import must refuse the model with a message that contains `refused`.  The tables are in the modules `torch_cases_*`.
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
        name: unique name in its table.
        function: function of the tensors in `inputs`; an nn.Module is used in evaluation mode.
        inputs: tensors, or shapes of normally distributed tensors.
        refused: part of the error message for an unsupported case; empty for a supported one.
        tolerance: relative tolerance; None for the default of the element type.
        sums: whether an error up to the tolerance of the largest element is allowed, as in sums of elements.
        signs: whether signs of zero are compared.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    refused: str = ""
    tolerance: float | None = None
    signs: bool = True
    sums: bool = True

    def tensors(self) -> tuple[Tensor, ...]:
        """Fresh inputs, since a function may write into them."""
        generator = torch.Generator().manual_seed(7)
        return tuple([torch.randn(x, generator=generator) if isinstance(x, tuple) else x.detach().clone() for x in self.inputs])


class CaseTable(dict[str, TorchCase]):
    """Cases by name; `common` holds default attributes of all cases."""

    def __init__(self, **common: Any) -> None:
        super().__init__()
        self._common = common

    def add(self, name: str, function: Callable[..., Any], *inputs: Any, **options: Any) -> None:
        """Add a case with a unique name."""
        assert name not in self, name
        self[name] = TorchCase(name, function, inputs, **{**self._common, **options})


class CaseModel(torch.nn.Module):
    """Several cases as one model, since tracing has a high fixed cost; inputs and results are those of all cases in order."""

    def __init__(self, cases: Iterable[TorchCase]) -> None:
        super().__init__()
        self.cases = {c.name: c for c in cases}
        self.parts = torch.nn.ModuleList([c.function for c in self.cases.values() if isinstance(c.function, torch.nn.Module)])
        self.eval()

    def forward(self, inputs: dict[str, tuple[Tensor, ...]]) -> dict[str, Any]:
        """Results by case."""
        return {name: case.function(*inputs[name]) for name, case in self.cases.items()}

    def example(self) -> dict[str, tuple[Tensor, ...]]:
        """Inputs by case."""
        return {name: case.tensors() for name, case in self.cases.items()}
