"""Replay the traces of TVM's MetaSchedule with the primitives of tunesmith.

The primitives have TVM's names and most of its arguments, so a trace is replayed instruction by instruction; the decisions of its sampling
instructions become numbers of the schedule.  Readers of foreign logs are here; `schedule`, below, knows no foreign format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from tunesmith.datasets.foreign_table import good_lines, items, text
from tunesmith.datasets.import_metaschedule import RECORDS, parse, workloads_of
from tunesmith.datasets.parquet_file import PathLike
from tunesmith.datasets.tvm_module import module_text
from tunesmith.ir.analysis.access_regions import reads, writes
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.script import parser
from tunesmith.ir.stmt import For
from tunesmith.ir.visit import inner_statements
from tunesmith.measure.records.log import LogReport
from tunesmith.schedule.handles import BlockRV, LoopRV
from tunesmith.schedule.primitives.sample_compute_location import INLINE_LOCATION, ROOT_LOCATION
from tunesmith.schedule.schedule import Schedule
from tunesmith.support import json_lines
from tunesmith.support.errors import RecordError, ScheduleError, ScriptError

_HINTS = ("meta_schedule.", "pragma_", "buffer_dim_align", "warp_execution")
"""Annotations that TVM's postprocessors and passes read, and that change no result; those of unrolling are carried out."""
_UNROLL = "pragma_auto_unroll_max_step"


@dataclass(frozen=True, slots=True)
class Replayed:
    """One record of a database.

    Attributes:
        line: its line in the file, from 1.
        workload: the hash of its workload.
        func: the unscheduled program.
        schedule: the schedule; None if the trace has no counterpart.
        refusal: why there is none, with the position of the instruction; empty if there is one.
        seconds: the median time that TVM measured; infinity if it failed.
    """

    line: int
    workload: str
    func: PrimFunc
    schedule: Schedule | None
    refusal: str
    seconds: float


def replay_database(path: PathLike, programs: Mapping[str, PrimFunc] | None = None) -> Iterator[Replayed]:
    """Replay each record of a MetaSchedule database, in the order of the file.

    Args:
        path: the record file, or the folder with `database_tuning_record.json`; the workload file is next to it.
        programs: programs by the hash of their workload, for modules that `tvm_module` does not read.

    Raises:
        RecordError: a file cannot be read, or a module is not read and `programs` lacks it.  Records never raise: an instruction without
            counterpart is the `refusal` of its record, and invalid lines are left out.
    """
    file = Path(path)
    file = file / RECORDS if file.is_dir() else file
    if not file.is_file() or not workloads_of(file).is_file():
        absent = workloads_of(file) if file.is_file() else file
        raise RecordError(f"{absent} does not exist: a database has the files {file.name} and {workloads_of(file).name} in one folder")
    given = dict(programs or {})
    hashes: list[str | None] = []
    functions: list[PrimFunc] = []
    for number, line in json_lines.read(workloads_of(file)):
        name, encoded = [text(x, "a workload") if n == 0 else x for n, x in enumerate(items(line, "a workload", 2)[:2])]
        hashes.append(name)
        functions.append(given[name] if name in given else _program(name, encoded, f"{workloads_of(file)}:{number}"))
    for number, line in good_lines(file, LogReport()):
        try:
            found = parse(line, hashes)
        except RecordError:
            continue
        func = functions[hashes.index(found.workload)]
        steps = json_lines.parse(found.steps.encode())
        try:
            schedule, refusal = replay_trace(steps, func), ""
        except RecordError as error:
            schedule, refusal = None, f"{file}:{number}: {error}"
        except Exception as error:  # other records do not depend on this one
            schedule, refusal = None, f"{file}:{number}: replaying the trace raised {type(error).__name__}: {error}"
        yield Replayed(number, found.workload, func, schedule, refusal, found.seconds)


def _program(name: str, encoded: object, where: str) -> PrimFunc:
    if not isinstance(encoded, str):
        raise RecordError(f"{where}: the module of a workload is text in base64")
    try:
        mod = parser.parse(module_text(encoded), where)
    except (RecordError, ScriptError) as error:
        raise RecordError(f"{where}: {error}. Or pass the program: programs={{{name!r}: func}}") from None
    if not isinstance(mod, IRModule) or len(mod) != 1:
        raise RecordError(f"{where}: a workload is a module of one function")
    (func,) = mod.values()
    return func


def replay_trace(steps: object, func: PrimFunc) -> Schedule:
    """Apply the instructions of a trace to `func`.

    Args:
        steps: plain data: `[kind, inputs, attributes, outputs]`, with the decision of a sampling instruction as a fifth item.
        func: the program of the workload.

    Raises:
        RecordError: an instruction has no counterpart, or its primitive refuses; the message has its position, from 1, and its kind.
    """
    state = _Replay(Schedule(func))
    for n, step in enumerate(items(steps, "the trace", 0)):
        kind, inputs, attributes, outputs = items(step, "an instruction", 4)[:4]
        where = f"instruction {n + 1}, {text(kind, 'the kind of an instruction')}"
        run = _INSTRUCTIONS.get(kind)
        if run is None:
            raise RecordError(f"{where}: tunesmith has no counterpart of this instruction")
        try:
            found = run(state, items(inputs, "the inputs", 0), items(attributes, "the attributes", 0), step[4] if len(step) > 4 else None)
        except (ScheduleError, RecordError) as error:
            raise RecordError(f"{where}: {error}") from None
        except IndexError:
            raise RecordError(f"{where}: it lacks an input or an attribute") from None
        names = items(outputs, "the outputs", 0)
        made = found if isinstance(found, list) else [] if found is None else [found]
        if len(made) != len(names):
            raise RecordError(f"{where}: it has {len(names)} results in TVM and {len(made)} here")
        state.values.update(zip([text(x, "an output") for x in names], made, strict=True))
    state.unroll()
    return state.s


class _Root:
    """The block around the whole function, which programs here do not have."""


ROOT = _Root()


class _Replay:
    """The state of a replay: handles and values by their names in the trace."""

    def __init__(self, s: Schedule) -> None:
        self.s = s
        self.values: dict[str, Any] = {}
        self.blocks: dict[str, BlockRV] = {}
        """Blocks made by the trace, by their names in TVM."""
        self.steps: list[tuple[LoopRV, int]] = []
        """Loops whose bodies are unrolled up to a number of steps."""

    def value(self, x: object) -> Any:
        """The value of an input: a handle or value by name, a number, or None."""
        if x == "None":
            return None
        if isinstance(x, str) and not x.startswith('"'):
            if x not in self.values:
                raise RecordError(f"the input {x!r:.40} is the output of no earlier instruction")
            return self.values[x]
        return x

    def block(self, inputs: list[Any], at: int = 0) -> BlockRV:
        """A block among the inputs."""
        return self._typed(inputs, at, BlockRV, "block")

    def loop(self, inputs: list[Any], at: int = 0) -> LoopRV:
        """A loop among the inputs."""
        return self._typed(inputs, at, LoopRV, "loop")

    def _typed(self, inputs: list[Any], at: int, kind: type, word: str) -> Any:
        found = self.value(inputs[at]) if at < len(inputs) else None
        if not isinstance(found, kind):
            raise RecordError(f"input {at + 1} is no {word}{', but the root block' if found is ROOT else ''}")
        return found

    # ---- instructions

    def get_block(self, inputs: list[Any], attributes: list[Any], decision: Any) -> Any:
        name = text(attributes[0] if attributes else None, "the name of a block")
        return ROOT if name == "root" else self.blocks.get(name) or self.s.get_block(name)

    def get_loops(self, inputs: list[Any], attributes: list[Any], decision: Any) -> Any:
        return self.s.get_loops(self.block(inputs))

    def get_child_blocks(self, inputs: list[Any], attributes: list[Any], decision: Any) -> Any:
        if self.value(inputs[0]) is ROOT:
            return [self.s.get_block(b.name) for b in self.s.blocks()]
        return self.s.get_child_blocks(self.loop(inputs))

    def sample_perfect_tile(self, inputs: list[Any], attributes: list[Any], decision: Any) -> Any:
        return [_integer(x) for x in items(decision, "the decision", _integer(attributes[0]))]

    def sample_categorical(self, inputs: list[Any], attributes: list[Any], decision: Any) -> Any:
        values = [_integer(x) for x in items(attributes[0], "the candidates", 1)]
        at = _integer(decision)
        if not 0 <= at < len(values):
            raise RecordError(f"the decision {at} is none of {len(values)} candidates")
        return values[at]

    def sample_compute_location(self, inputs: list[Any], attributes: list[Any], decision: Any) -> Any:
        """A loop around the consumers by its number, or that of a choice without a loop."""
        block, chosen = self.block(inputs), _integer(decision)
        if chosen in (ROOT_LOCATION, INLINE_LOCATION):
            return chosen
        consumers = self.s.get_consumers(block)
        loops = self.s.get_loops(consumers[0]) if consumers else []
        if not 0 <= chosen < len(loops):
            raise RecordError(f"the decision {chosen} is none of the {len(loops)} loops around the consumers of {block.block}")
        return loops[chosen]

    def split(self, inputs: list[Any], attributes: list[Any], decision: Any) -> Any:
        loop = self.loop(inputs)
        factors = [self.value(x) for x in inputs[1:]]
        if None not in factors:
            extent, inner = self.s.loop(loop).extent.const, prod([_integer(f) for f in factors[1:]])
            if extent is not None and -(-extent // max(inner, 1)) != _integer(factors[0]):
                raise RecordError(f"the factors {factors} do not cover a loop of {extent} iterations")
            factors[0] = None  # derived from the extent and the others
        return self.s.split(loop, factors)

    def fuse(self, inputs: list[Any], attributes: list[Any], decision: Any) -> Any:
        loops = [self.loop(inputs, n) for n in range(len(inputs))]
        return loops[0] if len(loops) == 1 else self.s.fuse(loops)  # postprocessors fuse single loops, also parallel ones

    def reorder(self, inputs: list[Any], attributes: list[Any], decision: Any) -> None:
        self.s.reorder([self.loop(inputs, n) for n in range(len(inputs))])

    def cache_read(self, inputs: list[Any], attributes: list[Any], decision: Any) -> Any:
        block = self.block(inputs)
        b, at, scope = self.s.block(block), _integer(attributes[0]), text(attributes[1], "a storage scope")
        read = list(dict.fromkeys(a.buffer for a in reads(b)))
        if not 0 <= at < len(read):
            raise RecordError(f"the block {b.name} reads {len(read)} buffers, and buffer {at} is cached")
        copy = self.s.cache_read(block, read[at].name, scope)
        self.blocks[f"{read[at].name}_{attributes[1]}"] = copy
        return copy

    def cache_write(self, inputs: list[Any], attributes: list[Any], decision: Any) -> Any:
        block = self.block(inputs)
        b = self.s.block(block)
        written = _written(b)
        if _integer(attributes[0]) != 0 or len(written) != 1:
            raise RecordError(f"the block {b.name} writes {len(written)} buffers, and buffer {attributes[0]} is cached")
        copy = self.s.cache_write(block, text(attributes[1], "a storage scope"))
        self.blocks[f"{written[0].name}_{attributes[1]}"] = copy
        return copy

    def compute_at(self, inputs: list[Any], attributes: list[Any], decision: Any) -> None:
        location = self.value(inputs[1]) if len(inputs) > 1 else None
        if location == INLINE_LOCATION:
            self.s.compute_inline(self.block(inputs))
        elif location != ROOT_LOCATION:
            self.s.compute_at(self.block(inputs), self.loop(inputs, 1), preserve_unit_loops=bool(attributes[0]))

    def reverse_compute_at(self, inputs: list[Any], attributes: list[Any], decision: Any) -> None:
        location = self.value(inputs[1]) if len(inputs) > 1 else None
        if location == INLINE_LOCATION:
            self.s.reverse_compute_inline(self.block(inputs))
        elif location != ROOT_LOCATION:
            self.s.reverse_compute_at(self.block(inputs), self.loop(inputs, 1), preserve_unit_loops=bool(attributes[0]))

    def decompose_reduction(self, inputs: list[Any], attributes: list[Any], decision: Any) -> Any:
        block = self.block(inputs)
        name = self.s.block(block).name
        made = self.s.decompose_reduction(block, self.loop(inputs, 1))
        self.blocks |= {f"{name}_init": made, f"{name}_update": block}
        return made

    def rfactor(self, inputs: list[Any], attributes: list[Any], decision: Any) -> Any:
        loop = self.loop(inputs)
        inside = self.s.get_child_blocks(loop)
        if len(inside) != 1:
            raise RecordError(f"the loop is around {len(inside)} blocks")
        block = inside[0]
        name = self.s.block(block).name
        self.blocks[f"{name}_rf"] = made = self.s.rfactor(loop, _integer(attributes[0]))
        while True:  # TVM puts the final block into a nest of its own
            around = [self.s.get_loops(b) for b in (made, block)]
            shared = [x for x, y in zip(*around, strict=False) if x.var is y.var]
            if not shared:
                return made
            self.s.fission(shared[-1], made)

    def annotate(self, inputs: list[Any], attributes: list[Any], decision: Any) -> None:
        target, value, key = self.value(inputs[0]), self.value(inputs[1]), text(attributes[0], "the key of an annotation")
        if key == _UNROLL and isinstance(target, LoopRV):
            self.steps.append((target, _integer(value)))
        elif not key.startswith(_HINTS):
            if target is ROOT:
                raise RecordError(f"the root block has the annotation {key!r:.40}")
            self.s.annotate(target, key, value.strip('"') if isinstance(value, str) else value)

    def unannotate(self, inputs: list[Any], attributes: list[Any], decision: Any) -> None:
        key = text(attributes[0], "the key of an annotation")
        if not key.startswith(_HINTS):
            self.s.unannotate(self.value(inputs[0]), key)

    def bind(self, inputs: list[Any], attributes: list[Any], decision: Any) -> None:
        self.s.bind(self.loop(inputs), text(attributes[0], "a thread axis").strip('"'))

    def add_unit_loop(self, inputs: list[Any], attributes: list[Any], decision: Any) -> Any:
        target = self.value(inputs[0])
        if isinstance(target, BlockRV):
            loops = self.s.get_loops(target)
            if not loops:
                raise RecordError("the block is in no loop")
            target = loops[-1]
        return self.s.add_unit_loop(target)

    def set_scope(self, inputs: list[Any], attributes: list[Any], decision: Any) -> None:
        self.s.set_scope(self.block(inputs), text(attributes[1], "a storage scope"))

    def storage_align(self, inputs: list[Any], attributes: list[Any], decision: Any) -> None:
        block = self.block(inputs)
        if len(attributes) != 4:
            raise RecordError(f"it has {len(attributes)} attributes: buffer, axis, factor and offset are needed")
        at, axis, factor, offset = [_integer(x) for x in attributes]
        written = _written(self.s.block(block))
        if not 0 <= at < len(written):
            raise RecordError(f"the block writes {len(written)} buffers, and buffer {at} is aligned")
        self.s.storage_align(block, written[at].name, axis, factor, offset)

    def decompose_padding(self, inputs: list[Any], attributes: list[Any], decision: Any) -> Any:
        return self.s.decompose_padding(self.block(inputs), self.loop(inputs, 1))

    # ---- unrolling

    def unroll(self) -> None:
        """Unroll inner loops whose bodies have at most the number of steps that annotations allow, as TVM's pass UnrollLoop.

        The annotations are hints: loops that are gone, or too long for `unroll`, stay as they are.
        """
        for loop, most in self.steps:
            chosen: list[For] = []
            with suppress(ScheduleError):
                _unrollable(self.s.loop(loop), most, chosen)
            for f in [f for f in chosen if f.var is not loop.var]:
                with suppress(ScheduleError):
                    block = next(b for b in self.s.blocks() if any(x.var is f.var for x in self.s.loops_of(b.name)))
                    handles = self.s.get_loops(self.s.get_block(block.name))
                    self.s.unroll(next(h for h in handles if h.var is f.var))


def _unrollable(n: Any, most: int, chosen: list[For]) -> int:
    """The steps of a statement with its inner loops unrolled, which are added to `chosen`; more than `most` if it has other loops."""
    inner = sum(_unrollable(k, most, chosen) for k in inner_statements(n)) or 1
    if not isinstance(n, For):
        return inner
    extent = n.extent.const
    if n.kind != "serial" or extent is None:
        return inner if n.kind == "vectorized" else most + 1
    if extent * inner <= most:
        chosen.append(n)
        return extent * inner
    return most + 1


def _written(block: Any) -> list[Buffer]:
    return list(dict.fromkeys(a.buffer for a in writes(block)))


def _integer(x: object) -> int:
    if type(x) is not int:
        raise RecordError(f"an integer is needed, got {x!r:.40}")
    return x


def _method(name: str) -> Callable[[_Replay, list[Any], list[Any], Any], Any]:
    """An instruction whose inputs and results are those of our primitive."""

    def run(state: _Replay, inputs: list[Any], attributes: Sequence[Any], decision: Any) -> Any:
        found = state.value(inputs[0]) if inputs else None
        if found is ROOT:
            raise RecordError("input 1 is the root block")
        return getattr(state.s, name)(found) if inputs else getattr(state.s, name)()

    return run


def _nothing(state: _Replay, inputs: list[Any], attributes: list[Any], decision: Any) -> None:
    """EnterPostproc: the instructions of postprocessors follow."""


_INSTRUCTIONS: Mapping[str, Callable[[_Replay, list[Any], list[Any], Any], Any]] = {
    "EnterPostproc": _nothing,
    **dict.fromkeys(("GetBlock", "GetSBlock"), _Replay.get_block),
    "GetLoops": _Replay.get_loops,
    "GetChildBlocks": _Replay.get_child_blocks,
    "GetProducers": _method("get_producers"),
    "GetConsumers": _method("get_consumers"),
    "GetOutputBlocks": _method("get_output_blocks"),
    "SamplePerfectTile": _Replay.sample_perfect_tile,
    "SampleCategorical": _Replay.sample_categorical,
    "SampleComputeLocation": _Replay.sample_compute_location,
    "Split": _Replay.split,
    "Fuse": _Replay.fuse,
    "Reorder": _Replay.reorder,
    "Parallel": _method("parallel"),
    "Vectorize": _method("vectorize"),
    "Unroll": _method("unroll"),
    "Bind": _Replay.bind,
    "CacheRead": _Replay.cache_read,
    "CacheWrite": _Replay.cache_write,
    "ComputeAt": _Replay.compute_at,
    "ReverseComputeAt": _Replay.reverse_compute_at,
    "ComputeInline": _method("compute_inline"),
    "ReverseComputeInline": _method("reverse_compute_inline"),
    "DecomposeReduction": _Replay.decompose_reduction,
    "DecomposePadding": _Replay.decompose_padding,
    "RFactor": _Replay.rfactor,
    "Annotate": _Replay.annotate,
    "Unannotate": _Replay.unannotate,
    "AddUnitLoop": _Replay.add_unit_loop,
    "SetScope": _Replay.set_scope,
    "StorageAlign": _Replay.storage_align,
}
