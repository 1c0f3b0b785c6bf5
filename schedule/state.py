"""Hold the state of a schedule (program, handles, trace, Params, constraints) and provide the edits of primitives.

A primitive builds expressions, compares normal forms, and calls `require`.  It never branches on the value of an integer, so the same
code schedules in concrete and in parametric mode (docs/design/001-parametric.md).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Param, Poly, Var, is_param_only, poly
from tunesmith.ir.stmt import Block, For, Seq, Stmt, seq
from tunesmith.ir.visit import blocks_under, inner_statements, paths_to_blocks, transform
from tunesmith.schedule.handles import BlockRV, Handle, IntRV, LoopRV
from tunesmith.schedule.integers import as_integer
from tunesmith.schedule.trace import Decision, Instruction, Trace
from tunesmith.support.errors import ScheduleError, ScriptError

MAX_INTEGER = 2**31 - 1
"""Limit of factors and decisions: products of a few larger ones would exceed the 64 bits of an index."""

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Constraint:
    """A precondition that only some configurations satisfy: `expr <= 0` (kind le0) or `expr == 0` (kind eq0), over Params only."""

    kind: str
    expr: Poly
    label: str


def _named(given: object) -> str:
    """The text for an argument that is not a handle of the required kind."""
    kind = {BlockRV: "the block handle ", LoopRV: "the loop handle ", IntRV: "the sampled integer "}.get(type(given), "")
    return f"{kind}{given!r}"


def _flattened(n: Seq, recurse: Callable[[Any], Any]) -> Stmt:
    """The sequence with its statements rewritten; a statement that becomes several is merged into it, not nested."""
    m = n.map_children(recurse)
    return n if m is n else seq(m.stmts)


def _unused(name: str, taken: Collection[str]) -> str:
    """The name, with a number if it is taken."""
    return name if name not in taken else next(n for n in (f"{name}_{i}" for i in itertools.count(2)) if n not in taken)


def _why_no_function(mod: IRModule) -> str:
    """The reason why a module without a PrimFunc cannot be scheduled by hand."""
    if not len(mod):
        return "the module is empty; a schedule needs a PrimFunc"
    return (
        f"the module is a model: {', '.join(mod)} calls operators and is not a PrimFunc. Use tunesmith.tune to find schedules for its "
        "layers and tunesmith.compile to run it; by hand, schedule a PrimFunc"
    )


ERROR_GROWTH = 3.0
"""Default limit of the growth of rounding errors by a schedule: three times the errors of direct sums."""


class ScheduleState:
    """Program, handles and trace of one schedule, in concrete or parametric mode.

    Args:
        mod: the function to schedule, or a module with one function (`func_name` selects one of several).
        parametric: sampling returns Params instead of numbers.
        decisions: the sampled values to use, in order, instead of drawing.
        seed: seed of the random stream for concrete sampling.
    """

    def __init__(
        self,
        mod: PrimFunc | IRModule,
        *,
        func_name: str | None = None,
        parametric: bool = False,
        decisions: Iterable[Sequence[int]] | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(mod, (PrimFunc, IRModule)):
            raise ScriptError(f"a schedule needs a PrimFunc or an IRModule, got a value of type {type(mod).__name__}")
        self._module = mod if isinstance(mod, IRModule) else IRModule([mod])
        names = [n for n, f in self._module.items() if isinstance(f, PrimFunc)]
        if not names or (func_name in self._module and func_name not in names):
            raise ScriptError(_why_no_function(self._module))
        if func_name is None and len(names) != 1:
            raise ScriptError(f"the module has the functions {', '.join(names)}; select one with func_name=")
        self._name = func_name or names[0]
        self.func: PrimFunc = self._module[self._name]
        self.parametric = parametric
        self.params: list[Param] = []
        self.constraints: list[Constraint] = []
        self.error_growth = 1.0
        """Largest growth of rounding errors, relative to direct sums of the same type, by the steps so far; 1 if none adds errors."""
        self.trace = Trace()
        self.digits: dict[Any, Any] = {}
        """Cache of the results of `domain`; each step queries one block many times."""
        self.handles: dict[str, Handle] = {}
        """Handles by their name in a replayed trace, which may differ from their own name."""
        self.number = next(_numbers)
        """Number of the schedule in this process, stored in its handles as `owner`."""
        self.depth = 0
        self.decision: Decision | None = None
        self.step = ""
        self._given = None if decisions is None else iter([tuple(d) for d in decisions])
        self._random = np.random.Generator(np.random.Philox(seed))
        self._count = {"b": itertools.count(), "l": itertools.count(), "v": itertools.count()}
        self._saved: tuple[PrimFunc, int, int, float] | None = None
        self._consumed: dict[Var, str] = {}
        self._paths: tuple[Stmt | None, dict[str, list[Any]]] = (None, {})
        """A body and the paths from it to its blocks, cached because most steps need them several times."""
        self._vars: tuple[Stmt | None, set[Var]] = (None, set())
        """The body after the last step, and its loop variables."""

    # ---- recording ----------------------------------------------------------------------------------------------------

    def begin(self, name: str) -> None:
        """Start a step: save the state that a refusal restores."""
        self.depth += 1
        self.step = name
        self.decision = None
        self._saved = (self.func, len(self.params), len(self.constraints), self.error_growth)

    def rollback(self) -> None:
        """Undo a refused step."""
        assert self._saved is not None
        self.depth -= 1
        self.func, n, m, self.error_growth = self._saved
        del self.params[n:], self.constraints[m:]

    def accepts(self, step: Callable[[], object]) -> bool:
        """Whether the step, a call of a primitive, is not refused; it changes and records nothing."""
        func, n, m, name, growth = self.func, len(self.params), len(self.constraints), self.step, self.error_growth
        self.depth += 1
        try:
            step()
        except ScheduleError:
            return False
        finally:
            self.depth -= 1
            self.func, self.step, self.error_growth = func, name, growth
            del self.params[n:], self.constraints[m:]
        return True

    def commit(self, instruction: Instruction) -> None:
        """Finish the step."""
        self.depth -= 1
        assert self._saved is not None
        if self._saved[0] is not self.func:
            before, now = self._saved[0].body, self.loop_vars(self.func.body)
            known = self._vars[1] if self._vars[0] is before else self.loop_vars(before)
            self._vars = (self.func.body, now)
            for v in known - now:
                self._consumed[v] = f"{instruction.kind} (step {len(self.trace.instructions)})"
        self.trace = self.trace.append(instruction)

    @staticmethod
    def loop_vars(body: Stmt) -> set[Var]:
        """Variables of all loops in `body`."""
        out: set[Var] = set()

        def go(n: Any) -> None:
            if type(n) is For:
                out.add(n.var)
                go(n.body)
            elif type(n) is not Block:
                for k in inner_statements(n):
                    go(k)

        go(body)
        return out

    def _handle(self, kind: type[Any], value: Any) -> Any:
        return kind(f"{kind.letter}{next(self._count[kind.letter])}", self.number, value)

    def new_block(self, name: str) -> BlockRV:
        """A handle for the block with that name."""
        return self._handle(BlockRV, name)

    def new_loop(self, var: Var) -> LoopRV:
        """A handle for the loop with that variable."""
        return self._handle(LoopRV, var)

    def new_int(self, expr: Poly) -> IntRV:
        """A handle for a sampled integer."""
        return self._handle(IntRV, expr)

    # ---- preconditions ------------------------------------------------------------------------------------------------

    def refuse(self, label: str, message: str, at: Any = None) -> ScheduleError:
        """The error of the current step; `at` is a node to underline.  The program is rendered only when the error is printed."""
        func = self.func

        def where() -> str:
            from tunesmith.ir.script.printer import script  # imported only to render: a search catches many refusals

            return script(func, underline=() if at is None else (at,))

        return ScheduleError(self.step, label, message, where)

    def require(self, kind: str, expr: Poly, label: str, message: str, found: Poly | None = None) -> None:
        """Require `expr <= 0` (le0) or `expr == 0` (eq0): checked at once for a number, a constraint of the sketch for Params.

        `found` is the value that the message refers to; the error shows it.
        """
        value = expr.const
        if value is not None:
            if value > 0 if kind == "le0" else value != 0:
                raise self.refuse(label, message if found is None else f"{message}; found {found!r}")
            return
        if not is_param_only(expr):
            raise self.refuse(label, f"{message}: {expr!r} depends on a loop variable")
        if not any(c.kind == kind and c.expr == expr for c in self.constraints):
            self.constraints.append(Constraint(kind, expr, label))

    def require_at_most(self, expr: Poly, most: int, label: str, message: str) -> None:
        """Require `expr <= most`; no constraint is added if the domain of a Param guarantees it."""
        param = next(iter(expr.vars), None)
        if isinstance(param, Param) and expr == poly(param) and max(param.domain) <= most:
            return
        self.require("le0", expr - most, label, message, expr)

    def grow_error(self, factor: float) -> None:
        """State that the step multiplies rounding errors, root mean square, by a factor; below 1 it only makes them smaller."""
        self.error_growth *= max(factor, 1.0)

    # ---- sampling -----------------------------------------------------------------------------------------------------

    def sample(
        self,
        names: Sequence[str],
        domains: Sequence[Sequence[int]],
        decision: Sequence[int] | None,
        accept: Callable[[Sequence[int]], bool] | None = None,
        least: int = 0,
    ) -> list[IntRV]:
        """Params, or the given decision, or a seeded draw, repeated until `accept` holds; Params and decisions are not tested with it.

        Decisions below `least` are refused.  Params have different names: one whose name is taken gets a number.
        """
        if self.parametric:
            first = len(self.params)
            for name, d in zip(names, domains, strict=True):
                self.params.append(Param(_unused(name, {p.name for p in self.params}), d))
            return [self.new_int(poly(p)) for p in self.params[first:]]
        if decision is None and self._given is not None:
            decision = next(self._given, None)
        if decision is None:
            for _ in range(1000):
                decision = tuple([d[int(self._random.integers(len(d)))] for d in domains])
                if accept is None or accept(decision):
                    break
            else:
                raise self.refuse("admissible", f"no admissible values were found in 1000 draws from {[list(d)[:8] for d in domains]}")
        given = list(decision) if isinstance(decision, Iterable) else [decision]
        values = [n for x in given if (n := as_integer(x)) is not None and n >= least]
        if len(given) != len(names) or len(values) < len(names) or not isinstance(decision, Iterable):
            raise self.refuse("decision", f"{len(names)} integers >= {least} are needed, got {given}")
        if max(values, default=0) > MAX_INTEGER:
            raise self.refuse("decision", f"a decision is at most {MAX_INTEGER}, like sizes of programs, got {given}")
        self.decision = tuple(values)
        return [self.new_int(poly(x)) for x in values]

    @staticmethod
    def value(x: IntRV | int) -> Poly:
        """The expression of a factor argument."""
        return x.expr if isinstance(x, IntRV) else poly(x)

    # ---- queries ------------------------------------------------------------------------------------------------------

    def path(self, block: BlockRV | str) -> list[Any]:
        """Statements from the function body down to the block, the block last."""
        name = block.block if isinstance(block, BlockRV) else block
        if not isinstance(name, str):
            raise self.refuse("block-exists", f"a block handle is needed, got {_named(name)}")
        found = self._all_paths().get(name)
        if found is None:
            known = ", ".join(b.name for b in self.blocks())
            has = (
                f"the function has {known}"
                if known
                else 'the function has none: put the statements to schedule into `with T.block("name"):`'
            )
            raise self.refuse("block-exists", f"there is no block {name!r}; {has}")
        return list(found)

    def _all_paths(self) -> dict[str, list[Any]]:
        body = self.func.body
        if self._paths[0] is not body:
            self._paths = (body, paths_to_blocks(body))
        return self._paths[1]

    def loops_of(self, block: BlockRV | str) -> list[For]:
        """The loops around the block, outermost first."""
        return [n for n in self.path(block) if type(n) is For]

    def block(self, block: BlockRV | str) -> Block:
        """The block."""
        return self.path(block)[-1]

    def loop(self, loop: LoopRV) -> For:
        """The loop; refused if an earlier step consumed it."""
        if not isinstance(loop, LoopRV):
            raise self.refuse("loop-exists", f"a loop handle is needed, got {_named(loop)}")
        found = self.find_loop(self.func.body, loop.var)
        if found is None:
            by = self._consumed.get(loop.var)
            raise self.refuse(
                "loop-exists", f"loop {loop.var.name} ({loop.name}) " + (f"was consumed by {by}" if by else "is not in this program")
            )
        return found

    @staticmethod
    def find_loop(root: Any, var: Var) -> For | None:
        """The loop with the variable `var` in `root`."""
        if type(root) is For:
            return root if root.var is var else ScheduleState.find_loop(root.body, var)
        if type(root) is Seq:
            for s in root.stmts:
                r = ScheduleState.find_loop(s, var)
                if r is not None:
                    return r
        return None

    def blocks(self) -> list[Block]:
        """All blocks in program order."""
        return [path[-1] for path in self._all_paths().values()]

    def fresh_name(self, base: str) -> str:
        """`base`, or `base_1`, `base_2`, ... if a block already has that name."""
        taken = {b.name for b in self.blocks()}
        return base if base not in taken else next(n for i in itertools.count(1) if (n := f"{base}_{i}") not in taken)

    # ---- editing ------------------------------------------------------------------------------------------------------

    def set_body(self, body: Stmt) -> None:
        """Replace the function's body."""
        self.func = self.func.with_(body=body)

    def replace_loop(self, var: Var, make: Callable[[For], Stmt]) -> None:
        """Replace the loop with the variable `var` by `make(loop)`."""

        def on_for(n: For, recurse: Any) -> Stmt:
            return make(n) if n.var is var else n.map_children(recurse)

        self.set_body(transform(self.func.body, {For: on_for, Seq: _flattened, Block: lambda n, _: n}))

    def replace_block(self, name: str, make: Callable[[Block], Stmt]) -> None:
        """Replace the block by `make(block)`."""

        def on_block(n: Block, recurse: Any) -> Stmt:
            return make(n) if n.name == name else n

        self.set_body(transform(self.func.body, {Block: on_block, Seq: _flattened}))

    def add_allocs(self, *buffers: Buffer) -> None:
        """Allocate more buffers."""
        self.func = self.func.with_(allocs=(*self.func.allocs, *buffers))

    def replace_alloc(self, old: Buffer, new: Buffer) -> None:
        """Replace the allocation `old` by `new`; the caller redirects the accesses."""
        self.func = self.func.with_(allocs=tuple([new if b is old else b for b in self.func.allocs]))

    def remove_block(self, name: str) -> None:
        """Remove the block and every loop that contains nothing else."""

        def go(n: Any) -> Any:
            if type(n) is Block:
                return None if n.name == name else n
            if type(n) is For:
                body = go(n.body)
                return None if body is None else n if body is n.body else n.with_(body=body)
            if type(n) is Seq:
                remaining = [k for k in map(go, n.stmts) if k is not None]
                return seq(remaining) if remaining else None
            return n

        self.set_body(go(self.func.body))

    def root_stmts(self) -> list[Stmt]:
        """The top-level statements of the function."""
        b = self.func.body
        return list(b.stmts) if isinstance(b, Seq) else [b]

    def root_index(self, name: str) -> int:
        """Index of the root statement that contains the block."""
        return next(i for i, s in enumerate(self.root_stmts()) if any(b.name == name for b in blocks_under(s)))
