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


class _Word:
    """A name of the namespace."""

    def __init__(self, name: str, doc: str) -> None:
        self.__name__ = name
        self.__doc__ = doc

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ScriptError(f"T.{self.__name__} may be used only in functions decorated with @T.prim_func, which are parsed and not run")

    def __repr__(self) -> str:
        return f"T.{self.__name__}"


class _Type(_Word):
    """A name in parameter annotations, which Python evaluates when it defines the function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self


class _Axis:
    """Iteration variables of a block: `vi, vk = T.axis.remap("SR", [i, k])`, `vi = T.axis.spatial(64, i * 8 + j)`."""

    spatial: Any = _Word("axis.spatial", "vi = T.axis.spatial(extent, binding): a data-parallel axis.")
    reduce: Any = _Word("axis.reduce", "vk = T.axis.reduce(extent, binding): a reduction axis.")
    remap: Any = _Word("axis.remap", 'vi, vk = T.axis.remap("SR", [i, k]): axes bound to loops, with their extents.')
    S: Any = spatial
    R: Any = reduce


axis = _Axis()

# Declarations.
Buffer: Any = _Type("Buffer", 'A: T.Buffer((m, n), "float32", scope="global"): a buffer parameter.')
param: Any = _Type("param", 't = T.param("t", [1, 2, 4]): a tunable integer, at the top of a function.')
alloc_buffer: Any = _Word("alloc_buffer", 'X = T.alloc_buffer((m, n), "float32"): a buffer for the duration of the call.')
allocate: Any = _Word("allocate", 'x = T.allocate((4,), "float32"): a buffer with a lifetime to the end of the body; or `with ... as x`.')
func_attr: Any = _Word("func_attr", 'T.func_attr({"key": value}): attributes of the function.')

# Loops.
grid: Any = _Word("grid", "for i, j in T.grid(m, n): nested serial loops.")
serial: Any = _Word("serial", "for i in T.serial(n): or (start, stop); annotations={...}.")
parallel: Any = _Word("parallel", "for i in T.parallel(n): iterations on several threads.")
vectorized: Any = _Word("vectorized", "for i in T.vectorized(n): iterations in vector lanes.")
unroll: Any = _Word("unroll", "for i in T.unroll(n): unrolled iterations.")
thread_binding: Any = _Word("thread_binding", 'for i in T.thread_binding(n, "threadIdx.x"): a GPU thread axis.')

# Blocks and statements.
block: Any = _Word("block", 'with T.block("C"): one tensor computation.')
init: Any = _Word("init", "with T.init(): runs when all reduction variables are 0.")
where: Any = _Word("where", "T.where(i * 8 + j < n): predicate of the block.")
block_attr: Any = _Word("block_attr", 'T.block_attr({"key": value}): annotations of the block.')
evaluate: Any = _Word("evaluate", "T.evaluate(x): an expression evaluated for its effect.")
seq: Any = _Word("seq", "with T.seq(): a sequence as a single statement.")

# Values.
min: Any = _Word("min", "The minimum; of two or more arguments for indices.")
max: Any = _Word("max", "The maximum; of two or more arguments for indices.")
pow: Any = _Word("pow", "T.pow(a, b).")
ceildiv: Any = _Word("ceildiv", "T.ceildiv(i, n): the index ceil(i / n).")
select: Any = _Word("select", "T.select(cond, a, b): only the chosen side is evaluated.")
if_then_else: Any = _Word("if_then_else", "The same as T.select.")
cast: Any = _Word("cast", 'T.cast("float32", x).')
Broadcast: Any = _Word("Broadcast", "T.Broadcast(x, lanes): a scalar in every lane.")
Ramp: Any = _Word("Ramp", "T.Ramp(base, stride, lanes): the index vector base + lane * stride.")
lt0: Any = _Word("lt0", "T.lt0(index, lanes=1, stride=...): index + lane * stride < 0, for each lane.")
index: Any = _Word("index", "T.index(3): a number as an index expression, in a value position.")
lookup: Any = _Word("lookup", "T.lookup(value, extent, lambda v: X[v]): an indirect index v, the int64 value, with 0 <= v < extent.")
const: Any = _Word("const", 'T.const(0.0, "float32x4"): a literal of any dtype.')
binary: Any = _Word("binary", 'T.binary("add", a, b): index arithmetic that is not folded.')

_PARAMETER = 'declare the parameter itself as a buffer, A: T.Buffer((m, n), "float32")'
_ELSEWHERE = {
    "handle": _PARAMETER,
    "match_buffer": _PARAMETER,
    "decl_buffer": "write T.alloc_buffer",
    "Select": "write T.select",
    "let": "write the expression where it is used",
}
"""Names of TVMScript that are not supported, and their replacements."""

_dtypes: dict[str, Any] = {n: _Type(n, f"T.{n}(1): a literal or a cast; T.int64 types a symbolic size.") for n in SCALARS}
_intrinsics: dict[str, Any] = {n: _Word(n, f"Intrinsic of {i.arity} argument{'s' if i.arity > 1 else ''}.") for n, i in INTRINSICS.items()}

__all__ = ["T", "ir_module", "prim_func", *[n for n, v in list(globals().items()) if isinstance(v, (_Word, _Axis))], *SCALARS, *INTRINSICS]


def __getattr__(name: str) -> Any:
    word = _dtypes.get(name) or _intrinsics.get(name)
    if word is None:
        instead = _ELSEWHERE.get(name)
        raise AttributeError(f"the script has no T.{name}{f': {instead}' if instead else ''}")
    return word
