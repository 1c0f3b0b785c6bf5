"""Let torch.export infer the shapes of recurrent layers from one step.

torch infers the shapes of an LSTM, GRU or RNN by its decomposition on tensors without elements, step by step: 512 steps of six layers take
ten seconds.  All steps have equal shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_LAYERS = ("one_layer_lstm", "one_layer_rnn")
"""Functions of torch._decomp.decompositions for one direction of one layer; the second is that of GRU, too."""


@contextmanager
def shapes_of_one_step() -> Iterator[None]:
    """Within the block, recurrent layers of tensors without elements are evaluated for one step.

    Other tensors are unaffected, and so are versions of torch without these functions.
    """
    try:
        from torch._decomp import decompositions
        from torch._subclasses.fake_tensor import is_fake
    except ImportError:  # private modules, which another version may not have
        yield
        return
    known = {name: getattr(decompositions, name) for name in _LAYERS if hasattr(decompositions, name)}
    try:
        for name, layer in known.items():
            setattr(decompositions, name, _of_one_step(layer, is_fake))
        yield
    finally:
        for name, layer in known.items():
            setattr(decompositions, name, layer)


def _of_one_step(layer: Callable[..., Any], is_fake: Callable[[Any], bool]) -> Callable[..., Any]:
    def shaped(x: Any, hidden: Any, params: Any, *args: Any, **options: Any) -> Any:
        steps = x.shape[0]
        if type(steps) is not int or steps < 2 or not is_fake(x):
            return layer(x, hidden, params, *args, **options)
        out, last = layer(x[:1], hidden, params, *args, **options)
        return out.new_empty((steps, *out.shape[1:])), last

    return shaped
