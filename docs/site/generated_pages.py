"""Generate the pages of the reference from the registries and tables of the package, so that no name is missing."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import click
from markdown_text import Lines, anchored, capital, code, codes, documented, first_line, link, module_and_object, module_doc, source, table

import tunesmith
from tunesmith.cli.main import main
from tunesmith.codegen.backends.backend import BACKENDS, Backend
from tunesmith.costmodel.models.registry import COST_MODELS
from tunesmith.datasets.suites import SUITES
from tunesmith.driver.opt import GRAPH_PASSES, PIPELINES, has_own_file
from tunesmith.driver.tune_options import Search
from tunesmith.graph.ir.operator import GRAPH_OPERATORS, GraphOperator
from tunesmith.ir.intrinsics import INTRINSICS
from tunesmith.ir.script import parser_calls, parser_expr, syntax
from tunesmith.ir.script.parser_stmt import LOOPS
from tunesmith.ir.script.printer_expr import SIGNS
from tunesmith.ir.target.attributes import ALIASES, ATTRIBUTES, KINDS
from tunesmith.ir.target.cpus import CPUS
from tunesmith.ir.target.defaults import known_tags
from tunesmith.lower.pass_infra import ModulePass, Pass, Pipeline
from tunesmith.lower.pass_options import Configurable, text_of
from tunesmith.lower.pipelines import PASSES
from tunesmith.measure.baselines.registry import BASELINES
from tunesmith.ops import tensor_expression
from tunesmith.ops.operator import OPERATORS, Operator
from tunesmith.schedule.primitive import PRIMITIVES
from tunesmith.search.samplers.registry import SAMPLERS
from tunesmith.search.space.rules_table import SEARCH_RULES
from tunesmith.support.dtype import SCALARS
from tunesmith.support.errors import ScriptError
from tunesmith.support.registry import Registry
from tunesmith.testing.primitive_conformance import COLUMNS, cells

PRIMITIVE_GROUPS: dict[str, tuple[str, ...]] = {
    "Find blocks and loops": ("get_block", "get_loops", "get_child_blocks", "get_producers", "get_consumers", "get_output_blocks"),
    "Draw parameters": ("sample_categorical", "sample_tile", "sample_perfect_tile", "sample_compute_location"),
    "Transform loops": ("split", "fuse", "reorder", "merge", "fission", "loop_partition", "add_unit_loop"),
    "Mark loops": ("parallel", "vectorize", "unroll", "tensorize", "bind", "annotate", "unannotate"),
    "Move blocks": ("compute_at", "reverse_compute_at", "compute_inline", "reverse_compute_inline"),
    "Place data": (
        "cache_read",
        "cache_write",
        "read_at",
        "write_at",
        "cache_reduction",
        "cooperative_fetch",
        "set_scope",
        "pad_rows",
        "reuse_buffer",
        "rolling_buffer",
    ),
    "Transform padding": ("decompose_padding", "pad_einsum"),
    "Layouts and types": (
        "transform_layout",
        "storage_align",
        "transform_block_layout",
        "reindex",
        "cache_index",
        "unsafe_set_dtype",
    ),
    "Transform reductions": ("decompose_reduction", "rfactor", "restrict_reduction", "winograd", "strassen"),
}
LONGEST_FORMULA = 100


def pages() -> dict[str, str]:
    """Path below docs -> Markdown, for each generated page."""
    made: dict[str, Callable[[], Lines]] = {
        "api": api,
        "cli": command_line,
        "script": script,
        "te": tensor_expressions,
        "schedule": schedule,
        "operators": operators,
        "graph-operators": graph_operators,
        "passes": passes,
        "targets": targets,
        "sketch-rules": sketch_rules,
        "samplers": samplers,
        "cost-models": cost_models,
        "baselines": baselines,
    }
    return {f"reference/{name}.md": "\n".join(make()) + "\n" for name, make in made.items()}


# ---- Python and the command line -------------------------------------------------------------------------------------


def api() -> Lines:
    """The names that `tunesmith` exports, and the data that they take and return."""
    out = [
        "# Python API",
        "",
        "The names that the package `tunesmith` exports. A module is loaded at the first use of one of its names.",
        "",
    ]
    for title, names in (
        ("Programs", ("Schedule", "Target", "from_torch", "from_onnx", "with_precision", "quantize", "output_errors")),
        ("Search", ("tune", "Budget", "Search", "bench", "replay", "Database")),
        ("Compile and run", ("compile", "build", "load_module", "Compiled", "CompiledModule", "CompiledDeviceModule", "CompiledModel")),
        ("Passes", ("PassContext", "Pipeline")),
        ("Threads and errors", ("num_threads", "set_num_threads", "TunesmithError", "UserError")),
    ):
        out += [f"## {title}", ""]
        for name in names:
            if name != "Schedule":
                out += documented(f"{getattr(tunesmith, name).__module__}.{name}")
            else:
                out += [f"`Schedule` is described with its [primitives]({name.lower()}.md).", ""]
    out += ["The modules `tunesmith.script` and `tunesmith.te` are described in [script](script.md) and [te](te.md).", ""]
    for module in (tunesmith.passes, tunesmith.instruments, tunesmith.debug):
        out += [f"## {module.__name__} {{ #{module.__name__.rpartition('.')[2]} }}", "", first_line(module.__doc__ or ""), ""]
        for name in module.__all__:
            if name not in tunesmith.__all__ and not isinstance(getattr(module, name), Pipeline):
                out += documented(f"{getattr(module, name).__module__}.{name}")
    out += ["## Data", ""]
    for path in (
        "measure.records.record.Record",
        "measure.measurer.MeasurePolicy",
        "display.report.Report",
        "display.report.TaskReport",
        "graph.tuning.apply_records.Coverage",
        "driver.quantize.OutputError",
    ):
        out += documented(f"tunesmith.{path}")
    return out


def command_line() -> Lines:
    """All commands, with usage and options."""
    out = ["# Command line", "", "`tunesmith COMMAND --help` prints the same text.", ""]
    out += table(["command", "purpose"], [[f"[`{path}`](#{_anchor(path)})", first_line(c.help or "")] for path, c in commands(main)])
    return [*out, *[line for path, command in commands(main) for line in _command(path, command)]]


def commands(group: click.Group, path: str = "tunesmith") -> list[tuple[str, click.Command]]:
    """(words, command) of every command that is not a group, in order."""
    out: list[tuple[str, click.Command]] = []
    for name, command in sorted(group.commands.items()):
        words = f"{path} {name}"
        out += commands(command, words) if isinstance(command, click.Group) else [(words, command)]
    return out


def _anchor(path: str) -> str:
    return path.replace(" ", "-")


def _command(path: str, command: click.Command) -> Lines:
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    out = [f"## {path} {{ #{_anchor(path)} }}", "", "```text", usage, "```", "", inspect.cleandoc(command.help or ""), ""]
    records = [p.get_help_record(context) for p in command.params]
    return out + table(["option", "meaning"], [[code(r[0]), r[1]] for r in records if r is not None and r[1]])


# ---- programs --------------------------------------------------------------------------------------------------------


def script_words() -> dict[str, tuple[str, str]]:
    """Each name of the `T` namespace, and each other spelling that the parser knows -> an example and its meaning."""
    out: dict[str, tuple[str, str]] = {}
    for name in syntax.__all__:
        word = getattr(syntax, name)
        if word is syntax.axis:
            axes = {k: v for k, v in vars(type(word)).items() if isinstance(v, syntax.Word)}
            out |= {f"axis.{k}": (v.usage.replace(v.__name__, f"axis.{k}"), v.meaning) for k, v in axes.items()}
        elif isinstance(word, syntax.Word):
            out[name] = word.usage, word.meaning
    for known in (parser_calls._CALLS, LOOPS):
        for name in known:
            if name not in out:
                same = next(n for n in known if known[n] is known[name])
                out[name] = out[same][0].replace(f"T.{same}", f"T.{name}"), f"The same as `T.{same}`."
    return out


def script() -> Lines:
    """The script language."""
    words = script_words()
    values = [n for n in words if n in parser_calls._CALLS]
    groups = {
        "Declarations": ["Buffer", "param", "alloc_buffer", "allocate", "func_attr"],
        "Loops": ["grid", *LOOPS],
        "Blocks": [n for n in words if n.startswith("axis.")] + ["block", "init", "where", "block_attr"],
        "Values": values,
        "Intrinsics": [n for n in words if n in INTRINSICS],
        "Element types": [n for n in words if n in SCALARS],
    }
    listed = {n for names in groups.values() for n in names}
    groups["Other statements"] = [n for n in words if n not in listed]
    out = [
        "# Script: the names of T",
        "",
        "`from tunesmith import script as T`. A script is Python syntax that is parsed and never run.",
        "",
    ]
    out += [module_doc("tunesmith.ir.script.syntax").partition("\n\n")[2], ""]
    for title, names in groups.items():
        out += [f"## {title}", ""]
        out += table(["name", "example", "meaning"], [[anchored(f"T.{n}", n), code(words[n][0]), words[n][1]] for n in names])
    signs = sorted({SIGNS[op][0] if op in SIGNS else "**" for op in parser_expr.OPERATORS.values()})
    out += ["## Operators", "", f"{codes(signs)}, `and`, `or`, `not`, unary `-` and `a if condition else b`.", ""]
    out += ["`A.vload([i], lanes, stride, mask)` and `A.vstore([i], value, stride, mask)` access a vector of elements.", ""]
    out += ["## Names of TVMScript that do not exist", ""]
    out += table(["TVMScript", "here"], [[code(f"T.{n}"), capital(instead)] for n, instead in syntax._ELSEWHERE.items()])
    out += ["## Decorators and errors", ""]
    for name in ("prim_func", "ir_module"):
        out += documented(f"tunesmith.ir.script.syntax.{name}")
    return out


def tensor_expressions() -> Lines:
    """The functions of `te`."""
    out = ["# te: tensor expressions", "", "`from tunesmith import te`. The [tour](../tour.md) begins with an example.", ""]
    module = "tunesmith.ops.tensor_expression"
    out += ['Intrinsics are functions, too: `te.exp(x)` is `te.call("exp", x)`; see [script](script.md#intrinsics).', ""]
    for name in tensor_expression.__all__:
        found = getattr(tensor_expression, name)
        own = found.__module__ == module
        out += documented(f"{module if own else found.__module__}.{name}")
    return out


def schedule() -> Lines:
    """The schedule and its primitives."""
    out = ["# Schedule and primitives", ""]
    out += [
        "Each primitive is a method of `Schedule`. It checks its preconditions, rewrites the program, and records the step in the trace. A",
        "step that is refused changes nothing and raises `ScheduleError` with a label.",
        "",
    ]
    groups = {**PRIMITIVE_GROUPS}
    listed = {n for names in groups.values() for n in names}
    groups["Others"] = tuple([n for n in PRIMITIVES if n not in listed])
    for title, names in groups.items():
        out += [f"## {title}", ""] if names else []
        for name in names:
            out += [f'<span id="{name}"></span>', "", *documented(f"{PRIMITIVES[name].function.__module__}.{name}")]
    out += [
        "## Checks of each primitive { #checks }",
        "",
        "Made from `tunesmith.testing.primitive_samples` when the site is built. The sample of a primitive runs with numbers and with",
        "sampled sizes, its results are compared with those of the unscheduled program, and its trace is replayed from JSON and from",
        "Python. Refusals are counted by label; each label has a test. The fuzzers apply primitives to random programs, and to sketches",
        "with sampled sizes.",
        "",
    ]
    out += table(COLUMNS, [[f"[`{n}`](#{n})", *list(cells(n).values())[1:]] for n in PRIMITIVES])
    out += ["## Schedule and trace", ""]
    out += documented("tunesmith.schedule.state.ScheduleState", members="false")
    out += documented("tunesmith.schedule.schedule.Schedule", members="[mod, limit]")
    for path in ("schedule.replay", "schedule.concretize", "trace.Trace"):
        out += documented(f"tunesmith.schedule.{path}")
    return out


# ---- operators -------------------------------------------------------------------------------------------------------


def operators() -> Lines:
    """The operators of workloads."""
    out = [
        "# Operators",
        "",
        "A workload is an operator with parameters: `tunesmith tune 'softmax(m=1024,n=1024)'`. Parameters without a default are required.",
        "",
    ]
    for name in OPERATORS:
        out += _operator(OPERATORS.get(name))
    out += ["## Suites { #suites }", "", "A suite is a list of workloads: `tunesmith tune suite:tiny`.", ""]
    out += table(["suite", "workloads", "contents"], [[code(f"suite:{n}"), str(len(SUITES.get(n))), SUITES.get(n).about] for n in SUITES])
    return out


def _operator(op: Operator) -> Lines:
    out = [f"## {op.name} {{ #{op.name} }}", "", "```text", op.usage(), "```", ""]
    rows = [[code(p.name), p.expected(), "required" if p.default is None else code(p.text(p.default))] for p in op.parameters]
    out += table(["parameter", "value", "default"], rows)
    if op.constants:
        out += [f"Weights, which may be packed at compile time: {codes(op.constants)}.", ""]
    workload = example(op)
    params = dict([part.split("=") for part in workload.partition("(")[2][:-1].split(",")])
    return [
        *out,
        f'??? example "The program of `{workload}`"',
        "",
        "    ```python",
        *["    " + line for line in str(op.build(**params)).splitlines()],
        "    ```",
        "",
    ]


def example(op: Operator) -> str:
    """A workload of the operator: the first one of the suites; operators that no suite has are elementwise or reductions."""
    found = [w for name in SUITES for w in SUITES.get(name) if w.startswith(f"{op.name}(")]
    return found[0] if found else f"{op.name}(shape=64x64)"


def graph_operators() -> Lines:
    """The operators of graph functions."""
    out = [
        "# Graph operators",
        "",
        "The operators that importers and graph scripts use. The kind decides what can be fused. A *view* needs no code, and *wide*",
        "operators compute 16-bit floats in float32. `element` is an element of the result, with default attributes.",
        "",
    ]
    modules: dict[str, list[GraphOperator]] = {}
    for name in GRAPH_OPERATORS:
        modules.setdefault(source(GRAPH_OPERATORS, name)[0], []).append(GRAPH_OPERATORS.get(name))
    for module, found in modules.items():
        out += [f"## {capital(module.rpartition('.')[2])}", "", module_doc(module), ""]
        rows = [[anchored(o.usage(), o.name), o.meaning, code(formula(o)), o.kind, _notes(o)] for o in found]
        out += table(["operator", "meaning", "element", "kind", "notes"], rows)
    return out


def formula(op: GraphOperator) -> str:
    """The element of the result as script, for elementwise operators without required attributes; empty if it is long."""
    operands = [op.operand_name(i) for i in range(op.arity[0])]
    undecided = {inspect.Parameter.empty, None}.intersection(op.attributes.values())
    if op.kind not in ("elementwise", "broadcast") or undecided:
        return ""
    for dtype in ("float32", "bool"):
        inputs = [tensor_expression.placeholder((4,), "bool" if name == "condition" else dtype, name) for name in operands]
        try:
            made = op.apply(inputs, op.bind({}))
        except ScriptError:
            continue
        if made[0] in inputs:
            return operands[0]
        text = str(tensor_expression.create_prim_func([*inputs, *made])).splitlines()[-1]
        text = re.sub(r"\[v_\w+\]", "", text).partition(" = ")[2]
        text = re.sub(r"T\.float32\(([^()]+)\)", r"\1", text)
        return text if len(text) <= LONGEST_FORMULA else ""
    return ""


def _notes(op: GraphOperator) -> str:
    return ", ".join([word for word, holds in (("view", op.view), ("wide", op.wide)) if holds])


# ---- passes and targets ----------------------------------------------------------------------------------------------


def passes() -> Lines:
    """The passes of lowering and of graphs."""
    out = [
        "# Passes",
        "",
        "`tunesmith opt PROGRAM -p 'simplify,version_loops{most=8}'` runs passes. The name of a pipeline is short for its passes.",
        "",
    ]
    out += table(
        ["pipeline", "passes"],
        [[code(name), ", ".join([f"[`{p.name}`](#{p.name})" for p in pipeline.passes])] for name, pipeline in PIPELINES.items()],
    )
    out += ["## Lowering passes", ""]
    for p in PASSES.values():
        out += _pass(p)
    out += ["## Graph passes", ""]
    for g in GRAPH_PASSES.values():
        out += _graph_pass(g)
    return out


def _pass(p: Pass) -> Lines:
    stages = f"stage {code(p.requires)}" if p.requires == p.provides else f"stages {code(p.requires)} to {code(p.provides)}"
    used = codes([name for name, pipeline in PIPELINES.items() if p.name in [q.name for q in pipeline.passes]])
    facts = [f"{capital(stages)}; pipelines: {used or 'none'}; {_level(p)}; {_options(p)}.", ""]
    return [f"### {p.name} {{ #{p.name} }}", "", *facts, *module_and_object(p.run.__module__, p.name)]


def _level(p: Pass | ModulePass) -> str:
    """Whether the pass may be left out."""
    return f"never left out, because of {p.needed_by}" if p.needed_by else f"level {p.level}"


def _graph_pass(p: ModulePass) -> Lines:
    out = [f"### {p.name} {{ #{p.name} }}", "", f"{capital(_level(p))}; {_options(p)}.", ""]
    module = p.run.__module__
    if has_own_file(p):
        return out + module_and_object(module, p.name)
    return out + documented(f"{module}.{p.name}", show_root_heading="false", show_root_toc_entry="false")


def _options(p: Configurable) -> str:
    return "options: " + (", ".join([f"`{k}` (default `{text_of(v)}`)" for k, v in p.defaults.items()]) or "none")


def targets() -> Lines:
    """Targets: backends, kinds, attributes."""
    out = [
        "# Targets",
        "",
        "A target is text such as `llvm -mcpu=znver5 -num-cores=2`, a tag such as `nvidia/h200`, or JSON; see",
        f"{link('tunesmith.ir.target.target.Target')}, and [the guide](../targets.md).",
        "",
        "## Backends",
        "",
    ]
    out += table(["kind", "pipeline", "sketch rules", "fallback rule", "models"], [_backend(BACKENDS.get(name)) for name in BACKENDS])
    out += documented("tunesmith.codegen.backends.backend.Backend")
    out += ["## Attributes", "", "Identity attributes key records; the others are facts that guide choices.", ""]
    rows = [
        [
            anchored(a.flag, a.name),
            a.type.__name__,
            codes(a.kinds) if a.kinds != KINDS else "all",
            "yes" if a.identity else "",
            a.doc,
            a.unit,
        ]
        for a in ATTRIBUTES.values()
    ]
    out += table(["attribute", "type", "kinds", "identity", "meaning", "unit"], rows)
    out += [f"TVM's spellings are accepted, too: {', '.join([f'`{a}` for `{b}`' for a, b in ALIASES.items()])}.", ""]
    out += [
        "## Tags and processors",
        "",
        f"Tags: {codes(known_tags())}.",
        "",
        f"Processors with known facts (`-mcpu`): {codes(sorted(CPUS))}.",
        "",
    ]
    return out


def _backend(b: Backend) -> list[str]:
    pipeline = next((name for name, p in PIPELINES.items() if p is b.pipeline), "")
    rules = ", ".join([f"[`{r}`](sketch-rules.md#{r})" for r in b.rules])
    return [
        anchored(b.kind, b.kind),
        code(pipeline),
        rules,
        ", ".join(f"[`{r}`](sketch-rules.md#{r})" for r in b.fallback_rules),
        "yes" if b.models else "no",
    ]


# ---- search ----------------------------------------------------------------------------------------------------------


def registered(registry: Registry[Any], intro: str, lead: Callable[[str], str]) -> Lines:
    """A section for each name: a line of facts, the docstring of its module, and the object."""
    out: Lines = [intro, ""]
    shown: set[str] = set()
    for name in registry:
        module, found = source(registry, name)
        out += [f"## {name} {{ #{name} }}", "", lead(name), ""]
        if module not in shown:
            out += documented(module, members="false", show_root_heading="false", show_root_toc_entry="false")
        shown.add(module)
        out += documented(f"{module}.{found}")
    return out


def samplers() -> Lines:
    """The registered samplers."""
    intro = f"`tunesmith tune --sampler NAME`, or `path.py:Class` ([guide](../samplers.md)). The default is `{Search().sampler}`."
    interface = ["## The interface", "", *documented("tunesmith.search.samplers.sampler.Sampler")]
    return ["# Samplers", "", *registered(SAMPLERS, intro, lambda n: f"`--sampler {n}`"), *interface]


def cost_models() -> Lines:
    """The registered cost models."""
    intro = f"`tunesmith tune --model NAME|FILE`, or `path.py:Class` ([guide](../cost-models.md)). The default is `{Search().model}`."
    interface = ["## The interface", "", *documented("tunesmith.costmodel.models.model.CostModel")]
    return ["# Cost models", "", *registered(COST_MODELS, intro, lambda n: f"`--model {n}`"), *interface]


def baselines() -> Lines:
    """The libraries that `tunesmith bench` compares with."""
    intro = "`tunesmith bench WORKLOAD --against NAME,...` times these libraries beside the best records."
    interface = ["## The interface", "", *documented("tunesmith.measure.baselines.baseline.Baseline")]
    return ["# Baselines", "", *registered(BASELINES, intro, lambda n: f"`--against {n}`"), *interface]


def sketch_rules() -> Lines:
    """The registered sketch rules."""
    intro = "A rule derives named schedules with open parameters from a function; the backend of a target lists the rules that are tried."
    return ["# Sketch rules", "", *registered(SEARCH_RULES, intro, _users)]


def _users(rule: str) -> str:
    found = [BACKENDS.get(name) for name in BACKENDS]
    users = [f"`{b.kind}`{' (fallback)' if rule in b.fallback_rules else ' (large functions)' if rule in b.large_rules else ''}"
        for b in found if rule in (*b.rules, *b.large_rules, *b.fallback_rules)]  # fmt: skip
    return f"Backends: {', '.join(users) or 'none'}."
