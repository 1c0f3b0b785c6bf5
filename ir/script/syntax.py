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
from tunesmith.ir.intrinsics import INTRINSICS, Intrinsic
from tunesmith.ir.script.parser import parse_python
from tunesmith.ir.script.tvm_functions import REFUSED
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
        usage: an example, one line of a script.
        meaning: what the name does.
    """

    def __init__(self, name: str, signature: str, usage: str, meaning: str) -> None:
        self.__name__ = name
        self.__doc__ = f"{usage}: {meaning}"
        self.signature = signature
        self.usage = usage
        self.meaning = meaning

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ScriptError(f"T.{self.__name__} may be used only in functions decorated with @T.prim_func, which are parsed and not run")

    def __repr__(self) -> str:
        return f"T.{self.__name__}"


class Annotation(Word):
    """A name in parameter annotations, which Python evaluates when it defines the function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self


def _axis_word(name: str, binding: str, meaning: str) -> Word:
    return Word(f"axis.{name}", "(extent: Index, binding: Index) -> Poly", f"v = T.axis.{name}(64, {binding})", meaning)


class _Axis:
    """Iteration variables of a block: `vi, vk = T.axis.remap("SR", [i, k])`, `vi = T.axis.spatial(64, i * 8 + j)`."""

    spatial: Any = _axis_word("spatial", "i * 8 + j", "An iteration variable of which each value stores elements: extent, binding.")
    reduce: Any = _axis_word("reduce", "k", "A reduction variable: extent, binding.")
    S: Any = _axis_word("S", "i * 8 + j", "The same as `T.axis.spatial`.")
    R: Any = _axis_word("R", "k", "The same as `T.axis.reduce`.")
    scan: Any = _axis_word("scan", "k", "The same as `T.axis.spatial`: dependences decide which steps may change an order.")
    opaque: Any = _axis_word("opaque", "k", "The same as `T.axis.spatial`, as `T.axis.scan`.")
    remap: Any = Word(
        "axis.remap",
        "(kinds: str, bindings: Sequence[Index]) -> Any",
        'vi, vk = T.axis.remap("SR", [i, k])',
        "Iteration variables bound to loops, with their extents; S is spatial, R reduce.",
    )


axis = _Axis()

# Declarations.
_BUFFER = '(shape: Shape, dtype: str = "float32", scope: str = "global", pad: Index = 0, align: Align = (), name: str = "") -> Buffer'
Buffer: Any = Annotation(
    "Buffer", _BUFFER, 'A: T.Buffer((m, n), "float32", scope="global")', "A buffer parameter: shape, dtype, memory scope."
)
param: Any = Annotation(
    "param",
    "(name: str, domain: Sequence[int]) -> Poly",
    't = T.param("t", [1, 2, 4])',
    "A tunable integer and its domain, at the top of a function.",
)
alloc_buffer: Any = Word(
    "alloc_buffer", _BUFFER, 'X = T.alloc_buffer((m, n), "float32")', "A buffer for the duration of the call, at the top of a function."
)
allocate: Any = Word(
    "allocate",
    _BUFFER,
    'x = T.allocate((4,), "float32")',
    "A buffer with a lifetime to the end of the body; or `with T.allocate(...) as x`.",
)
func_attr: Any = Word("func_attr", "(attributes: Annotations) -> None", 'T.func_attr({"key": "value"})', "Attributes of the function.")

# Loops.
_LOOP = "(start: Index, stop: Index = ..., *, annotations: Annotations = ...) -> Iterator[Poly]"
grid: Any = Word("grid", "(*extents: Index) -> Iterator[tuple[Poly, ...]]", "for i, j in T.grid(m, n)", "Nested serial loops.")
serial: Any = Word(
    "serial",
    _LOOP,
    "for i in T.serial(n)",
    "A serial loop. (start, stop) gives a range; loops other than T.grid also take annotations={...}.",
)
parallel: Any = Word("parallel", _LOOP, "for i in T.parallel(n)", "A loop whose iterations run on several threads.")
vectorized: Any = Word("vectorized", _LOOP, "for i in T.vectorized(16)", "A loop whose iterations run in vector lanes.")
unroll: Any = Word("unroll", _LOOP, "for i in T.unroll(4)", "A loop that is unrolled.")
tensorized: Any = Word(
    "tensorized",
    _LOOP,
    'for i in T.tensorized(16, annotations={"intrinsic": "x86.vpdpbusd.512"})',
    "A loop of a nest that a tensor intrinsic executes; each of its loops has the name.",
)
thread_binding: Any = Word(
    "thread_binding",
    "(stop: Index, thread: str, *, annotations: Annotations = ...) -> Iterator[Poly]",
    'for i in T.thread_binding(n, "threadIdx.x")',
    "A loop bound to a GPU thread axis.",
)

# Blocks and statements.
_CONTEXT = "() -> AbstractContextManager[None]"
block: Any = Word(
    "block",
    '(name: str = "") -> AbstractContextManager[None]',
    'with T.block("C")',
    "One tensor computation; its name is unique in the function.",
)
init: Any = Word("init", _CONTEXT, "with T.init()", "Statements of a block that run when all reduction variables are 0.")
where: Any = Word("where", "(condition: Expr) -> None", "T.where(i * 8 + j < n)", "The predicate of a block.")
block_attr: Any = Word("block_attr", "(attributes: Annotations) -> None", 'T.block_attr({"key": "value"})', "Annotations of a block.")
evaluate: Any = Word("evaluate", "(value: Value) -> None", "T.evaluate(T.prefetch(A[i]))", "An expression evaluated for its effect.")
seq: Any = Word("seq", _CONTEXT, "with T.seq()", "A sequence as a single statement.")

# Values.
_SELECT = "(cond: Expr, a: Value, b: Value) -> Expr"
min: Any = Word("min", "(a: Value, b: Value, *more: Value) -> Expr", "T.min(a, b)", "The minimum; of two or more arguments for indices.")
max: Any = Word("max", "(a: Value, b: Value, *more: Value) -> Expr", "T.max(a, b)", "The maximum; of two or more arguments for indices.")
pow: Any = Word("pow", "(a: Value, b: Value) -> Expr", "T.pow(a, b)", "`a` to the power of `b`; also `a ** b`.")
ceildiv: Any = Word("ceildiv", "(a: Index, b: Index) -> Poly", "T.ceildiv(i, n)", "The index ceil(i / n).")
select: Any = Word("select", _SELECT, "T.select(cond, a, b)", "`a` where the condition holds, else `b`; only the chosen side is evaluated.")
if_then_else: Any = Word("if_then_else", _SELECT, "T.if_then_else(cond, a, b)", "The same as `T.select`; also `a if cond else b`.")
cast: Any = Word("cast", "(dtype: str, value: Value) -> Expr", 'T.cast("float32", x)', "The value converted to a dtype.")
Broadcast: Any = Word(
    "Broadcast", "(value: Value, lanes: int) -> Expr", "T.Broadcast(x, 8)", "A vector with a scalar in every lane: value, lanes."
)
Ramp: Any = Word(
    "Ramp",
    "(base: Index, stride: Index, lanes: int) -> Expr",
    "T.Ramp(base, 1, 8)",
    "The index vector base + lane * stride: base, stride, lanes.",
)
lt0: Any = Word(
    "lt0",
    "(index: Index, lanes: int = 1, stride: Index = ...) -> Expr",
    "T.lt0(index, lanes=8, stride=1)",
    "index + lane * stride < 0, for each lane; by default one lane.",
)
index: Any = Word("index", "(value: Index) -> Poly", "T.index(3)", "A number as an index expression, in a value position.")
lookup: Any = Word(
    "lookup",
    "(value: Expr, extent: Index, body: Callable[[Poly], Value] = ...) -> Any",
    "T.lookup(I[i], 64, lambda v: X[v])",
    "An indirect index `v`: the int64 value, its extent, with 0 <= v < extent, and the expression that uses it; for stores "
    "`with T.lookup(I[i], 64) as v:`.",
)
const: Any = Word("const", "(value: float | str, dtype: str) -> Expr", 'T.const(0.0, "float32x4")', "A literal of any dtype.")
binary: Any = Word("binary", "(op: str, a: Value, b: Value) -> Expr", 'T.binary("add", a, b)', "Index arithmetic that is not folded.")

_PARAMETER = 'declare the parameter itself as a buffer, A: T.Buffer((m, n), "float32")'
_ELSEWHERE = {
    "handle": _PARAMETER,
    "match_buffer": _PARAMETER,
    "decl_buffer": "write T.alloc_buffer",
    "Select": "write T.select",
    **REFUSED,
}
"""Names of TVMScript that are not supported, and their replacements."""

_dtypes: dict[str, Any] = {
    n: Annotation(
        n,
        "(value: Value | str = ...) -> Expr",
        f"T.{n}(x)",
        "A literal, or a cast of a value; `n: T.int64` is a dynamic size." if n == "int64" else "A literal, or a cast of a value.",
    )
    for n in SCALARS
}


def _intrinsic(known: Intrinsic) -> Word:
    operands = known.operand_names
    separator = "" if known.arity > 3 else "*, "
    signature = f"({''.join([f'{x}: Value, ' for x in operands])}{separator}dtype: str = ...) -> Expr"
    return Word(known.name, signature, f"T.{known.name}({', '.join(operands)})", known.meaning)


_intrinsics: dict[str, Any] = {n: _intrinsic(i) for n, i in INTRINSICS.items()}

__all__ = ["T", "ir_module", "prim_func", *[n for n, v in list(globals().items()) if isinstance(v, (Word, _Axis))], *SCALARS, *INTRINSICS]


def __getattr__(name: str) -> Any:
    word = _dtypes.get(name) or _intrinsics.get(name)
    if word is None:
        instead = _ELSEWHERE.get(name)
        raise AttributeError(f"the script has no T.{name}{f': {instead}' if instead else ''}")
    return word
