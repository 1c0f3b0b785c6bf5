"""Declare statements: loops, blocks, stores.  A schedulable program is loops around blocks; a block is one tensor computation.

Every loop starts at 0: the script parser and the pass `tighten_loop_bounds` move any other start into the indices of the body.
"""

from __future__ import annotations

from collections.abc import Iterable

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Call, Expr
from tunesmith.ir.indirect_index import IndirectVar
from tunesmith.ir.node import Node, node
from tunesmith.ir.poly import Index, Poly, Var, poly
from tunesmith.support.errors import ScriptError

TENSORIZED = "tensorized"
"""Kind of the loops of a nest that a tensor intrinsic executes; their annotation `intrinsic` has its name."""
FOR_KINDS = ("serial", "parallel", "vectorized", "unrolled", "thread", TENSORIZED)

GRAIN = "grain"
"""Annotation of a parallel loop: it runs on one thread if it stores fewer elements than this.  The number of elements may be known only
at run time."""

Annotations = tuple[tuple[str, "str | Poly"], ...]
"""Sorted (key, value) pairs; numbers are stored as polynomials, which allows Params."""


class Stmt(Node):
    """Base class of statements."""

    __slots__ = ()


@node
class BufferStore(Stmt):
    """`buffer[indices] = value`; lanes of a vector value are stored `stride` elements apart; `mask` leading lanes are written."""

    buffer: Buffer
    indices: tuple[Poly, ...]
    value: Expr
    stride: Poly | None = None
    mask: Poly | None = None


@node
class For(Stmt):
    """for var in range(extent): body.  `var` identifies the loop across rewrites of its body."""

    var: Var
    extent: Poly
    body: Stmt
    kind: str = "serial"
    thread: str | None = None
    annotations: Annotations = ()


@node
class Iter(Node):
    """An iteration variable of a block over [0, extent); `kind` is S (spatial) or R (reduction).

    Instances with different values of a spatial variable may depend on each other (a scan).  Every step that changes the order of
    instances checks their dependences.
    """

    var: Var
    extent: Poly
    kind: str


@node
class Block(Stmt):
    """One tensor computation, whose iteration variables are bound to expressions of the enclosing loops.

    Attributes:
        name: unique within the function; identifies the block.
        iters: the iteration variables.
        bindings: values of the iteration variables, expressions of loop variables.
        predicate: expressions of loop variables; an instance runs only if all of them are < 0.
        init: runs before `body` when all reduction variables are 0.
        body: the computation, in terms of the iteration variables only.
    """

    name: str
    iters: tuple[Iter, ...]
    bindings: tuple[Poly, ...]
    predicate: tuple[Poly, ...]
    init: Stmt | None
    body: Stmt
    annotations: Annotations = ()


@node
class If(Stmt):
    """if cond: then else: orelse."""

    cond: Expr
    then: Stmt
    orelse: Stmt | None = None


@node
class While(Stmt):
    """while cond: body.  It contains no blocks and no bound loops; that it ends is not checked."""

    cond: Expr
    body: Stmt


@node
class Seq(Stmt):
    """Statements in sequence."""

    stmts: tuple[Stmt, ...]


@node
class Allocate(Stmt):
    """Allocate `buffer` for the duration of `body`; its initial contents are undefined."""

    buffer: Buffer
    body: Stmt


@node
class BindIndex(Stmt):
    """`body` with `var` bound to `value`, an indirect index of stores (scatter): see `IndirectIndex`.

    0 <= value < extent must hold; the interpreter checks it, compiled code does not.

    Attributes:
        var: the variable, bound in `body` only.
        extent: exclusive upper bound of the value.
        value: an int64 scalar, computed once before the body.
        body: stores, in terms of `var`.
    """

    var: IndirectVar
    extent: Poly
    value: Expr
    body: Stmt


@node
class Evaluate(Stmt):
    """An expression evaluated for its effect, such as a prefetch."""

    value: Expr


def barrier() -> Evaluate:
    """A barrier over all threads of a thread block."""
    return Evaluate(Call("barrier", (), "int32"))


def seq(stmts: Iterable[Stmt | None]) -> Stmt:
    """`stmts` in order, flattened; a single statement is returned as it is, no statement gives the empty Seq."""
    out: list[Stmt] = []
    for s in stmts:
        if s is not None:
            out.extend(s.stmts if isinstance(s, Seq) else [s])
    return out[0] if len(out) == 1 else Seq(tuple(out))


def store(buffer: Buffer, indices: Iterable[Index], value: Expr) -> BufferStore:
    """buffer[indices] = value."""
    idx = tuple([poly(i) for i in indices])
    if len(idx) != len(buffer.shape):
        raise ScriptError(f"buffer {buffer.name} has {len(buffer.shape)} dimensions and was stored to with {len(idx)} indices")
    return BufferStore(buffer, idx, value)


def nest(loops: Iterable[tuple[Var, Index]], body: Stmt) -> Stmt:
    """Serial loops, outermost first, around `body`."""
    for var, extent in reversed(list(loops)):
        body = For(var, poly(extent), body)
    return body


def annotation(node: For | Block, key: str) -> str | Poly | None:
    """The value of an annotation, None when absent."""
    return next((v for k, v in node.annotations if k == key), None)


def annotated(old: Annotations, key: str, value: str | Index | None) -> Annotations:
    """`old` with `key` set to `value`, or removed when None; numbers become polynomials; sorted by key."""
    pairs = [(k, v) for k, v in old if k != key]
    if value is not None:
        pairs.append((key, value if isinstance(value, str) else poly(value)))
    return tuple(sorted(pairs, key=lambda kv: kv[0]))
