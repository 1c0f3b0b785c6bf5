"""Test errors of the script parser: message, position and hint; hostile text is never executed."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.diagnostics import Source, SourceError, shorten
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.syntax import T
from tunesmith.support.errors import ScriptError, UserError

HEAD = '@T.prim_func\ndef f(A: T.Buffer((8, 8), "float32"), K: T.Buffer((8,), "int64"), M: T.Buffer((), "bool"), n: T.int64):\n'


def function(body: str) -> str:
    return HEAD + "\n".join("    " + line for line in body.split("\n")) + "\n"


def block(lines: str) -> str:
    return 'for i, j in T.grid(8, 8):\n    with T.block("b"):\n' + "\n".join("        " + line for line in lines.split("\n"))


def refusal(text: str) -> tuple[str, str, str]:
    """The message, the underlined text, and the hint."""
    with pytest.raises(ScriptError) as caught:
        parse(text)
    e = caught.value
    assert isinstance(e, SourceError) and isinstance(e, UserError)
    first, shown, carets, *hint = str(e).split("\n")
    assert first.startswith(f"<script>:{e.line}: ")
    source = shown.partition(" | ")[2]
    marks = carets.partition(" | ")[2]
    assert source.strip() in text or len(source) == 140
    at = marks.index("^")
    return first.partition(": ")[2], source[at : at + marks.count("^")], " ".join(hint).strip()


CASES: list[tuple[str, str, str, str]] = [
    # body, what, where, hint
    ("A[m, 0] = 0", "unknown name `m`", "m", "Known here: n, A, K, M."),
    ("for vi in range(4):\n    A[vj, 0] = 0", "unknown name `vj`", "vj", "Did you mean `vi`?"),
    ("for i in range(4):\n    A[i, 0] = 0\nA[i, 0] = 0", "unknown name `i`", "i", "Known here"),
    ("A[0] = 0", "buffer A has 2 dimensions and was indexed with 1", "A[0]", ""),
    ("A[0, 0] = A[0]", "buffer A has 2 dimensions and was indexed with 1", "A[0]", ""),
    ("A[0, 0] += A[0, 0, 0]", "buffer A has 2 dimensions and was indexed with 3", "A[0, 0, 0]", ""),
    (
        "A[K[0], 0] = 0",
        "an index expression is needed here, got a value of type int64",
        "K[0]",
        "Write T.lookup(K[0], extent, lambda v: X[v])",
    ),
    ("A[n & 3, 0] = 0", "an index expression is needed here, got a value of type int64", "n & 3", "T.lookup(n & 3, extent"),
    ("A[0.5, 0] = 0", "an index expression is needed here, got the float 0.5", "0.5", ""),
    ("A[n < 3, 0] = 0", "an index expression is needed here, got a value of type bool", "n < 3", ""),
    ("A[0:4, 0] = 0", "unsupported in a script: slice", "0:4", ""),
    ("A[n // 0, 0] = 0", "division by 0: index divisors must be >= 1", "n // 0", ""),
    ("A[1 // 0, 0] = 0", "division by zero", "1 // 0", ""),
    ("A[2 ** 3, 0] = 0", "two numbers cannot be combined with `**` here", "2 ** 3", "Write the result."),
    ("D[0] = 0", "assignment to `D`, which is not a declared buffer", "D", "Declare it as a parameter (T.Buffer) or with T.alloc_buffer"),
    ("D[0] += 1", "assignment to `D`, which is not a declared buffer", "D", "Declare it"),
    ("n[0] = 0", "`n` is not a buffer and cannot be written", "n", ""),
    ("A[0, 0] = n[0]", "`n` is not a buffer and cannot be read", "n", ""),
    ("A[0, 0] = B[0]", "unknown buffer `B`", "B", "Known here"),
    ("A[0, 0] = A", "`A` is a buffer; its elements are values", "A", "Index it: A[..., ...]."),
    ("A[0, 0] = (A)[0, 0][0]", "only a buffer can be read, by its name", "(A)[0, 0]", ""),
    ("x = n + 1", "only elements of buffers can be assigned to", "x", "Store to a buffer"),
    ("x += 1", "only elements of buffers can be assigned to", "x", ""),
    ("A[0, 0] = K[1] = 0", "a store has one target", "A[0, 0] = K[1] = 0", ""),
    # dtypes
    ("A[0, 0] = K[0]", "a value of type int64 is stored to buffer `A` of type float32", "K[0]", 'Write T.cast("float32", value).'),
    ("A[0, 0] += K[0]", "add: operands have different types float32 and int64", "A[0, 0] += K[0]", ""),
    ("A[0, 0] = A[0, 1] * n", "mul: operands have different types float32 and int64", "A[0, 1] * n", ""),
    ("K[0] = K[1] / 2", "`/` is for floats, got int64", "K[1] / 2", ""),
    ("K[0] = 1.5", "the literal 1.5 is not a value of int64", "1.5", ""),
    ("K[0] = K[1] + 0.5", "the literal 0.5 is not a value of int64", "K[1] + 0.5", ""),
    ("K[0] = T.int8(200)", "the literal 200 does not fit in int8, which holds -128 to 127", "200", ""),
    ("K[0] = T.uint8(-1)", "the literal -1 does not fit in uint8, which holds 0 to 255", "-1", ""),
    ("M[()] = 3", "the literal 3 is not a bool", "3", "Write True or False."),
    ("A[0, 0] = T.exp(1.0)", "the number 1.0 has no dtype here", "1.0", "Write T.float32(1.0)"),
    ("A[0, 0] = T.select(n < 3, 1, 2)", "the number 1 has no dtype here", "1", "Write T.float32(1)"),
    ("A[0, 0] = T.select(n, 1.0, A[0, 0])", "a condition is needed here, got a value of type int64", "n", "Compare it: `x != 0`."),
    ("if A[0, 0]:\n    A[0, 0] = 0", "a condition is needed here, got a value of type float32", "A[0, 0]", ""),
    ("A[0, 0] = A[0, 0] & 3", "`&` is for integers and bools, not for floats", "A[0, 0] & 3", ""),
    ("M[()] = T.sqrt(T.int32(4))", "T.sqrt takes floats, got int32; cast the operand, for example to float32", "T.sqrt(T.int32(4))", ""),
    ("M[()] = -(n < 3)", "a bool cannot be negated with `-`", "-(n < 3)", "Write `not x`."),
    ('A[0, 0] = T.cast("float31", K[0])', "unknown dtype 'float31'", '"float31"', ""),
    ("A[0, 0] = T.cast(n, n)", "a dtype must be text in quotes", "n", ""),
    ('A[0, 0] = T.binary("div", n, n)', "T.binary is for unfolded index arithmetic", '"div"', ""),
    (
        'A[0, 0] = T.binary("add", n, A[0, 0])',
        "T.binary takes two values of int64, got int64 and float32",
        'T.binary("add", n, A[0, 0])',
        "",
    ),
    ('A[0, 0] = T.const(n, "float32")', "T.const takes a number", "n", ""),
    # operators and calls
    ("A[0, 0] = A[0, 0] @ A[0, 1]", "the operator `@` is not supported", "A[0, 0] @ A[0, 1]", "Write the loops"),
    ("K[0] = ~K[0]", "the operator `~` is not supported", "~K[0]", "Write `not x`"),
    ("if n in 3:\n    A[0, 0] = 0", "`in` and `is` are not supported", "n in 3", ""),
    ('A[0, 0] = "text"', "text cannot be a value here", '"text"', ""),
    ("A[0, 0] = None", "this literal cannot be a value here", "None", ""),
    ("A[0, 0] = T.expp(A[0, 0])", "T.expp is not a value function of the script", "T.expp", "Did you mean T.exp?"),
    ("A[0, 0] = max(A[0, 0], 0)", "`max` cannot be called in a script", "max(A[0, 0], 0)", "Values come from T.*"),
    ("A[0, 0] = T.fma(A[0, 0])", "T.fma takes 3 arguments, got 1", "T.fma(A[0, 0])", ""),
    ("A[0, 0] = T.select(n < 3, 1.0)", "`T.select` needs the argument `b`", "T.select(n < 3, 1.0)", "It takes (cond, a, b)."),
    ("K[0] = T.Ramp(0, 1, lane=4)", "`T.Ramp` got the unexpected argument `lane`", "lane=4", "It takes (base, stride, lanes)."),
    ("K[0] = T.Ramp(0, 1, 4, lanes=4)", "`T.Ramp` got the argument `lanes` twice", "lanes=4", ""),
    ("K[0] = T.Ramp(0, 1, 4, 5)", "`T.Ramp` got 4 arguments", "T.Ramp(0, 1, 4, 5)", ""),
    ("K[0] = T.Ramp(0, 1, n)", "lanes must be an integer >= 1", "n", ""),
    ("A[0, 0] = T.cast(*K)", "`T.cast` got a `*` argument, which is not supported", "*K", ""),
    ("A[0, 0] = T.min(n)", "T.min takes two or more positional arguments", "T.min(n)", ""),
    ("A[0, 0] = A.vload(0, lanes=4)", "the indices must be a list or tuple", "0", ""),
    # loops
    ("for i, j in T.grid(4):\n    A[i, j] = 0", "2 loop variables for 1 extents", "i, j", ""),
    ("for i in T.grid():\n    A[i, 0] = 0", "T.grid takes extents only", "T.grid()", ""),
    ("for i in range(4, 2):\n    A[i, 0] = 0", "this loop has the negative extent -2", "range(4, 2)", ""),
    ("for i in K:\n    A[i, 0] = 0", "this is not a loop range", "K", "Loops run over range(n), T.grid, T.serial"),
    ("for i in T.looped(4):\n    A[i, 0] = 0", "this is not a loop range", "T.looped(4)", ""),
    ('for i in T.thread_binding(4, "threadIdx.w"):\n    A[i, 0] = 0', "unknown thread axis 'threadIdx.w'", '"threadIdx.w"', "threadIdx.x"),
    ("for i in T.thread_binding(4):\n    A[i, 0] = 0", "`T.thread_binding` needs the argument `thread`", "T.thread_binding(4)", ""),
    ("for i in range(4, annotations={}):\n    A[i, 0] = 0", "`range` got the unexpected argument `annotations`", "annotations={}", ""),
    ("for i in T.serial(4, annotations=3):\n    A[i, 0] = 0", "annotations must be a literal dict", "3", ""),
    ('for i in T.serial(4, annotations={"k": 0.5}):\n    A[i, 0] = 0', "an index expression is needed here, got the float 0.5", "0.5", ""),
    ('for i in T.serial(4, annotations={"k": 1, "k": 2}):\n    A[i, 0] = 0', "the annotation 'k' appears twice", '"k"', ""),
    (
        "for i in range(4):\n    for i in range(4):\n        A[i, 0] = 0",
        "`i` already names a variable in scope here",
        "i",
        "Choose another name.",
    ),
    ("for A in range(4):\n    K[A] = 0", "`A` already names a buffer in scope here", "A", ""),
    ("for i, i in T.grid(4, 4):\n    A[i, 0] = 0", "the name `i` appears twice", "i", ""),
    ("for T in range(4):\n    A[0, 0] = 0", "`T` is the script's namespace and cannot be a variable", "T", ""),
    ("for A[0, 0] in range(4):\n    K[0] = 0", "a variable name is needed here", "A[0, 0]", ""),
    ("for i in range(4):\n    A[i, 0] = 0\nelse:\n    A[0, 0] = 0", "`else` after a loop is not supported", "A[0, 0] = 0", ""),
    # blocks
    (
        block("A[i, j] = 0"),
        "`i` cannot be used here",
        "i",
        "It is bound outside the block 'b', which can only use its own iteration variables: add `v = T.axis.spatial",
    ),
    (block("v = T.axis.spatial(8, i)\nA[v, j] = 0"), "`j` cannot be used here", "j", "T.axis.spatial(extent, j)"),
    (block("v = T.axis.spatial(8, i)\nT.where(v < 4)\nA[v, 0] = 0"), "unknown name `v`", "v", ""),
    (
        block("A[0, 0] = 0") + "\n" + block("A[0, 0] = 0"),
        "the block name 'b' is taken by the block in line 4",
        '"b"',
        "Names of blocks are unique",
    ),
    (block("v = T.axis.spatial(8, i)\nv = T.axis.spatial(8, j)\nA[v, 0] = 0"), "`v` already names a variable", "T.axis.spatial(8, j)", ""),
    (block("A[0, 0] = 0\nv = T.axis.spatial(8, i)"), "T.axis lines must appear at the top", "v = T.axis.spatial(8, i)", ""),
    (
        block('v, w = T.axis.remap("S", [i, j])\nA[v, w] = 0'),
        "T.axis.remap got 2 names, the kinds 'S' and 2 loops",
        'T.axis.remap("S", [i, j])',
        "",
    ),
    (block('v, w = T.axis.remap("SX", [i, j])\nA[v, w] = 0'), "the kinds 'SX'", 'T.axis.remap("SX", [i, j])', "Give one S or R for each."),
    (
        block('v, w = T.axis.remap("SS", [i, j + 1])\nA[v, w] = 0'),
        "T.axis.remap takes loop variables only",
        "j + 1",
        "Write T.axis.spatial",
    ),
    (block('v, w = T.axis.remap("SS", [i, n])\nA[v, w] = 0'), "T.axis.remap takes loop variables only", "n", ""),
    (block("v = T.axis.window(8, i)\nA[v, 0] = 0"), "unknown T.axis.window", "T.axis.window", "T.axis.remap"),
    (
        block("v, w = T.axis.spatial(8, i)\nA[v, w] = 0"),
        "T.axis.spatial defines one iteration variable, got 2 names",
        "T.axis.spatial(8, i)",
        "",
    ),
    (block("T.where(i)\nA[0, 0] = 0"), "T.where takes comparisons of index expressions", "i", ""),
    (block("T.where(i != 3)\nA[0, 0] = 0"), "T.where takes < <= > >= ==", "i != 3", ""),
    (block("A[0, 0] = 0\nT.where(n < 3)"), "T.where must appear once, at the top of a `with T.block(...)`", "T.where(n < 3)", ""),
    (block("v = T.axis.spatial(8, i)"), "this body has no statement", 'with T.block("b"):', ""),
    ("with T.init():\n    A[0, 0] = 0", "T.init must appear at the top of a T.block", "with T.init():", ""),
    ("with T.block():\n    A[0, 0] = 0", "`T.block` needs the argument `name`", "T.block()", ""),
    ("with T.block(n):\n    A[0, 0] = 0", "the name of a block must be text in quotes", "n", ""),
    ('with T.block("b") as b:\n    A[0, 0] = 0', "T.block has no `as`", "b", ""),
    ("with open:\n    A[0, 0] = 0", "unsupported `with`", "with open:", "Write with T.block(name)"),
    # buffers and declarations
    ("with T.allocate((4,)):\n    A[0, 0] = 0", "this buffer has no name", "with T.allocate((4,)):", ""),
    ("x, y = T.allocate((4,))\nx[0] = 0", "T.allocate allocates one buffer", "x, y = T.allocate((4,))", ""),
    ("x = T.allocate((4,))", "this body has no statement", "x = T.allocate((4,))", ""),
    (
        'x = T.allocate((4,), "float32", "cache")\nx[0] = 0',
        "unknown storage scope 'cache'",
        '"cache"',
        "Scopes are global, workspace, register",
    ),
    (
        'x = T.allocate((4,), "float32x4")\nx[0] = 0',
        "buffer x: element type must be a scalar, got float32x4",
        'T.allocate((4,), "float32x4")',
        "",
    ),
    ("x = T.allocate((-4,))\nx[0] = 0", "buffer x has the negative extent -4", "(-4,)", ""),
    (
        "for i in range(4):\n    x = T.alloc_buffer((4,))\n    x[0] = 0",
        "T.alloc_buffer must appear at the top level of the function",
        "x = T.alloc_buffer((4,))",
        "T.allocate",
    ),
    ('if n < 3:\n    t = T.param("t", [1])\n    A[t, 0] = 0', "T.param declares a name of the whole function", 't = T.param("t", [1])', ""),
    ("S[0] = 0\nS = T.alloc_buffer((4,))", "`S` is used before its T.alloc_buffer", "S", "Declare it first."),
    ("A = T.alloc_buffer((4,))\nA[0] = 0", "`A` already names a buffer", "A = T.alloc_buffer((4,))", ""),
    ("m = T.int64(5)\nA[m, 0] = 0", "`T.int64` got 1 arguments", "T.int64(5)", ""),
    ('t = T.param("t", [])\nA[t, 0] = 0', "Param t: its domain must hold at least one value", 'T.param("t", [])', ""),
    ('t = T.param("t", 4)\nA[t, 0] = 0', "the values of a Param must be a list or tuple", "4", ""),
    ('t = T.param("t", [-1])\nA[t, 0] = 0', "a value of a Param must be an integer >= 0", "-1", ""),
    ('t = T.param("t", range(1, 9, 0))\nA[t, 0] = 0', "a bound of the values must be an integer >= 1", "0", ""),
    ('t = T.param("t", range(0, 99999999999))\nA[t, 0] = 0', "a Param has at most 65536 values", "range(0, 99999999999)", ""),
    ('T.func_attr({"a": 1})\nT.func_attr({"b": 1})\nA[0, 0] = 0', "T.func_attr appears twice", 'T.func_attr({"b": 1})', ""),
    (
        'for i in range(4):\n    T.func_attr({"a": 1})',
        "T.func_attr must appear at the top level of the function",
        'T.func_attr({"a": 1})',
        "",
    ),
    # statements
    ("return A", "unsupported statement in a script: return", "return A", ""),
    ("import os", "unsupported statement in a script: import", "import os", ""),
    ("def g(): pass", "unsupported statement in a script: a function inside a function", "def g(): pass", ""),
    ("pass", "unsupported statement in a script: pass", "pass", ""),
    ("assert n < 3", "unsupported statement in a script: assert", "assert n < 3", ""),
    ("x: int = 3", "`int` is no type of a variable", "int", ""),
    ("A[0, 0]", "an expression has no effect as a statement", "A[0, 0]", "Store it to a buffer."),
    ("T.exp(A[0, 0])", "T.exp is not a statement of the script", "T.exp(A[0, 0])", "T.evaluate(x)"),
    ("A[0, 0] = [x for x in A]", "unsupported in a script: list comprehension", "[x for x in A]", ""),
    ("A[0, 0] = lambda: 3", "unsupported in a script: lambda", "lambda: 3", ""),
    ('A[0, 0] = f"{n}"', "unsupported in a script: f-string", 'f"{n}"', ""),
    ("A[0, 0] = (m := 3)", "unsupported in a script: assignment expression `:=`", "(m := 3)", ""),
    ('"""Only a docstring."""', "this body has no statement", "def f(", ""),
]


@pytest.mark.parametrize(
    ("body", "what", "where", "hint"), CASES, ids=[re.sub(r"\W+", "-", c[0])[:50] + f"-{n}" for n, c in enumerate(CASES)]
)
def test_refusal(body: str, what: str, where: str, hint: str) -> None:
    message, marked, advice = refusal(function(body))
    assert what in message
    assert where == marked or (len(where) > 3 and marked.startswith(where)) or (where.startswith("(") and marked == where[1:-1])
    assert hint in advice


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("x = 3", "unsupported at the top of a script: Assign", "x = 3"),
        ("@T.prim_func\ndef f(A: T.Buffer((1,))):\n    A[0] = 0\nx = 3", "one function or module is expected, found 2 statements", "x = 3"),
        (
            "def f(A: T.Buffer((1,))):\n    A[0] = 0",
            "the function f needs the decorator @T.prim_func and no other",
            "def f(A: T.Buffer((1,))):",
        ),
        (
            "@print\n@T.prim_func\ndef f(A: T.Buffer((1,))):\n    A[0] = 0",
            "needs the decorator @T.prim_func and no other",
            "def f(A: T.Buffer((1,))):",
        ),
        ("@T.prim_func(3)\ndef f(A: T.Buffer((1,))):\n    A[0] = 0", "needs the decorator @T.prim_func and no other", "T.prim_func(3)"),
        ("@T.prim_func\ndef f(A):\n    A[0] = 0", "the parameter `A` has no type", "A"),
        ("@T.prim_func\ndef f(A: int):\n    A[0] = 0", "the parameter `A` has an unsupported type", "int"),
        ("@T.prim_func\ndef f(A: 'T.Buffer('):\n    A[0] = 0", "this type is not a Python expression", "'T.Buffer('"),
        ("@T.prim_func\ndef f(A: T.Buffer((m,))):\n    A[0] = 0", "unknown name `m`", "m"),
        ("@T.prim_func\ndef f(A: T.Buffer((1,)) = 3):\n    A[0] = 0", "parameters have no defaults, no `*` and no `/`", "3"),
        ("@T.prim_func\ndef f(*A: T.Buffer((1,))):\n    A[0] = 0", "parameters have no defaults, no `*` and no `/`", "A: T.Buffer((1,))"),
        ("@T.ir_module\nclass M:\n    x = 3", "unsupported in a module: Assign", "x = 3"),
        ("@T.ir_module\nclass M(B):\n    pass", "a module is a class without bases under the decorator @T.ir_module", "class M(B):"),
        (
            "@T.ir_module\nclass M:\n" + "    @T.prim_func\n    def f(A: T.Buffer((1,))):\n        A[0] = 0\n" * 2,
            "the module has two functions named 'f'",
            "def f(A: T.Buffer((1,))):",
        ),
        ("@T.prim_func\ndef f(A: T.Buffer((1,))):\n    A[0] = = 0", "Python syntax: invalid syntax", "="),
        ("@T.prim_func\ndef f(A: T.Buffer((1,))):\nA[0] = 0", "Python syntax: expected an indented block", "A"),
    ],
)
def test_refusal_of_a_whole_text(text: str, what: str, where: str) -> None:
    message, marked, _ = refusal(text)
    assert what in message and marked == where


def test_format_of_a_message(assert_golden: Callable[..., None]) -> None:
    with pytest.raises(ScriptError) as caught:
        parse(function(block('vi, vj = T.axis.remap("SS", [i, j])\nA[vi, vk] = 0.0')), file="matmul.py")
    assert_golden(str(caught.value))


def test_places_count_characters_and_long_lines_are_cut() -> None:
    message, marked, _ = refusal(function('T.func_attr({"ключ": 1, "ü": m})\nA[0, 0] = 0'))
    assert (message, marked) == ("unknown name `m`", "m")
    message, marked, _ = refusal(function(f"A[{' + '.join(['n'] * 150)} + m, 0] = 0"))
    assert (message, marked) == ("unknown name `m`", "m")


def test_shown_text_has_no_control_characters() -> None:
    with pytest.raises(ScriptError) as caught:
        parse(function('A[0, 0] = "\x1b[31m"'))
    assert "\x1b" not in str(caught.value)
    assert shorten("a\nb\x00" + "c" * 100, 10) == "a?b?ccc..."


def test_a_decorated_function_is_located_in_its_file() -> None:
    with pytest.raises(SourceError) as caught:

        @T.prim_func
        def f(A: T.Buffer((4,))):
            A[0] = A[1] + unknown

    line = Path(__file__).read_text().splitlines()[caught.value.line - 1]
    assert caught.value.file.endswith("test_script_errors.py")
    assert line.strip() == "A[0] = A[1] + unknown"


def test_enclosing_constants_are_numbers_or_text() -> None:
    table = [1, 2]
    with pytest.raises(ScriptError, match=r"`table` is a list(.|\n)*Only int, float and str constants"):

        @T.prim_func
        def f(A: T.Buffer((4,))):
            A[table] = 0

    kind = "float32"
    with pytest.raises(ScriptError, match=r"`kind` is text, not a value"):

        @T.prim_func
        def g(A: T.Buffer((4,))):
            A[0] = kind


def test_the_decorator_needs_a_function_with_source() -> None:
    with pytest.raises(ScriptError, match="T.prim_func decorates a function, got int"):
        T.prim_func(3)
    scope: dict[str, object] = {}
    exec("def f(A): pass", scope)
    with pytest.raises(ScriptError, match=r"the source of f cannot be found(.|\n)*parse its text with script.parser.parse"):
        T.prim_func(scope["f"])
    with pytest.raises(ScriptError, match="T.prim_func decorates a function"):
        T.prim_func(lambda A: A)


def test_a_module_class_holds_functions_only() -> None:
    with pytest.raises(ScriptError, match=r"T.ir_module: Module.x is a int; a module contains functions decorated with @T.prim_func only"):

        @T.ir_module
        class Module:
            x = 3


# ---- hostile text ----------------------------------------------------------------------------------------------------

_LOOP = "for i, j, k in T.grid(8, 8, 8):\n    A[{}, j] = 0.0"
HOSTILE: dict[str, str] = {
    "parentheses": _LOOP.format("(" * 100_000 + "i" + ")" * 100_000),
    "signs": _LOOP.format("-" * 100_000 + "i"),
    "signs that Python reads": _LOOP.format("-" * 150 + "i"),
    "not": "if " + "not " * 50_000 + "n < 3:\n    A[0, 0] = 0",
    "powers": _LOOP.format("**".join(["9"] * 50_000)),
    "power": _LOOP.format("9**9**9**9"),
    "shift": _LOOP.format("1 << 100000000"),
    "attributes": _LOOP.format("A" + ".a" * 100_000),
    "sum": _LOOP.format("+".join(["i"] * 100_000)),
    "long sum": _LOOP.format("+".join(["i"] * 500)),
    "and": "if " + " and ".join(["n < 3"] * 2_000) + ":\n    A[0, 0] = 0",
    "comparisons": "if " + " < ".join(["n"] * 2_000) + ":\n    A[0, 0] = 0",
    "ternaries": "A[0, 0] = " + "A[0, 0] if n < 3 else " * 20_000 + "0.0",
    "digits": _LOOP.format("9" * 1_000_000),
    "hex digits": _LOOP.format("0x" + "f" * 1_000_000),
    "2**64": _LOOP.format(str(2**64)),
    "product of numbers": _LOOP.format("*".join(["i"] + ["9000000000000000000"] * 100)),
    "long name": _LOOP.format("x" * 1_000_000),
    "long loop name": "for " + "x" * 1_000_000 + " in range(3):\n    A[0, 0] = 0",
    "long dtype": f'A[0, 0] = T.cast("{"f" * 1_000_000}", A[0, 0])',
    "long function": f"A[0, 0] = T.{'f' * 1_000_000}(A[0, 0])",
    "expansion": _LOOP.format("*".join(["(i + j + k + n + 1)"] * 30)),
    "degree": _LOOP.format("*".join(["i"] * 150)),
    "choices": _LOOP.format(f"T.min({', '.join(f'i // {n}' for n in range(2, 3000))})"),
    "grid": f"for {', '.join(f'i{n}' for n in range(2000))} in T.grid({', '.join(['1'] * 2000)}):\n    A[0, 0] = 0",
    "loops": "\n".join(" " * n + f"for i{n} in range(2):" for n in range(90)) + "\n" + " " * 90 + "A[0, 0] = 0",
    "elif": "if n < 1:\n    A[0, 0] = 0\n" + "".join(f"elif n < {x}:\n    A[0, 0] = 0\n" for x in range(2000)),
    "allocations": "\n".join(f"b{n} = T.allocate((4,))" for n in range(2000)) + "\nA[0, 0] = 0",
    "null": "A[0, 0] = 0\0",
    "surrogate": "A[0, 0] = '\ud800'",
    "import": '__import__("os").system("touch RAN")',
    "builtins": 'A[0, 0] = open("RAN", "w")',
    "dunder": "A[0, 0] = A.__class__.__bases__[0].__subclasses__()",
    "globals": 'A[0, 0] = T.prim_func.__globals__["os"]',
    "axis": 'A[0, 0] = T.axis.remap.__call__("S")',
    "exec": "exec(\"open('RAN', 'w')\")",
    "lambda call": 'A[0, 0] = (lambda: open("RAN", "w"))()',
    "f-string": "A[0, 0] = f\"{open('RAN', 'w')}\"",
    "walrus": 'A[(x := open("RAN", "w")), 0] = 0',
    "comprehension": 'A[0, 0] = [open(x, "w") for x in ["RAN"]]',
    "subscript type": "A[{1: 2}, ()] = 0",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ScriptError) as caught:
        parse(function(HOSTILE[name]))
    assert len(str(caught.value)) < 2000
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    [
        "",
        '@print(open("RAN", "w"))\ndef f(): pass',
        '@T.prim_func(name=open("RAN", "w"))\ndef f(A: T.Buffer((1,))):\n    A[0] = 0',
        '@T.prim_func\ndef f(A=open("RAN", "w")):\n    A[0] = 0',
        '@T.prim_func\ndef f(A: open("RAN", "w")):\n    A[0] = 0',
        "@T.prim_func\ndef f(A: \"open('RAN', 'w')\"):\n    A[0] = 0",
        f'@T.prim_func\ndef f(A: "{"(" * 1000}"):\n    A[0] = 0',
        '@T.ir_module\nclass M(metaclass=open("RAN", "w")):\n    pass',
        '@T.ir_module\nclass M:\n    open("RAN", "w")',
        'import os\nos.system("touch RAN")',
    ],
)
def test_hostile_whole_text(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ScriptError):
        parse(text)
    assert not list(tmp_path.iterdir())


def test_a_text_that_is_too_long_or_not_a_string() -> None:
    with pytest.raises(ScriptError, match=r"the text has 16000001 characters; at most 16000000 are read"):
        parse(" " * 16_000_001)
    with pytest.raises(ScriptError, match="a script is text, got bytes"):
        parse(b"")  # type: ignore[arg-type]


def test_work_is_limited_over_all_functions_of_a_text() -> None:
    choices = ", ".join(f"n // {d}" for d in range(2, 120))
    one = f"    @T.prim_func\n    def f{{}}(A: T.Buffer((8,)), n: T.int64):\n        A[T.min({choices})] = 0\n"
    assert isinstance(parse("@T.prim_func\n" + "\n".join(line[4:] for line in one.format("").split("\n")[1:])), PrimFunc)
    with pytest.raises(ScriptError, match="the index expressions of this text are too large"):
        parse("@T.ir_module\nclass M:\n" + "".join(one.format(n) for n in range(100)))


def test_a_mark_at_the_end_of_the_text() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        error = Source.of("a\nb").error_at(3, 5, 6, "what", "hint")
    assert str(error) == "<script>:3: what\n  3 | \n    | ^\n  hint"
