"""Statements: loops, blocks, stores.  A schedulable program is loops around blocks; a block is one tensor computation.

Every loop starts at 0: the script parser and `loop_partition` shift a loop with another start into its body.
"""

from __future__ import annotations

from collections.abc import Iterable

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Call, Expr
from tunesmith.ir.node import Node, node
from tunesmith.ir.poly import Index, Poly, Var, poly
from tunesmith.support.errors import ScriptError

FOR_KINDS = ("serial", "parallel", "vectorized", "unrolled", "thread")
THREADS = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z", "vthread.x", "vthread.y", "vthread.z")

GRAIN = "grain"
"""Annotation of a parallel loop: it runs on one thread where it stores fewer elements than this, which may be known only at run time."""

Annotations = tuple[tuple[str, "str | Poly"], ...]
"""Sorted (key, value) pairs; numbers are stored as polynomials, so that they may be Params."""


class Stmt(Node):
    """Root of statements."""

    __slots__ = ()


@node
class BufferStore(Stmt):
    """`buffer[indices] = value`; a vector value goes to lanes `stride` elements apart; `mask` leading lanes are written."""

    buffer: Buffer
    indices: tuple[Poly, ...]
    value: Expr
    stride: Poly | None = None
    mask: Poly | None = None


@node
class For(Stmt):
    """for var in range(extent): body.  `var` is the loop's identity and survives rewriting of the body."""

    var: Var
    extent: Poly
    body: Stmt
    kind: str = "serial"
    thread: str | None = None
    annotations: Annotations = ()


@node
class Iter(Node):
    """A block's own iteration variable: `kind` is S (spatial, data parallel) or R (reduction), over [0, extent)."""

    var: Var
    extent: Poly
    kind: str


@node
class Block(Stmt):
    """One tensor computation: for each instance, iteration variables are bound to expressions of the loops around it.

    Attributes:
        name: unique within the function; the block's identity.
        iters: the iteration variables.
        bindings: their values, expressions of loop variables.
        predicate: the instance runs only when every one of these is < 0 (expressions of loop variables).
        init: runs before `body` when all reduction variables are 0.
        body: in terms of the iteration variables only.
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
class Seq(Stmt):
    """Statements one after the other."""

    stmts: tuple[Stmt, ...]


@node
class Allocate(Stmt):
    """`buffer` lives for the duration of `body`; its contents start undefined."""

    buffer: Buffer
    body: Stmt


@node
class Evaluate(Stmt):
    """An expression run for its effect, such as a prefetch."""

    value: Expr


def barrier() -> Evaluate:
    """All threads of a block wait for each other."""
    return Evaluate(Call("barrier", (), "int32"))


def seq(stmts: Iterable[Stmt | None]) -> Stmt:
    """`stmts` in order, flattened; a single statement stays itself, none is the empty sequence."""
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
    kept = [(k, v) for k, v in old if k != key]
    if value is not None:
        kept.append((key, value if isinstance(value, str) else poly(value)))
    return tuple(sorted(kept, key=lambda kv: kv[0]))
