"""Run expression graphs over tables on a vector machine, at millions of rows a second without compiling the graph.

Compiling a graph of some thousand operations would take tenths of a second; the machine is compiled once.  Integers below 2**53, and
their divisions, stay exact.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

from tunesmith.codegen.llvm.compile import compile_object
from tunesmith.codegen.llvm.host import LlvmOptions, host_cpu_name, host_features
from tunesmith.codegen.vector_vm.machine import BLOCK, CODES, GROUP, RULES, machine_text
from tunesmith.ir.arith.array_eval import live
from tunesmith.runtime.arrays import empty
from tunesmith.runtime.object_loader import load_object
from tunesmith.support.array_types import Float32Array, Float64Array, Int64Array, IntArray
from tunesmith.support.errors import InternalError, UserError

Node = tuple[str, tuple[float, ...]]
"""("const", (value,)), ("param", (column,)), or an operation on the numbers of earlier nodes, as in `costmodel.formulas.expr_graph`."""
TableColumn = tuple[int, bool]
"""(node, whether log2(value + 1) is stored instead of the value)."""

_ONE = ("const", (1.0,))


class _Program:
    """The instructions of a graph.

    Attributes:
        code: int32 [instructions, 5]: operation, result, operands.  Registers are numbered from 0; the result of `narrow` is a scratch
            slot, that of `out` a double column, and the operand of `param` a column of the row.
        registers: number of registers.
        constants: node to register for constants, which are set once.
    """

    def __init__(self, nodes: Sequence[Node], narrowed: Sequence[int], columns: Sequence[int]) -> None:
        self._nodes = nodes
        order = live([*narrowed, *columns], lambda i: _operands(nodes[i]))
        self.constants = {i: k for k, i in enumerate([i for i in order if nodes[i][0] == "const"])}
        self.values = [nodes[i][1][0] for i in self.constants]
        slots: dict[int, list[int]] = {}
        for slot, i in enumerate(narrowed):
            slots.setdefault(i, []).append(slot)
        places: dict[int, list[int]] = {}
        for k, i in enumerate(columns):
            places.setdefault(i, []).append(k)
        self._truths: set[int] = {i for i in order if nodes[i] in (_ONE, ("const", (0.0,)))}
        last: dict[int, int] = {}
        for i in order:
            last.update(dict.fromkeys(_operands(nodes[i]), i))
        self._register = dict(self.constants)
        self.registers = len(self.constants)
        free: list[int] = []
        code: list[tuple[int, int, int, int, int]] = []
        for i in order:
            op, arguments = nodes[i]
            operands = _operands(nodes[i])
            if op != "const":
                if free:
                    self._register[i] = free.pop()
                else:
                    self._register[i] = self.registers
                    self.registers += 1
                code.append(self._instruction(i, op, arguments, operands))
            result = self._register[i]
            code += [(CODES["narrow"], slot, result, 0, 0) for slot in slots.get(i, ())]
            code += [(CODES["out"], k, result, 0, 0) for k in places.get(i, ())]
            free += [self._register[x] for x in dict.fromkeys(operands) if last[x] == i and x not in self.constants]
            if i not in last and op != "const":
                free.append(result)
        self.code = np.array(code, np.int32).reshape(-1, 5)

    def _instruction(self, i: int, op: str, arguments: Sequence[float], operands: Sequence[int]) -> tuple[int, int, int, int, int]:
        if op == "param":
            return (CODES["param"], self._register[i], int(arguments[0]), 0, 0)
        if op not in RULES or op == "gate":
            raise InternalError(f"the graph contains an unknown operation {op!r}")
        true = [x in self._truths for x in operands]
        if (
            op in ("gt", "eq")
            or (op in ("mul", "min", "max") and all(true))
            or (op == "sub" and self._nodes[operands[0]] == _ONE and true[1])
        ):
            self._truths.add(i)
        if op == "mul" and any(true):
            op, operands = "gate", operands if true[0] else operands[::-1]
        where = [self._register[x] for x in operands]
        return (CODES[op], self._register[i], where[0], where[-1] if len(where) == 1 else where[1], where[-1])


def _operands(node: Node) -> tuple[int, ...]:
    return () if node[0] in ("const", "param") else tuple([int(x) for x in node[1]])


class _Scratch:
    """Scratch slot of each table column before transposition: logarithms first, then other computed values, then constants."""

    def __init__(self, nodes: Sequence[Node], table: Sequence[TableColumn]) -> None:
        distinct = list(dict.fromkeys(table))
        known = [c for c in distinct if nodes[c[0]][0] == "const"]
        logs = [c for c in distinct if c[1] and c not in known]
        self.computed = [*logs, *[c for c in distinct if not c[1] and c not in known]]
        self.logs = len(logs)
        self.numbers = [math.log2(nodes[i][1][0] + 1) if log else nodes[i][1][0] for i, log in known]
        slot = {c: k for k, c in enumerate([*self.computed, *known])}
        self.slots = len(slot)
        groups = -(-len(table) // GROUP)
        self.order = [slot[c] for c in table] + [0] * (groups * GROUP - len(table))


@cache
def _here() -> LlvmOptions:
    """LLVM options for this very CPU, since the code never leaves the process."""
    flags = ",".join(sorted(f"+{name}" for name in host_features()))
    return LlvmOptions(str(llvm.get_process_triple()), host_cpu_name(), flags)


@cache
def _machine() -> tuple[Any, Any]:
    """The machine, and the object that holds its code, which must stay alive."""
    loaded = load_object(compile_object(machine_text(), _here()))
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    kinds = [pointer, number, pointer, pointer, number, number, pointer, number, pointer, pointer, number, pointer, number]
    return ctypes.CFUNCTYPE(None, *kinds)(loaded.address("run")), loaded


class DagKernel:
    """A graph compiled to a program of the machine; it can be pickled.

    Args:
        nodes: the graph, operands before users.
        width: columns of a row.
        table: columns of the float table.
        columns: nodes returned as double arrays.
    Raises:
        InternalError: the graph contains an unknown operation.
        RunError: generated code cannot be loaded here.
    """

    def __init__(self, nodes: Sequence[Node], width: int, table: Sequence[TableColumn], columns: Sequence[int]) -> None:
        self.width = width
        self.table_width = len(table)
        self.column_count = len(columns)
        scratch = _Scratch(nodes, table)
        program = _Program(nodes, [i for i, _ in scratch.computed], columns)
        # Only what runs is kept: a graph has thousands of nodes, and a kernel is sent between processes.
        self._code, self._registers = program.code, program.registers
        self._values = np.array(program.values)[:, None]
        self._slots, self._computed, self._logs = scratch.slots, len(scratch.computed), scratch.logs
        self._numbers = np.array(scratch.numbers, np.float32)[:, None]
        self._order = np.array(scratch.order, np.int32)
        self._run, self._loaded = _machine()

    def __getstate__(self) -> dict[str, object]:
        """The program without the machine, which each process compiles for itself."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_run", "_loaded")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._run, self._loaded = _machine()

    def __call__(self, rows: IntArray, out: Float32Array | None = None) -> tuple[Float32Array, Float64Array]:
        """The table, float32 [N, len(table)], and the columns, float64 [len(columns), N], for rows [N, width].

        Thread-safe.  `out`, if given, receives the table: C-contiguous float32 of that shape.
        """
        n = len(rows)
        if rows.ndim != 2 or rows.shape[1] != self.width:
            raise UserError(f"rows of {self.width} columns are needed, [N, {self.width}], got an array of shape {list(rows.shape)}")
        ints = np.ascontiguousarray(rows, np.int64)
        table = np.empty((n, self.table_width), np.float32) if out is None else out
        if table.shape != (n, self.table_width) or table.dtype != np.float32 or not table.flags.c_contiguous:
            raise UserError(
                f"`out` must be C-contiguous float32 of shape {[n, self.table_width]}, got {table.dtype} of shape {list(table.shape)}"
            )
        columns = np.empty((self.column_count, n))
        registers = _blocks(self._registers, np.float64)
        registers[: len(self._values)] = self._values
        scratch = _blocks(self._slots, np.float32)
        scratch[self._computed :] = self._numbers
        main = n // BLOCK * BLOCK
        self._part(ints[:main], table, columns, n, registers, scratch)
        if main < n:  # a last partial block is padded with copies of its last row
            padded = np.repeat(ints[-1:], BLOCK, axis=0)
            padded[: n - main] = ints[main:]
            wide, tall = np.empty((BLOCK, self.table_width), np.float32), np.empty((self.column_count, BLOCK))
            self._part(padded, wide, tall, BLOCK, registers, scratch)
            table[main:] = wide[: n - main]
            columns[:, main:] = tall[:, : n - main]
        return table, columns

    def _part(
        self, rows: Int64Array, table: Float32Array, out: Float64Array, pitch: int, registers: Float64Array, scratch: Float32Array
    ) -> None:
        code, order = self._code, self._order
        self._run(
            *(code.ctypes.data, len(code), registers.ctypes.data, rows.ctypes.data, self.width, len(rows)),
            *(scratch.ctypes.data, self._logs, order.ctypes.data, table.ctypes.data, self.table_width),
            *(out.ctypes.data, pitch),
        )


def _blocks(count: int, dtype: type) -> npt.NDArray[Any]:
    """An array [count, BLOCK] aligned to a cache line, for aligned vector loads."""
    return empty(count * BLOCK * np.dtype(dtype).itemsize).view(dtype).reshape(count, BLOCK)
