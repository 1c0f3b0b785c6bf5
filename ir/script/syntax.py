"""Declare the `T` namespace of scripts, for editors, linters and readers.

    from tunesmith.ir.script.syntax import T

    @T.prim_func
    def double(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in T.serial(8):
            with T.block("B"):
                vi = T.axis.spatial(8, i)
                B[vi] = A[vi] * 2.0

A shape that names a symbolic size (`n: T.int64`, `A: T.Buffer((n,))`) needs `from __future__ import annotations` or quotes,
because Python evaluates annotations when it defines the function.

Only `prim_func` and `ir_module` are executed.  The other names occur in source text, which is parsed and never run; calling them raises.
The namespace also contains the scalar dtypes (`T.float32(0.0)` is a literal, `T.float32(x)` a cast) and the intrinsics of
`ir/intrinsics.py` (`T.exp(x)`).
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.intrinsics import INTRINSICS
from tunesmith.ir.script.parser import parse_python
from tunesmith.support.dtype import SCALARS
from tunesmith.support.errors import ScriptError

T: Any = sys.modules[__name__]


def prim_func(func: Any = None, *, name: str | None = None) -> Any:
    """Parse the source of the decorated function to a PrimFunc.  The function is never run.

    The source may use int, float and str constants of the enclosing Python scopes.

    Args:
        func: the function.
        name: the exported name, if it is not a Python identifier.

    Raises:
        ScriptError: the source is not a program; the message shows the position.
    """
    if func is None:
        return prim_func
    if not callable(func) or not hasattr(func, "__code__"):
        raise ScriptError(f"T.prim_func decorates a function, got {type(func).__name__}")
    return parse_python(func, sys._getframe(1).f_locals)


def ir_module(cls: type) -> IRModule:
    """The IRModule of the functions in the decorated class, each decorated with `@T.prim_func`.

    Raises:
        ScriptError: the class contains anything else.
    """
    functions: list[PrimFunc] = []
    for name, f in vars(cls).items():
        if isinstance(f, PrimFunc):
            functions.append(f)
        elif not (name.startswith("__") and name.endswith("__")):
            raise ScriptError(
                f"T.ir_module: {cls.__name__}.{name} is a {type(f).__name__}; a module contains functions decorated with @T.prim_func only"
            )
    return IRModule(functions)


class Word:
    """A function of the namespace.

    Attributes:
        signature: parameters and result, for editors (`stub.py`); types are names of that stub.
    """

    def __init__(self, name: str, signature: str, doc: str) -> None:
        self.__name__ = name
        self.signature = signature
        self.__doc__ = doc

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ScriptError(f"T.{self.__name__} may be used only in functions decorated with @T.prim_func, which are parsed and not run")

    def __repr__(self) -> str:
        return f"T.{self.__name__}"


class Annotation(Word):
    """A name in parameter annotations, which Python evaluates when it defines the function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self


class _Axis:
    """Iteration variables of a block: `vi, vk = T.axis.remap("SR", [i, k])`, `vi = T.axis.spatial(64, i * 8 + j)`."""

    spatial: Any = Word(
        "axis.spatial", "(extent: Index, binding: Index) -> Poly", "vi = T.axis.spatial(extent, binding): a data-parallel axis."
    )
    reduce: Any = Word("axis.reduce", "(extent: Index, binding: Index) -> Poly", "vk = T.axis.reduce(extent, binding): a reduction axis.")
    remap: Any = Word(
        "axis.remap",
        "(kinds: str, bindings: Sequence[Index]) -> Any",
        'vi, vk = T.axis.remap("SR", [i, k]): axes bound to loops, with their extents; one letter for each loop.',
    )
    S: Any = spatial
    R: Any = reduce


axis = _Axis()

# Declarations.
_BUFFER = '(shape: Shape, dtype: str = "float32", scope: str = "global", pad: Index = 0, name: str = "") -> Buffer'
Buffer: Any = Annotation("Buffer", _BUFFER, 'A: T.Buffer((m, n), "float32", scope="global"): a buffer parameter.')
param: Any = Annotation(
    "param", "(name: str, domain: Sequence[int]) -> Poly", 't = T.param("t", [1, 2, 4]): a tunable integer, at the top of a function.'
)
alloc_buffer: Any = Word("alloc_buffer", _BUFFER, 'X = T.alloc_buffer((m, n), "float32"): a buffer for the duration of the call.')
allocate: Any = Word(
    "allocate", _BUFFER, 'x = T.allocate((4,), "float32"): a buffer with a lifetime to the end of the body; or `with ... as x`.'
)
func_attr: Any = Word("func_attr", "(attributes: Annotations) -> None", 'T.func_attr({"key": value}): attributes of the function.')

# Loops.
_LOOP = "(start: Index, stop: Index = ..., *, annotations: Annotations = ...) -> Iterator[Poly]"
grid: Any = Word("grid", "(*extents: Index) -> Iterator[tuple[Poly, ...]]", "for i, j in T.grid(m, n): nested serial loops.")
serial: Any = Word("serial", _LOOP, "for i in T.serial(n): or (start, stop); annotations={...}.")
parallel: Any = Word("parallel", _LOOP, "for i in T.parallel(n): iterations on several threads.")
vectorized: Any = Word("vectorized", _LOOP, "for i in T.vectorized(n): iterations in vector lanes.")
unroll: Any = Word("unroll", _LOOP, "for i in T.unroll(n): unrolled iterations.")
thread_binding: Any = Word(
    "thread_binding",
    "(stop: Index, thread: str, *, annotations: Annotations = ...) -> Iterator[Poly]",
    'for i in T.thread_binding(n, "threadIdx.x"): a GPU thread axis.',
)

# Blocks and statements.
_CONTEXT = "() -> AbstractContextManager[None]"
block: Any = Word("block", '(name: str = "") -> AbstractContextManager[None]', 'with T.block("C"): one tensor computation.')
init: Any = Word("init", _CONTEXT, "with T.init(): runs when all reduction variables are 0.")
where: Any = Word("where", "(condition: Expr) -> None", "T.where(i * 8 + j < n): predicate of the block.")
block_attr: Any = Word("block_attr", "(attributes: Annotations) -> None", 'T.block_attr({"key": value}): annotations of the block.')
evaluate: Any = Word("evaluate", "(value: Value) -> None", "T.evaluate(x): an expression evaluated for its effect.")
seq: Any = Word("seq", _CONTEXT, "with T.seq(): a sequence as a single statement.")

# Values.
min: Any = Word("min", "(a: Value, b: Value, *more: Value) -> Expr", "The minimum; of two or more arguments for indices.")
max: Any = Word("max", "(a: Value, b: Value, *more: Value) -> Expr", "The maximum; of two or more arguments for indices.")
pow: Any = Word("pow", "(a: Value, b: Value) -> Expr", "T.pow(a, b).")
ceildiv: Any = Word("ceildiv", "(a: Index, b: Index) -> Poly", "T.ceildiv(i, n): the index ceil(i / n).")
_SELECT = "(cond: Expr, a: Value, b: Value) -> Expr"
select: Any = Word("select", _SELECT, "T.select(cond, a, b): only the chosen side is evaluated.")
if_then_else: Any = Word("if_then_else", _SELECT, "The same as T.select.")
cast: Any = Word("cast", "(dtype: str, value: Value) -> Expr", 'T.cast("float32", x).')
Broadcast: Any = Word("Broadcast", "(value: Value, lanes: int) -> Expr", "T.Broadcast(x, lanes): a scalar in every lane.")
Ramp: Any = Word(
    "Ramp", "(base: Index, stride: Index, lanes: int) -> Expr", "T.Ramp(base, stride, lanes): the index vector base + lane * stride."
)
lt0: Any = Word(
    "lt0",
    "(index: Index, lanes: int = 1, stride: Index = ...) -> Expr",
    "T.lt0(index, lanes=1, stride=...): index + lane * stride < 0, for each lane.",
)
index: Any = Word("index", "(value: Index) -> Poly", "T.index(3): a number as an index expression, in a value position.")
lookup: Any = Word(
    "lookup",
    "(value: Expr, extent: Index, body: Callable[[Poly], Value]) -> Expr",
    "T.lookup(value, extent, lambda v: X[v]): an indirect index v, the int64 value, with 0 <= v < extent.",
)
const: Any = Word("const", "(value: float | str, dtype: str) -> Expr", 'T.const(0.0, "float32x4"): a literal of any dtype.')
binary: Any = Word("binary", "(op: str, a: Value, b: Value) -> Expr", 'T.binary("add", a, b): index arithmetic that is not folded.')

_PARAMETER = 'declare the parameter itself as a buffer, A: T.Buffer((m, n), "float32")'
_ELSEWHERE = {
    "handle": _PARAMETER,
    "match_buffer": _PARAMETER,
    "decl_buffer": "write T.alloc_buffer",
    "Select": "write T.select",
    "let": "write the expression where it is used",
}
"""Names of TVMScript that are not supported, and their replacements."""

_dtypes: dict[str, Any] = {
    n: Annotation(n, "(value: Value | str = ...) -> Expr", f"T.{n}(1): a literal or a cast; T.int64 types a symbolic size.")
    for n in SCALARS
}
_intrinsics: dict[str, Any] = {
    n: Word(
        n,
        f"({', '.join([f'x{k}: Value' for k in range(i.arity)])}{', ' if i.arity else ''}*, dtype: str = ...) -> Expr",
        f"Intrinsic of {i.arity} argument{'' if i.arity == 1 else 's'}.",
    )
    for n, i in INTRINSICS.items()
}

__all__ = ["T", "ir_module", "prim_func", *[n for n, v in list(globals().items()) if isinstance(v, (Word, _Axis))], *SCALARS, *INTRINSICS]


def __getattr__(name: str) -> Any:
    word = _dtypes.get(name) or _intrinsics.get(name)
    if word is None:
        instead = _ELSEWHERE.get(name)
        raise AttributeError(f"the script has no T.{name}{f': {instead}' if instead else ''}")
    return word
