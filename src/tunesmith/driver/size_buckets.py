"""Parse the sizes that a function of dynamic shapes is tuned for, and cut ranges of sizes into buckets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from tunesmith.graph.ir.calls import called_functions
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import ReadSize, all_bindings
from tunesmith.graph.passes.bind_sizes import bind_sizes
from tunesmith.graph.tuning.tasks import ExtractedTask
from tunesmith.ir.analysis.size_ranges import LARGEST_SIZE
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Var, evaluate
from tunesmith.ir.specialize import sizes_of
from tunesmith.lower.size_ranges import SizeRanges
from tunesmith.support.errors import UserError

Sizes = str | Sequence[str] | Mapping[str, str | int | Sequence[int]]
"""Sizes to tune for: see `parse_sizes`."""

Buckets = Mapping[str, Sequence[tuple[int, int]]]
"""Size name -> the ranges (lowest, highest) to tune for, which do not overlap."""

MOST_BUCKETS = 64
"""Limit on the buckets of one function: each is searched, and is a version of the code."""


def parse_sizes(given: object) -> dict[str, list[tuple[int, int]]]:
    """The buckets of each size, in order, from the argument `sizes` of `tune`.

    Args:
        given: `"n=1..128"`, `"n=16,64,128"`, several of them separated by blanks or `;`, a list of such texts, or a mapping from size
            names to a number, a list of numbers, a `range`, or a text such as `"1..128"`.  A range is cut into buckets that end at powers
            of two, because the best tile sizes differ more between 1 and 2 rows than between 100 and 101.
    Raises:
        UserError: a text is malformed, a range is empty, a number is not from 1 to 2**31 - 1, or a size is given twice.
    """
    pairs: list[tuple[str, object]] = []
    if isinstance(given, Mapping):
        pairs = [(str(k), v) for k, v in given.items()]
    elif isinstance(given, str) or (isinstance(given, (list, tuple)) and all(isinstance(x, str) for x in given)):
        for text in [given] if isinstance(given, str) else given:
            for part in text.replace(";", " ").split():
                name, mark, value = part.partition("=")
                if not mark or not name.strip():
                    raise _malformed(given)
                pairs.append((name.strip(), value))
    if not pairs:
        raise _malformed(given)
    out: dict[str, list[tuple[int, int]]] = {}
    for name, value in pairs:
        if name in out:
            raise UserError(f"sizes={given!r:.200}: the size {name} is given twice. Write {name}=1..64, or {name}=16,64,128")
        out[name] = _buckets(name, value, given)
    count = math.prod(len(b) for b in out.values())
    if count > MOST_BUCKETS:
        raise UserError(f"sizes={given!r:.200} are {count} buckets, more than {MOST_BUCKETS}. Give fewer numbers, or a smaller range")
    return out


def boxes_of(buckets: Buckets) -> list[SizeRanges]:
    """All combinations of the buckets of several sizes."""
    return [SizeRanges.of(dict(zip(buckets, choice, strict=True))) for choice in itertools.product(*buckets.values())]


def model_sizes(mod: IRModule, main: GraphFunc) -> dict[str, list[Var]]:
    """The dynamic sizes of a model by name: those of its inputs, and those that it, or a function that it calls, reads from tensors."""
    functions = [main, *[mod[name] for name in sorted(called_functions(mod, main.name)) if name != main.name]]
    read = [op.size for f in functions for b in all_bindings(f.body) if isinstance(op := b.operation, ReadSize)]
    found: dict[str, list[Var]] = {}
    for v in dict.fromkeys((*main.sizes, *read)):
        found.setdefault(v.name, []).append(v)
    return found


def model_boxes(mod: IRModule, main: GraphFunc, buckets: Buckets) -> list[SizeRanges]:
    """All combinations of the buckets of a model's sizes.

    Raises:
        UserError: the model has no such size, or an assumption of the model excludes the ends of a range.
    """
    boxes = boxes_of(buckets) if buckets else []
    read = model_sizes(mod, main).keys() - {v.name for v in main.sizes}
    for box in boxes:
        for ends in ({name: low for name, low, _ in box.ranges}, box.last):
            given = {name: size for name, size in ends.items() if name not in read}
            if given or not read:
                bind_sizes(mod, given, main.name)
    return boxes


def function_boxes(task: ExtractedTask, named: Mapping[str, Sequence[Var]], boxes: Sequence[SizeRanges]) -> list[SizeRanges]:
    """The sizes of a function of a model for the boxes of the model's sizes (`model_sizes`), at each of its calls.

    Sizes of a function are expressions of those of the model, which grow with them or shrink: the ends of a box give the ends of a range.
    """
    out: dict[SizeRanges, None] = {}
    for box, given in itertools.product(boxes, task.sizes):
        ends: list[dict[Var, int]] = [{v: r[i] for n, *r in box.ranges for v in named[n]} for i in (0, 1)]
        values = [sorted(evaluate(e, end) for end in ends) for e in given]
        if all(high >= 1 for _, high in values):
            names = [v.name for v in sizes_of(task.func)]
            out[SizeRanges.of({name: (max(1, low), high) for name, (low, high) in zip(names, values, strict=True)})] = None
    return list(out)


def powers_of_two(low: int, high: int) -> list[tuple[int, int]]:
    """The buckets of a range; each ends at a power of two, or at the end of the range."""
    out = []
    while low <= high:
        end = min(high, 1 << (low - 1).bit_length())
        out.append((low, end))
        low = end + 1
    return out


def _buckets(name: str, value: object, given: object) -> list[tuple[int, int]]:
    if isinstance(value, str):
        out: list[tuple[int, int]] = []
        for part in value.split(","):
            low, mark, high = part.partition("..")
            try:
                bounds = int(low), int(high if mark else low)
            except ValueError:
                raise _malformed(given) from None
            out += _range(name, *bounds, given)
    elif isinstance(value, range):
        if value.step != 1:
            raise UserError(f"sizes={given!r:.200}: the range of {name} has the step {value.step}. Give step 1, or a list of numbers")
        out = _range(name, value.start, value.stop - 1, given)
    elif isinstance(value, (list, tuple)) or (isinstance(value, int) and not isinstance(value, bool)):
        numbers = [value] if isinstance(value, int) else list(value)
        if not numbers or not all(isinstance(x, int) and not isinstance(x, bool) for x in numbers):
            raise _malformed(given)
        out = [b for x in numbers for b in _range(name, x, x, given)]
    else:
        raise _malformed(given)
    out = sorted(set(out))
    for a, b in itertools.pairwise(out):
        if b[0] <= a[1]:
            raise UserError(f"sizes={given!r:.200}: {name} = {b[0]} is in two ranges. Give ranges that do not overlap")
    return out


def _range(name: str, low: int, high: int, given: object) -> list[tuple[int, int]]:
    if low > high:
        raise UserError(f"sizes={given!r:.200}: the range of {name} from {low} to {high} is empty. Give the lower end first")
    if low < 1 or high > LARGEST_SIZE:
        zero = "; a call with size 0 runs without tuning" if low == 0 else ""
        raise UserError(f"sizes={given!r:.200}: sizes to tune for are from 1 to {LARGEST_SIZE}{zero}. Change the range of {name}")
    return powers_of_two(low, high) if low < high else [(low, low)]


def _malformed(given: object) -> UserError:
    return UserError(
        f"sizes={given!r:.200}: expected a text such as 'n=1..128' or 'n=16,64,128', or a mapping such as {{'n': [16, 64, 128]}} or "
        "{'n': range(1, 129)}"
    )
