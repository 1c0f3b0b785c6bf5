"""Read the modules in a database of TVM's MetaSchedule as script text.

A workload has its module as base64 of a length and a graph in JSON: a list of nodes `{"type", "data"}` that refer to each other by
position.  The text is that of TVM 0.27; `ir.script.parser` reads it.  Nothing is executed.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Mapping
from typing import Any

from tunesmith.support import json_lines
from tunesmith.support.errors import RecordError

MAX_DEPTH = 120
MAX_NODES = 1 << 18
"""Limits for hostile files: nesting of nodes, and printed nodes, because nodes may be shared."""
_HEADER = 8
"""Bytes of the length before the graph."""

_INFIX = {
    "Add": "+",
    "Sub": "-",
    "Mul": "*",
    "Div": "/",
    "FloorDiv": "//",
    "FloorMod": "%",
    "EQ": "==",
    "NE": "!=",
    "LT": "<",
    "LE": "<=",
    "GT": ">",
    "GE": ">=",
    "And": "and",
    "Or": "or",
}
_PREFIX = {"Min": "T.min", "Max": "T.max", "Mod": "T.truncmod"}
_KINDS = {0: "T.serial", 1: "T.parallel", 2: "T.vectorized", 3: "T.unroll"}
_AXES = {0: "spatial", 2: "reduce", 3: "scan", 4: "opaque"}


def module_text(encoded: str) -> str:
    """The script text of an encoded module.

    Raises:
        RecordError: it is not a module of TensorIR functions; the message names the node.
    """
    try:
        data = base64.b64decode(encoded, validate=True)[_HEADER:]
    except (binascii.Error, ValueError):
        raise RecordError("the module of a workload is not base64") from None
    graph = json_lines.parse(data)
    nodes = graph.get("nodes") if isinstance(graph, dict) else None
    if not isinstance(graph, dict) or not isinstance(nodes, list) or type(graph.get("root_index")) is not int:
        raise RecordError("the module of a workload is no graph of TVM with `nodes` and `root_index`: export it with TVM 0.25 or later")
    return _Printer(nodes).module(graph["root_index"])


class _Printer:
    """Prints the nodes of one graph; `names` has the name of each variable and buffer by its position."""

    def __init__(self, nodes: list[Any]) -> None:
        self.nodes = nodes
        self.names: dict[int, str] = {}
        self.taken: set[str] = set()
        self.lines: list[str] = []
        self.depth = 0
        self.left = MAX_NODES

    # ---- nodes

    def node(self, at: Any) -> tuple[str, Any]:
        """The type, without its namespace, and the data of the node at a position."""
        if type(at) is not int or not 0 <= at < len(self.nodes) or not isinstance(self.nodes[at], dict):
            raise RecordError(f"the graph of a module refers to node {at!r:.20} of {len(self.nodes)}")
        self.left -= 1
        if self.left < 0 or self.depth > MAX_DEPTH:
            raise RecordError(f"the module is nested more than {MAX_DEPTH} levels deep, or has more than {MAX_NODES} parts")
        found = self.nodes[at]
        return str(found.get("type", "")).rpartition(".")[2], found.get("data")

    def field(self, data: Any, name: str) -> Any:
        """A field of a node."""
        if not isinstance(data, Mapping) or name not in data:
            raise RecordError(f"a node of the graph of a module has no field {name!r}")
        return data[name]

    def items(self, at: Any) -> list[Any]:
        """The positions in an array."""
        kind, data = self.node(at)
        if kind == "None":
            return []
        if kind not in ("Array", "Map") or not isinstance(data, list):
            raise RecordError(f"a list is needed in the graph of a module, got {kind!r:.40}")
        return data

    def pairs(self, at: Any) -> list[tuple[Any, Any]]:
        """The keys and values of a map."""
        found = self.items(at)
        return list(zip(found[::2], found[1::2], strict=False))

    def plain(self, at: Any) -> Any:
        """The value of a literal: text, number, None, or a list of literals."""
        kind, data = self.node(at)
        if kind in ("IntImm", "FloatImm", "StringImm"):
            value = self.field(data, "value")
            return self.node(value)[1] if type(value) is int and kind != "FloatImm" else value
        if kind == "Array":
            self.depth += 1
            inner = [self.plain(x) for x in self.items(at)]
            self.depth -= 1
            return inner
        return data

    def choice(self, value: Any) -> int:
        """The number of an enumeration, which is in its field."""
        if type(value) is not int:
            raise RecordError(f"a number is needed in the graph of a module, got {value!r:.40}")
        return value

    def text(self, at: Any) -> str:
        """The text of a string node."""
        value = self.plain(at)
        if not isinstance(value, str):
            raise RecordError(f"a text is needed in the graph of a module, got {value!r:.40}")
        return value

    def name(self, at: Any) -> str:
        """The name of the variable or buffer at a position, unique in the function."""
        kind, data = self.node(at)
        if at not in self.names:
            if kind not in ("Var", "Buffer", "SizeVar"):
                raise RecordError(f"a variable is needed in the graph of a module, got {kind!r:.40}")
            base = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in self.text(self.field(data, "name"))) or "v"
            base = f"v{base}" if not (base[0].isalpha() or base[0] == "_") or base in ("T", "range") else base
            found, n = base, 0
            while found in self.taken:
                n += 1
                found = f"{base}_{n}"
            self.taken.add(found)
            self.names[at] = found
        return self.names[at]

    # ---- functions

    def module(self, root: int) -> str:
        """The text of the module."""
        kind, data = self.node(root)
        if kind != "IRModule":
            raise RecordError(f"the graph of a workload is a {kind!r:.40}, no module")
        self.lines = ["# from tvm.script import ir as I", "# from tvm.script import tirx as T", "", "@I.ir_module", "class Module:"]
        for variable, function in self.pairs(self.field(data, "functions")):
            kind, body = self.node(function)
            if kind != "PrimFunc":
                raise RecordError(f"a function of the module is a {kind!r:.40}; only TensorIR functions are read")
            self.function(self.text(self.field(self.node(variable)[1], "name_hint")), body)
        return "\n".join(self.lines) + "\n"

    def function(self, name: str, data: Any) -> None:
        """Print a function."""
        self.names, self.taken = {}, {"T", "range"}
        parameters = self.items(self.field(data, "params"))
        types = [self.field(self.node(p)[1], "ty") for p in parameters]
        sizes = [v for t in types if self.node(t)[0] == "BufferType" for v in self.variables(self.field(self.node(t)[1], "shape"))]
        shown = [f"{self.name(p)}: {self.parameter(t)}" for p, t in zip(parameters, types, strict=True)]
        extra = [f"{self.name(v)}: T.int64" for v in dict.fromkeys(sizes) if v not in parameters]
        self.lines += ["    @T.prim_func(s_tir=True)", f"    def {name}({', '.join(shown + extra)}):"]
        self.statement(self.field(data, "body"), 2)

    def parameter(self, at: Any) -> str:
        """The annotation of a parameter."""
        kind, _ = self.node(at)
        return f"T.Buffer({self.buffer(at)})" if kind == "BufferType" else "T.int64"

    def buffer(self, at: Any) -> str:
        """The shape, type and scope of a buffer."""
        _, data = self.node(at)
        shape = "".join([f"{self.value(x)}, " for x in self.items(self.field(data, "shape"))])
        scope = self.text(self.field(data, "storage_scope"))
        if self.items(self.field(data, "strides")):
            raise RecordError("a buffer of the module has strides; only dense buffers are read")
        return f'({shape}), "{self.dtype(self.field(data, "dtype"))}"' + (f', scope="{scope}"' if scope not in ("", "global") else "")

    def dtype(self, at: Any) -> str:
        """The name of an element type."""
        if isinstance(at, str):
            return at
        kind, data = self.node(at)
        return str(self.field(data, "dtype")) if kind == "PrimType" else str(data)

    def variables(self, at: Any) -> list[Any]:
        """The variables in a list of extents."""
        out: list[Any] = []
        for x in self.items(at):
            kind = self.node(x)[0]
            if kind in ("Var", "SizeVar"):
                out.append(x)
            elif kind in _INFIX or kind in _PREFIX:
                raise RecordError("an extent of a parameter is computed from sizes; only sizes and numbers are read")
        return out

    # ---- statements

    def statement(self, at: Any, depth: int) -> None:
        """Print a statement, indented by `depth` steps."""
        kind, data = self.node(at)
        write = _STATEMENTS.get(kind)
        if write is None:
            raise RecordError(f"the module has the statement {kind!r:.40}; pass the script text of the workload instead (mod.script())")
        self.depth += 1
        write(self, data, depth)
        self.depth -= 1

    def line(self, depth: int, text: str) -> None:
        """Append a line."""
        self.lines.append("    " * depth + text)

    def _seq(self, data: Any, depth: int) -> None:
        for s in self.items(self.field(data, "seq")):
            self.statement(s, depth)

    def _for(self, data: Any, depth: int) -> None:
        kind, thread = self.field(data, "kind"), self.field(data, "thread_binding")
        first, extent = self.value(self.field(data, "min")), self.value(self.field(data, "extent"))
        number = self.choice(kind)
        span = extent if first == "0" else f"{first}, {first} + {extent}"
        notes = self.notes(self.field(data, "annotations"))
        more = f", annotations={notes}" if notes != "{}" else ""
        if self.node(thread)[0] != "None":
            tag = self.text(self.field(self.node(thread)[1], "thread_tag"))
            head = f'T.thread_binding({extent}, thread="{tag}"{more})'
        elif number in _KINDS:
            head = f"{_KINDS[number]}({span}{more})"
        else:
            raise RecordError(f"the module has a loop of the kind {number!r:.20}")
        self.line(depth, f"for {self.name(self.field(data, 'loop_var'))} in {head}:")
        self.statement(self.field(data, "body"), depth + 1)

    def _realize(self, data: Any, depth: int) -> None:
        kind, block = self.node(self.field(data, "block"))
        if kind not in ("SBlock", "Block"):
            raise RecordError(f"a block is needed in the graph of a module, got {kind!r:.40}")
        name = self.text(self.field(block, "name_hint"))
        if self.items(self.field(block, "match_buffers")):
            raise RecordError(f"the block {name:.40} has views of buffers; pass the script text of the workload instead (mod.script())")
        iters = self.items(self.field(block, "iter_vars"))
        allocations = [
            f"{self.name(b)} = T.sblock_alloc_buffer({self.buffer(self.field(self.node(b)[1], 'ty'))})"
            for b in self.items(self.field(block, "alloc_buffers"))
        ]
        if name == "root" and not iters:
            for text in allocations:
                self.line(depth, text)
            self.statement(self.field(block, "body"), depth)
            return
        self.line(depth, f'with T.sblock("{name}"):')
        depth += 1
        values = self.items(self.field(data, "iter_values"))
        if len(values) != len(iters):
            raise RecordError(f"the block {name:.40} has {len(iters)} axes and {len(values)} bindings")
        for iteration, value in zip(iters, values, strict=True):
            _, x = self.node(iteration)
            _, span = self.node(self.field(x, "dom"))
            low, extent = self.value(self.field(span, "min")), self.value(self.field(span, "extent"))
            number = self.choice(self.field(x, "iter_type"))
            if number not in _AXES:
                raise RecordError(f"the block {name:.40} has an axis of the kind {number!r:.20}")
            shown = extent if low == "0" else f"({low}, {low} + {extent})"
            self.line(depth, f"{self.name(self.field(x, 'var'))} = T.axis.{_AXES[number]}({shown}, {self.value(value)})")
        predicate = self.value(self.field(data, "predicate"))
        if predicate not in ("T.bool(True)", "T.bool(1)"):
            self.line(depth, f"T.where({predicate})")
        notes = self.notes(self.field(block, "annotations"))
        if notes != "{}":
            self.line(depth, f"T.sblock_attr({notes})")
        if self.node(self.field(block, "init"))[0] != "None":
            self.line(depth, "with T.init():")
            self.statement(self.field(block, "init"), depth + 1)
        for text in allocations:
            self.line(depth, text)
        self.statement(self.field(block, "body"), depth)

    def _store(self, data: Any, depth: int) -> None:
        target = f"{self.name(self.field(data, 'buffer'))}[{self.indices(self.field(data, 'indices'))}]"
        self.line(depth, f"{target} = {self.value(self.field(data, 'value'))}")

    def _if(self, data: Any, depth: int) -> None:
        self.line(depth, f"if {self.value(self.field(data, 'condition'))}:")
        self.statement(self.field(data, "then_case"), depth + 1)
        if self.node(self.field(data, "else_case"))[0] != "None":
            self.line(depth, "else:")
            self.statement(self.field(data, "else_case"), depth + 1)

    def _while(self, data: Any, depth: int) -> None:
        self.line(depth, f"while {self.value(self.field(data, 'condition'))}:")
        self.statement(self.field(data, "body"), depth + 1)

    def _bind(self, data: Any, depth: int) -> None:
        var = self.field(data, "var")
        kind = self.dtype(self.field(self.node(var)[1], "ty"))
        self.line(depth, f"{self.name(var)}: T.let[T.{kind}] = {self.value(self.field(data, 'value'))}")

    def notes(self, at: Any) -> str:
        """The annotations of a loop or block as a dict display; those that are no literals are left out."""
        kept = [(self.text(k), self.plain(v)) for k, v in self.pairs(at)]
        return "{" + ", ".join([f"{k!r}: {v!r}" for k, v in kept if isinstance(v, (str, int, list))]) + "}"

    # ---- values

    def indices(self, at: Any) -> str:
        """Indices, separated by commas."""
        return ", ".join([self.value(x) for x in self.items(at)]) or "()"

    def value(self, at: Any) -> str:
        """The text of an expression, in parentheses where it has an operator."""
        self.depth += 1
        kind, data = self.node(at)
        write = _VALUES.get(kind)
        if kind in _INFIX:
            out = f"({self.value(self.field(data, 'a'))} {_INFIX[kind]} {self.value(self.field(data, 'b'))})"
        elif kind in _PREFIX:
            out = f"{_PREFIX[kind]}({self.value(self.field(data, 'a'))}, {self.value(self.field(data, 'b'))})"
        elif kind in ("Var", "SizeVar"):
            out = self.name(at)
        elif write is not None:
            out = write(self, data)
        else:
            raise RecordError(f"the module has the expression {kind!r:.40}; pass the script text of the workload instead (mod.script())")
        self.depth -= 1
        return out

    def _type(self, data: Any) -> str:
        return self.dtype(self.field(data, "ty") if "ty" in data else self.field(data, "dtype"))

    def _int(self, data: Any) -> str:
        kind, value = self._type(data), self.field(data, "value")
        number = self.plain(value) if type(value) is int and self.node(value)[0] == "int" else value
        return f"T.bool({bool(number)})" if kind == "bool" else str(number) if kind == "int32" else f"T.{kind}({number})"

    def _float(self, data: Any) -> str:
        value = self.field(data, "value")
        number = value if isinstance(value, float) else self.plain(value)
        if not isinstance(number, (int, float)):
            raise RecordError(f"a number is needed in the graph of a module, got {number!r:.40}")
        shown = repr(float(number)) if math.isfinite(float(number)) else f'"{float(number)}"'
        return f"T.{self._type(data)}({shown})"

    def _load(self, data: Any) -> str:
        source = self.field(data, "source" if "source" in data else "buffer")
        return f"{self.name(source)}[{self.indices(self.field(data, 'indices'))}]"

    def _cast(self, data: Any) -> str:
        return f'T.Cast("{self._type(data)}", {self.value(self.field(data, "value"))})'

    def _not(self, data: Any) -> str:
        return f"(not {self.value(self.field(data, 'a'))})"

    def _select(self, data: Any) -> str:
        parts = [self.value(self.field(data, k)) for k in ("condition", "true_value", "false_value")]
        return f"T.Select({', '.join(parts)})"

    def _call(self, data: Any) -> str:
        kind, name = self.node(self.field(data, "op"))
        word = str(name if isinstance(name, str) else self.field(name, "name")).rpartition(".")[2] if kind == "Op" else ""
        if not word.isidentifier():
            raise RecordError(f"the module calls a {kind!r:.40}; only operations of TensorIR are read")
        args = self.items(self.field(data, "args"))
        first = [f'"{self._type(data)}"'] if word in ("reinterpret", "call_extern", "call_pure_extern") else []
        return f"T.{word}({', '.join([*first, *[self.value(x) for x in args]])})"

    def _string(self, data: Any) -> str:
        return repr(str(self.plain(self.field(data, "value"))))


_STATEMENTS: Mapping[str, Callable[[_Printer, Any, int], None]] = {
    "SeqStmt": _Printer._seq,
    "For": _Printer._for,
    "SBlockRealize": _Printer._realize,
    "BlockRealize": _Printer._realize,
    "BufferStore": _Printer._store,
    "IfThenElse": _Printer._if,
    "While": _Printer._while,
    "Bind": _Printer._bind,
}
_VALUES: Mapping[str, Callable[[_Printer, Any], str]] = {
    "IntImm": _Printer._int,
    "FloatImm": _Printer._float,
    "StringImm": _Printer._string,
    "TensorLoad": _Printer._load,
    "BufferLoad": _Printer._load,
    "Cast": _Printer._cast,
    "Not": _Printer._not,
    "Select": _Printer._select,
    "Call": _Printer._call,
}
