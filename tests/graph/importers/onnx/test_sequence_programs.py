"""Compare random programs on sequences with onnx.reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx.reference import ReferenceEvaluator  # noqa: E402

from tunesmith.support.seeds import stream  # noqa: E402
from tunesmith.testing.onnx_backend import PreparedModel, compiled, interpreted  # noqa: E402


def assert_same(found: Sequence[Any], expected: Sequence[Any]) -> None:
    """Sequences have equal lengths, tensors equal types, shapes and elements."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert isinstance(a, list) == isinstance(b, list)
        if isinstance(a, list):
            assert_same(a, b)
        else:
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


class RandomProgram:
    """A random program on sequences and its inputs.

    Args:
        seed: seed of all choices.
    """

    def __init__(self, seed: int) -> None:
        self.rng = stream(seed, "random sequence programs")
        self.lines: list[str] = []
        self.given: dict[str, Any] = {"c": np.array(bool(self.rng.integers(2)))}
        self.tensors: dict[str, tuple[int, ...]] = {}
        self.sequences: dict[str, list[tuple[int, ...]]] = {}
        for i in range(3):
            shape = self.shape()
            self.given[f"t{i}"] = self.array(shape)
            self.tensors[f"t{i}"] = shape
        for i in range(2):
            shapes = [self.shape() for _ in range(self.number(1, 5))]
            self.given[f"s{i}"] = [self.array(shape) for shape in shapes]
            self.sequences[f"s{i}"] = shapes
        steps = (self.construct, self.insert, self.erase, self.at, self.length, self.split, self.concatenate, self.map, self.branch)
        for i in range(self.number(3, 12)):
            steps[self.number(0, len(steps))](f"v{i}")

    def number(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high))

    def shape(self) -> tuple[int, ...]:
        return (self.number(1, 3), self.number(1, 4))

    def array(self, shape: tuple[int, ...]) -> np.ndarray:
        return self.rng.integers(-9, 9, shape).astype(np.float32)

    def pick(self, names: Any) -> str:
        return list(names)[self.number(0, len(names))]

    def constant(self, value: Any, name: str) -> str:
        array = np.asarray(value)
        shape = str(list(array.shape)) if array.ndim else ""
        self.lines.append(f"{name} = Constant <value = int64{shape} {{{', '.join(map(str, array.ravel()))}}}> ()")
        return name

    def some(self, least: int = 1) -> str | None:
        """A sequence of at least `least` tensors."""
        names = [name for name, shapes in self.sequences.items() if len(shapes) >= least]
        return self.pick(names) if names else None

    def construct(self, name: str) -> None:
        chosen = [self.pick(self.tensors) for _ in range(self.number(1, 4))]
        self.lines.append(f"{name} = SequenceConstruct ({', '.join(chosen)})")
        self.sequences[name] = [self.tensors[t] for t in chosen]

    def insert(self, name: str) -> None:
        s, t = self.pick(self.sequences), self.pick(self.tensors)
        shapes = list(self.sequences[s])
        n = len(shapes)
        at = self.number(-n, n) if n and self.number(0, 3) else None  # the reference inserts at position n at the front
        position = "" if at is None else f", {self.constant(at, name + 'p')}"
        self.lines.append(f"{name} = SequenceInsert ({s}, {t}{position})")
        shapes.insert(n if at is None else at % n, self.tensors[t])
        self.sequences[name] = shapes

    def erase(self, name: str) -> None:
        s = self.some()
        if s is not None:
            n = len(self.sequences[s])
            at = self.number(-n, n)
            self.lines.append(f"{name} = SequenceErase ({s}, {self.constant(at, name + 'p')})")
            self.sequences[name] = [shape for i, shape in enumerate(self.sequences[s]) if i != at % n]

    def at(self, name: str) -> None:
        s = self.some()
        if s is not None:
            n = len(self.sequences[s])
            at = self.number(-n, n)
            self.lines.append(f"{name} = SequenceAt ({s}, {self.constant(at, name + 'p')})")
            self.tensors[name] = self.sequences[s][at]

    def length(self, name: str) -> None:
        """The last tensor but for some others: its position is computed from the length."""
        s = self.some()
        if s is not None:
            n = len(self.sequences[s])
            back = self.number(1, n + 1)
            self.lines.append(f"{name}n = SequenceLength ({s})")
            self.lines.append(f"{name}i = Sub ({name}n, {self.constant(back, name + 'p')})")
            self.lines.append(f"{name} = SequenceAt ({s}, {name}i)")
            self.tensors[name] = self.sequences[s][n - back]

    def split(self, name: str) -> None:
        t, axis = self.pick(self.tensors), self.number(-2, 2)
        shape = self.tensors[t]
        extent, keep = shape[axis], self.number(0, 2)
        form, given = self.number(0, 3), ""
        if form == 0:
            sizes = [1] * extent
            keep = 1  # else it has tensors of one dimension
        elif form == 1:
            step = self.number(1, 4)
            sizes = [min(step, extent - at) for at in range(0, extent, step)]
            given = f", {self.constant(step, name + 'p')}"
        else:
            first = self.number(1, extent + 1)
            sizes = [first, extent - first] if first < extent else [extent]
            given = f", {self.constant(sizes, name + 'p')}"
        self.lines.append(f"{name} = SplitToSequence <axis = {axis}, keepdims = {keep}> ({t}{given})")
        self.sequences[name] = [tuple([n if i == axis % 2 else e for i, e in enumerate(shape)]) for n in sizes]

    def concatenate(self, name: str) -> None:
        axis = self.number(-2, 2)
        fits = [s for s, shapes in self.sequences.items() if len({shape[(axis + 1) % 2] for shape in shapes}) == 1]
        if fits:
            s = self.pick(fits)
            self.lines.append(f"{name} = ConcatFromSequence <axis = {axis}> ({s})")
            shape = list(self.sequences[s][0])
            shape[axis] = sum(e[axis] for e in self.sequences[s])
            self.tensors[name] = tuple(shape)

    def map(self, name: str) -> None:
        s = self.some()
        if s is not None:
            pairs = [t for t, shapes in self.sequences.items() if len(shapes) == len(self.sequences[s])]
            t = self.pick(pairs)
            body = f"b{name} (float[] p{name}, float[] q{name}) => (float[] r{name}, float[] u{name})"
            self.lines.append(f"{name}, {name}w = SequenceMap ({s}, {t}) <body = {body} {{ m{name} = Transpose (q{name}) "
                              f"r{name} = Add (p{name}, p{name}) u{name} = Neg (m{name}) }}>")  # fmt: skip
            self.sequences[name] = self.sequences[s]
            self.sequences[f"{name}w"] = [shape[::-1] for shape in self.sequences[t]]

    def branch(self, name: str) -> None:
        s = self.some()
        if s is not None:
            pairs = [t for t, shapes in self.sequences.items() if shapes == self.sequences[s]]
            then, other = self.pick(pairs), s
            self.lines.append(
                f"{name} = If (c) <then_branch = g{name} () => (seq(float[]) x{name}) {{ x{name} = Identity ({then}) }}, "
                f"else_branch = h{name} () => (seq(float[]) y{name}) {{ n{name} = SequenceErase ({other}) "
                f"k{name} = Constant <value = int64 {{{len(self.sequences[s]) - 1}}}> () l{name} = SequenceAt ({other}, k{name}) "
                f"y{name} = SequenceInsert (n{name}, l{name}) }}>"
            )
            self.sequences[name] = self.sequences[s]

    @property
    def text(self) -> str:
        """The graph; its outputs are all sequences and tensors."""
        inputs = ["bool c"]
        inputs += [f"float[{', '.join(map(str, v.shape))}] {k}" for k, v in self.given.items() if k.startswith("t")]
        inputs += [f"seq(float[]) {k}" for k in self.given if k.startswith("s")]
        made = [f"float[] {t}" for t in self.tensors if t.startswith("v")] + [
            f"seq(float[]) {s}" for s in self.sequences if s.startswith("v")
        ]
        return f"({', '.join(inputs)}) => ({', '.join(['seq(float[]) z', *made])}) {{ {' '.join([*self.lines, 'z = Identity (s0)'])} }}"


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_agree_with_the_reference(seed: int) -> None:
    program = RandomProgram(seed)
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 24]> random {program.text}')
    expected = ReferenceEvaluator(proto).run(None, program.given)
    prepared = PreparedModel(proto, compiled if seed < 4 else interpreted)
    assert_same(prepared.run(program.given), expected)
    assert not prepared.frozen
