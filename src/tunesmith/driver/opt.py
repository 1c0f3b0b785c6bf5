"""Run passes on a program and show what each of them changes."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from os.path import isfile
from pathlib import Path

from rich.console import Group, RenderableType

from tunesmith.display.tables import code, plain_table
from tunesmith.driver.compile import as_target
from tunesmith.driver.instruments.program_text import program_diff, program_text
from tunesmith.driver.script_file import parse_module
from tunesmith.driver.workloads import find_module
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.passes.pipelines import GRAPH, GRAPH_PASSES
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_context import PassContext
from tunesmith.lower.pass_infra import AnyPass, ModulePass, Pass, Pipeline
from tunesmith.lower.pass_options import Option, parse_pass, passes_named, text_of
from tunesmith.lower.pipelines import CPU, CPU_CHECKED, GPU, PASSES
from tunesmith.lower.renamed_passes import did_you_mean_pass
from tunesmith.lower.stages import STAGES, stage_of
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import UserError
from tunesmith.support.load_from_file import load_from_file, names_a_file
from tunesmith.support.user_code import shown

PIPELINES: dict[str, Pipeline] = {"cpu": CPU, "cpu_checked": CPU_CHECKED, "gpu": GPU, "graph": GRAPH}
"""Names that stand for all passes of a pipeline."""
_BY_NAME: dict[str, Pass | ModulePass] = {**PASSES, **GRAPH_PASSES}

Program = str | PathLike[str] | PrimFunc | GraphFunc | IRModule | Schedule
Passes = str | AnyPass | Sequence[str | AnyPass]


@dataclass(frozen=True, slots=True)
class Step:
    """One pass of a run.

    Attributes:
        name: of the pass, with its options.
        before: the program as script.
        after: the same behind the pass.
        seconds: that the pass took.
    """

    name: str
    before: str
    after: str
    seconds: float

    @property
    def changed(self) -> bool:
        """Whether the pass changed the program."""
        return self.before != self.after

    def diff(self) -> str:
        """What changed, as a unified diff."""
        return program_diff(self.before, self.after, self.name)


@dataclass(frozen=True, slots=True)
class Optimized:
    """A run of passes.

    Attributes:
        module: the program behind the last pass.
        steps: of each pass, in order.
    """

    module: IRModule
    steps: tuple[Step, ...]

    @property
    def script(self) -> str:
        """The program behind the last pass."""
        return program_text(self.module)

    def __str__(self) -> str:
        return self.script

    def render(self, show: str = "last", diff: bool = False) -> RenderableType:
        """For a terminal.

        Args:
            show: "last" for the program behind the last pass, "changed" for that behind each pass that changed it, or "all".
            diff: show diffs in place of programs.
        """
        if show == "last" and not diff:
            return code(self.script)
        shown = [s for s in self.steps if s.changed or show == "all"]
        return Group(*[code(f"# {s.name}\n{s.diff() if diff else s.after}\n") for s in shown])

    def to_json(self) -> dict[str, object]:
        """As data."""
        steps = [{"pass": s.name, "changed": s.changed, "seconds": s.seconds, "script": s.after} for s in self.steps]
        return {"script": self.script, "steps": steps}


def opt(program: Program, passes: Passes, target: str | Target | None = None) -> Optimized:
    """Run passes on a program.

    Passes that the current `PassContext` leaves out are no steps, and its options and instruments are in force.

    Args:
        program: a function, module or schedule; a file of script text, which is read and not executed; `-` for script text from
            standard input; or a workload, such as `matmul(m=64,n=64,k=64)` or `path.py:function`.
        passes: passes in order, as text ("simplify,version_loops{most=8}"), or a pass, a pipeline, or a list of texts, passes and
            pipelines; `cpu`, `cpu_checked`, `gpu` and `graph` stand for the passes of these pipelines, and `path.py:name` for a pass or a
            pipeline of a file.
        target: what is compiled for; by default the current target, else this machine.
    Raises:
        UserError: there is no such program, pass or option, or a pass needs a later stage than the program is in.
        ScriptError: the text is no program.
        BuildError: a pass refuses the program.
    """
    machine = as_target(target)
    mod = _module(program)
    steps: list[Step] = []
    before = program_text(mod)
    for p in find_passes(passes):
        if not PassContext.current().runs(p):
            continue
        start = time.perf_counter()
        if isinstance(p, Pass):
            for f in mod.values():
                if isinstance(f, PrimFunc):
                    _check_stage(f, p)
        mod = Pipeline(p)(mod, machine)
        seconds = time.perf_counter() - start
        after = program_text(mod)
        steps.append(Step(str(PassContext.current().configured(p)), before, after, seconds))
        before = after
    return Optimized(mod, tuple(steps))


def find_passes(passes: Passes) -> list[Pass | ModulePass]:
    """The passes that a text names, or that a list has.  UserError if there is no such pass or option."""
    if isinstance(passes, str):
        entries: Sequence[str | AnyPass] = re.findall(r"(?:[^,{]|\{[^}]*\}?)+", passes)  # split at commas outside of braces
    else:
        entries = passes if isinstance(passes, (list, tuple)) else [passes]  # type: ignore[list-item]
    out = [p for entry in entries for p in (_named(entry) if isinstance(entry, str) else Pipeline(entry).passes)]
    if not out:
        raise UserError(f"no pass was given. {_known()}")
    return out


def steered(level: int | None = None, disable: Sequence[str] = (), options: Sequence[str] = ()) -> PassContext:
    """The context of texts of a command line.

    Args:
        level: see `PassContext`.
        disable: names of passes that are left out.
        options: as `PASS.OPTION=VALUE`.
    Raises:
        UserError: an option has another form, or as `PassContext`.
    """
    found: dict[str, dict[str, Option]] = {}
    for text in options:
        key, equals, value = text.partition("=")
        name, dot, option = key.strip().rpartition(".")
        if not equals or not dot:
            raise UserError(f"--option {text[:200]!r}: write PASS.OPTION=VALUE, such as version_loops.most=8")
        known = passes_named(name)
        given = dict(known[0].with_texts({option: value.strip()}).options) if known else {}
        found.setdefault(name, {})[option] = given.get(option, value)
    return PassContext(level=level, disabled=disable, options=found)


def _named(text: str) -> Sequence[Pass | ModulePass]:
    name, options = parse_pass(text)
    found = _passes_of_file(name) if names_a_file(name) else PIPELINES.get(name)
    if isinstance(found, Pipeline):
        if options:
            raise UserError(
                f"{text.strip()!r}: {name} is a pipeline, which has no options. Give them to its passes: list these in place of {name}"
            )
        return found.passes
    if found is not None:
        return [found.with_texts(options)]
    if name not in _BY_NAME:
        raise UserError(
            f"there is no pass {name!r}.{did_you_mean_pass(name, (*_BY_NAME, *PIPELINES))} {_known()}. A pass of "
            "your own is path.py:name, or an object in tunesmith.driver.opt.opt(program, [the_pass])"
        )
    return [_BY_NAME[name].with_texts(options)]


def _passes_of_file(name: str) -> Pass | ModulePass | Pipeline:
    """The pass or pipeline that `path.py:name` names."""
    found = load_from_file(name)
    if not isinstance(found, (Pass, ModulePass, Pipeline)):
        raise UserError(
            f"{name} is {shown(found)}, not a pass: make a pass of a function with @function_pass(requires=STAGE) of "
            "tunesmith, or with @module_pass"
        )
    return found


def _known() -> str:
    return f"Passes: {', '.join(PASSES)}; of graphs: {', '.join(GRAPH_PASSES)}; pipelines: {', '.join(PIPELINES)}"


def pass_list() -> RenderableType:
    """A table of all passes: stages, levels, options, purpose; passes that are needed are never left out."""
    rows = []
    for p in _BY_NAME.values():
        options = ", ".join([f"{k}={text_of(v)}" for k, v in p.defaults.items()])
        rows.append([p.name, _stages(p), "needed" if p.needed_by else str(p.level), options or "-", purpose(p)])
    columns = ["pass", "stage", "level", "options", "purpose"]
    return plain_table("passes", columns, rows, left=columns)


def _stages(p: Pass | ModulePass) -> str:
    if isinstance(p, ModulePass):
        return "graph"
    return p.requires if p.requires == p.provides else f"{p.requires} -> {p.provides}"


def purpose(p: Pass | ModulePass) -> str:
    """The first line of the docstring of the pass's file, or of its function if the file has another name."""
    return ((sys.modules[p.run.__module__] if has_own_file(p) else p.run).__doc__ or "").strip().partition("\n")[0]


def has_own_file(p: Pass | ModulePass) -> bool:
    """Whether the file of the pass has its name, and hence describes only this pass."""
    return p.run.__module__.rpartition(".")[2] == p.name


def _module(program: Program) -> IRModule:
    if isinstance(program, Schedule):
        return program.mod
    if isinstance(program, GraphFunc):
        return IRModule({program.name: program})
    if not isinstance(program, (str, PathLike)):
        return find_module(program)
    text = str(program)
    if text == "-":
        return parse_module(sys.stdin.read(), "<stdin>")
    path = Path(text)
    if "(" in text or ".py:" in text or not isfile(path):
        return find_module(text)
    try:
        return parse_module(path.read_text(encoding="utf-8"), text)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{text} cannot be read: {error}") from error


def _check_stage(func: PrimFunc, p: Pass) -> None:
    stage = stage_of(func)
    if STAGES.index(p.requires) > STAGES.index(stage):
        earlier = [q.name for q in PASSES.values() if q.provides == p.requires and q.requires != q.provides]
        raise UserError(
            f"the pass {p.name} needs a program in stage {p.requires}, and {func.name} is in stage {stage}: "
            f"run {' or '.join(earlier)} first"
        )
