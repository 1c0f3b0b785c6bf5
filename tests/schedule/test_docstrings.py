"""Run the docstring of each primitive: its sections, its labels, and the example behind `Rewrite:`.

An example consists of the calls, a program, `->`, and the program that the calls make of it:

    Rewrite: `split(i, [None, 4])`
        for i in T.serial(18):
            C[i] = A[i]
      ->
        for i_0, i_1 in T.grid(5, 4):
            if i_0 * 4 + i_1 < 18:
                C[i_0 * 4 + i_1] = A[i_0 * 4 + i_1]

- Calls are separated by `;`, and one of them is of the primitive itself.  A bare name is the loop with this variable, otherwise the block
  with this name; literals are passed as they are.
- Programs are bodies of a script.  Buffers without `T.alloc_buffer` are float32 parameters; their shapes are the extents that the first
  program accesses.
- Each store of the first program becomes a block, named after its buffer.  Every index of the store that depends on loops is a spatial
  iteration variable; every other loop whose variable the stored value uses is a reduction variable.  `init: C[i] = 0.0` before a store is
  its init.
- The second program is compared with the scheduled program after the passes `lower_blocks` and `simplify`: blocks are plain statements,
  predicates are `if`s, and loops with one iteration are gone unless they are bound.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.lower.passes.lower_blocks import lower_blocks
from tunesmith.lower.passes.simplify import simplify
from tunesmith.schedule.primitive import PRIMITIVES
from tunesmith.schedule.schedule import Schedule

GOLDEN = Path(__file__).parents[1] / "golden" / "schedule"
PURE = ("get_output_blocks",)
"""Primitives without a precondition."""
TARGET = Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=2")
DOCSTRINGS = {name: inspect.getdoc(p.function) or "" for name, p in sorted(PRIMITIVES.items())}

Loops = dict[str, int]
"""Extents by loop variable, outermost first."""


@pytest.mark.parametrize("name", DOCSTRINGS)
def test_sections(name: str) -> None:
    text = DOCSTRINGS[name]
    assert ("Requires:" in text) == (name not in PURE), "every precondition has a label"
    if "Rewrite:" in text:
        assert "Keeps:" in text, "a rewrite says what it keeps"
        assert list(GOLDEN.glob(f"*/test_{name}.txt")), f"the example of {name} has no golden text: write tests/schedule/...::test_{name}"
    labels = re.findall(r"^    ([a-z-]+): ", text.partition("Requires:")[2].partition("\nKeeps:")[0], re.MULTILINE)
    assert len(labels) == len(set(labels))


@pytest.mark.parametrize("name", [n for n, text in DOCSTRINGS.items() if "Rewrite:" in text])
def test_rewrite(name: str) -> None:
    """The calls turn the first program of the example into the second."""
    run_example(name, DOCSTRINGS[name])


def test_rewrite_fails_if_the_example_is_wrong() -> None:
    for old, new in [("T.grid(5, 4)", "T.grid(3, 8)"), ("[None, 4]", "[None, 8]"), ("i_1 < 18", "i_1 < 20")]:
        text = DOCSTRINGS["split"]
        assert old in text
        with pytest.raises(AssertionError, match="the program behind `->`"):
            run_example("split", text.replace(old, new))
    with pytest.raises(AssertionError, match="is not an example of fuse"):
        run_example("fuse", DOCSTRINGS["split"])


# ---- the runner of the examples


def run_example(name: str, docstring: str) -> None:
    found = re.search(r"^Rewrite: `(?P<calls>.+)`\n(?P<before>.+?)\n  ->\n(?P<after>.+?)\nRequires:", docstring, re.MULTILINE | re.DOTALL)
    assert found is not None, "the form is: Rewrite: `calls`, a program, ->, a program, Requires:"
    calls = [c.value for c in ast.parse(found["calls"].replace("; ", "\n")).body if isinstance(c, ast.Expr)]
    assert any(ast.unparse(c).startswith(f"{name}(") for c in calls), f"{found['calls']} is not an example of {name}"
    before, after = ast.parse(textwrap.dedent(found["before"])), ast.parse(textwrap.dedent(found["after"]))
    shapes = parameters(before)
    schedule = Schedule(function(with_blocks(before), shapes))
    for call in calls:
        run_call(schedule, call)
    made, expected = (str(simplify(lower_blocks(f, TARGET), TARGET)) for f in (schedule.func, function(after, shapes)))
    assert made == expected, "the program behind `->` is not the one that the calls make"


def run_call(s: Schedule, call: ast.expr) -> None:
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    given = [argument(s, a) for a in call.args]
    getattr(s, call.func.id)(*given, **{k.arg: argument(s, k.value) for k in call.keywords if k.arg})


def argument(s: Schedule, e: ast.expr) -> Any:
    """The handle of a bare name, a list, or a literal."""
    if isinstance(e, ast.List):
        return [argument(s, x) for x in e.elts]
    if not isinstance(e, ast.Name):
        return ast.literal_eval(e)
    loops = {f.var: (b.name, n) for b in s.blocks() for n, f in enumerate(s.loops_of(b.name)) if f.var.name == e.id}
    assert len(loops) <= 1, f"several loops are named {e.id}"
    for block, n in loops.values():
        return s.get_loops(s.get_block(block))[n]
    return s.get_block(e.id)


def function(body: ast.Module, shapes: dict[str, tuple[int, ...]]) -> PrimFunc:
    """The function with this body, and with parameters of these shapes."""
    header = ", ".join(f'{name}: T.Buffer({shape}, "float32")' for name, shape in shapes.items())
    made = parse(f"@T.prim_func\ndef f({header}):\n{textwrap.indent(ast.unparse(body), '    ')}")
    assert isinstance(made, PrimFunc)
    return made


def parameters(program: ast.Module) -> dict[str, tuple[int, ...]]:
    """Shapes of the buffers that the program does not allocate: the extents of their accesses."""
    allocated = {s.targets[0].id for s in program.body if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)}
    shapes: dict[str, tuple[int, ...]] = {}
    for loops, s in stores(program.body, {}):
        loops |= lookups(s)
        for n in ast.walk(s):
            if isinstance(n, ast.Subscript) and (name := ast.unparse(n.value)) not in allocated:
                extents = [extent(e, loops) for e in indices(n)]
                shapes[name] = tuple(max(x, y) for x, y in zip(extents, shapes.get(name, extents), strict=True))
    return dict(sorted(shapes.items()))


def lookups(s: ast.Assign) -> Loops:
    """The extents of the indirect indices in a store, `T.lookup(value, extent, lambda at: ...)`, by variable."""
    calls = [n for n in ast.walk(s) if isinstance(n, ast.Call) and ast.unparse(n.func) == "T.lookup"]
    return {c.args[2].args.args[0].arg: ast.literal_eval(c.args[1]) for c in calls if isinstance(c.args[2], ast.Lambda)}


def indices(n: ast.Subscript) -> list[ast.expr]:
    return n.slice.elts if isinstance(n.slice, ast.Tuple) else [n.slice]


def extent(index: ast.expr, loops: Loops) -> int:
    """One more than the largest value of an index expression."""
    values = dict(zip(loops, np.indices(tuple(loops.values())), strict=True))
    return int(np.max(eval(ast.unparse(index), {}, values))) + 1


def loops_of(s: ast.For) -> Loops:
    """`for i, j in T.grid(4, 8)`, or one loop of another kind, whose first argument is its extent."""
    assert isinstance(s.iter, ast.Call)
    targets = s.target.elts if isinstance(s.target, ast.Tuple) else [s.target]
    return {ast.unparse(v): ast.literal_eval(e) for v, e in zip(targets, s.iter.args, strict=False)}


def stores(body: Sequence[ast.stmt], loops: Loops) -> Iterator[tuple[Loops, ast.Assign]]:
    """The stores of a program, each with the loops around it."""
    for s in body:
        if isinstance(s, ast.For):
            yield from stores(s.body, {**loops, **loops_of(s)})
        elif isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Subscript):
            yield loops, s


def with_blocks(program: ast.Module) -> ast.Module:
    """The program with a block around each store."""

    def wrap(body: Sequence[ast.stmt], loops: Loops) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        init: ast.expr | None = None
        for s in body:
            if isinstance(s, ast.For):
                s.body = wrap(s.body, {**loops, **loops_of(s)})
            if isinstance(s, ast.AnnAssign):
                init = s.value
            elif isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Subscript):
                out.append(block(s, init, loops))
                init = None
            else:
                out.append(s)
        return out

    return ast.Module(wrap(program.body, {}), [])


def block(s: ast.Assign, init: ast.expr | None, loops: Loops) -> ast.stmt:
    """The block of a store: see the module's docstring."""
    store = s.targets[0]
    assert isinstance(store, ast.Subscript)
    spatial = [e for e in indices(store) if names(e) & set(loops)]
    outside = set(loops) - set().union(*map(names, spatial))
    reduced = [ast.Name(v) for v in loops if v in outside & names(s.value)]
    kinds = [("spatial", e) for e in spatial] + [("reduce", e) for e in reduced]
    lines = [f"v{n} = T.axis.{kind}({extent(e, loops)}, {ast.unparse(e)})" for n, (kind, e) in enumerate(kinds)]
    variables = {ast.unparse(e): f"v{n}" for n, (_, e) in enumerate(kinds)}

    class Rename(ast.NodeTransformer):
        def visit(self, n: ast.AST) -> Any:
            text = ast.unparse(n) if isinstance(n, ast.expr) else ""
            return ast.Name(variables[text]) if text in variables else self.generic_visit(n)

    body = ast.unparse(Rename().visit(s))
    if init is not None:
        target = body.partition(" = ")[0]
        lines += ["with T.init():", f"    {target} = {ast.unparse(Rename().visit(init))}"]
    text = "\n    ".join([f'with T.block("{ast.unparse(store.value)}"):', *lines, body])
    return ast.parse(text).body[0]


def names(e: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(e) if isinstance(n, ast.Name)}
