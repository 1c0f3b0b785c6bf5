"""Define the `tunesmith` command line.

Results go to standard output, progress and messages to standard error; with `--json -` standard output holds only the data.
Exit status: 0 done, 1 a task failed and was reported, 2 wrong use.
"""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path

import click

import tunesmith
from tunesmith.cli.arena import arena
from tunesmith.cli.common import LOG, Commands, finish, json_option, renamed, say, target_option
from tunesmith.cli.costmodel import costmodel
from tunesmith.cli.dataset import dataset
from tunesmith.cli.experiment import experiment
from tunesmith.cli.log import log
from tunesmith.cli.opt import opt
from tunesmith.display.tables import plural


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(tunesmith.__version__, prog_name="tunesmith")
def main() -> None:
    """Search for fast programs for tensor operators.

    A WORKLOAD is an operator, NAME(key=value,...) such as 'matmul(m=512,n=512,k=512)', or suite:NAME, or path.py:function,
    with parameters as path.py:function(key=value,...), or path.onnx; path.py:model/FUNCTION and path.onnx/FUNCTION are one
    function of a model.  The Python file is run, except for script text, such as TVM prints, which is parsed.
    """


@main.command()
@click.argument("workloads", metavar="WORKLOAD...", nargs=-1, required=True)
@target_option
@click.option("--trials", type=int, help="Candidates to measure per workload, including those in the log; by default 128.")
@click.option(
    "--log",
    default="log.jsonl",
    show_default=True,
    type=LOG,
    help="Log of records: read first, then appended to. Missing folders are made.",
)
@click.option("--seed", default=0, show_default=True)
@click.option("--sampler", default="evolutionary", show_default=True, metavar="NAME", help="A name, or path.py:Class.")
@click.option(
    "--model",
    default="xgb",
    show_default=True,
    metavar="NAME",
    help="The cost model: a name, path.py:Class, or a saved model (.json, .safetensors).",
)
@click.option(
    "--rules",
    "--rule",
    "rules",
    multiple=True,
    metavar="NAMES",
    help="In place of the target's rules: names, or path.py:function, separated by commas; `default` names those of the target.",
)
@click.option("--workers", metavar="N|ray[:N]", help="Compiling processes, by default one per core; 0 for none; or Ray actors.")
@click.option("--batch", type=int, help="Candidates per turn of a workload; by default a quarter of its trials, at most 32.")
@click.option("--total-trials", type=int, metavar="N", help="Candidates of all workloads together, shared by --allocate.")
@click.option("--seconds", type=float, metavar="S", help="Start no batch after S seconds.")
@click.option("--allocate", metavar="NAME", help="gain (the default where a budget is shared), gradient, or round-robin.")
@click.option("--early-stop", type=int, metavar="N", help="Stop a workload after N trials without a speed-up of 1 %.")
@click.option("--min-gain", type=float, metavar="X", help="Stop a workload when twice its trials would save less, as in 0.01.")
@click.option(
    "--weight", "weights", multiple=True, metavar="WORKLOAD=X", help="Occurrences of a workload, for a shared budget; 1 by default."
)
@click.option("--transfer/--no-transfer", default=True, help="Also try what was fast for similar workloads, of this run and of the log.")
@click.option(
    "--error-growth",
    default=3.0,
    show_default=True,
    metavar="X",
    help="Largest rounding errors of schedules, relative to direct sums; 1 leaves those that are as accurate.",
)
@click.option("--sizes", multiple=True, metavar="NAME=SIZES", help="Dynamic sizes to tune for: n=1..128, or n=16,64,128; repeatable.")
@click.option("--tensorboard", metavar="DIR", help="Write curves for TensorBoard.")
@json_option
def tune(
    workloads: tuple[str, ...],
    target: str | None,
    trials: int | None,
    log: Path,
    seed: int,
    sampler: str,
    model: str,
    rules: tuple[str, ...],
    workers: str | None,
    batch: int | None,
    total_trials: int | None,
    seconds: float | None,
    allocate: str | None,
    early_stop: int | None,
    min_gain: float | None,
    weights: tuple[str, ...],
    transfer: bool,
    error_growth: float,
    sizes: tuple[str, ...],
    tensorboard: str | None,
    out: str | None,
) -> None:
    """Search for fast schedules.  A search resumes from its log; Ctrl-C keeps all measurements."""
    from tunesmith.driver.tune import tune as run
    from tunesmith.driver.tune_options import Budget, Search
    from tunesmith.search.space.rules_table import SketchWarning

    warnings.simplefilter("ignore", SketchWarning)  # the report has these lines
    report = run(
        list(workloads),
        target,
        log,
        budget=Budget(trials, total_trials, seconds, early_stop, min_gain),
        search=Search(
            sampler,
            model,
            seed,
            batch,
            _names(rules),
            allocation=allocate,
            weights=_weights(weights),
            error_growth=error_growth,
            transfer=transfer,
        ),
        sizes=list(sizes) or None,
        workers=int(workers) if workers is not None and workers.isdecimal() else workers,
        tensorboard=tensorboard,
    )
    finish(report.render(), report.to_json(), out, report.ok)


@main.command(context_settings=renamed(peers="baselines"))
@click.argument("workloads", metavar="WORKLOAD...", nargs=-1, required=True)
@click.option("--log", default="log.jsonl", show_default=True, type=LOG, help="Log with the best schedules.")
@click.option(
    "--against",
    metavar="SYSTEM,...",
    help="Baselines, by default torch,openblas,onnxruntime,openvino,jax, or path.py:f, an own function: f(*inputs) gets the inputs of the "
    "workload as numpy arrays, and returns the outputs or a function without arguments that computes them; then only that is timed.",
)
@click.option(
    "--baselines",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda c, p, v: _list_baselines(c, v),
    help="List the baselines and their versions.",
)
@click.option("--starts", default=5, show_default=True, help="How often all processes are started; 3 or more give intervals.")
@click.option("--rounds", default=2, show_default=True, help="Windows of each start in which each system is timed, in turn.")
@target_option
@json_option
def bench(
    workloads: tuple[str, ...], log: Path, against: str | None, starts: int, rounds: int, target: str | None, out: str | None
) -> None:
    """Time the best records and vendor libraries, interleaved in one run; outputs are compared first."""
    from tunesmith.driver.bench.bench import DEFAULT_BASELINES, BenchPolicy
    from tunesmith.driver.bench.bench import bench as run

    report = run(
        list(workloads), log, DEFAULT_BASELINES if against is None else against, target=target, policy=BenchPolicy(starts, rounds), say=say
    )
    finish(report.render(), report.to_json(), out, report.ok)


@main.command()
@click.argument("log", type=LOG)
@click.option("--verify", is_flag=True, help="Run each program and compare its output with the reference.")
@click.option("--time", "timed", is_flag=True, help="Verify each program, then time it.")
@json_option
def replay(log: Path, verify: bool, timed: bool, out: str | None) -> None:
    """Apply every best record of LOG to its workload and check digest, legality and output."""
    from tunesmith.driver.replay import replay as run

    report = run(log, verify=verify, time=timed)
    finish(report.render(), report.to_json(), out, report.ok)


@main.command()
@click.argument("what", metavar="LOG|WORKLOAD")
@click.option("--space", is_flag=True, help="For a workload: the sketches and their sizes (the default).")
@click.option("--script", is_flag=True, help="For a log: the best programs. For a workload: the program.")
@click.option("--trace", is_flag=True, help="For a log: the best schedules as Python. For a workload: the sketches as Python.")
@click.option("--sizes", multiple=True, metavar="NAME=SIZES", help="For a workload: its dynamic sizes, as for tune; repeatable.")
@target_option
@json_option
def show(what: str, space: bool, script: bool, trace: bool, sizes: tuple[str, ...], target: str | None, out: str | None) -> None:
    """Show the contents of a log, or the search space of a workload."""
    from tunesmith.driver.show import show_log, show_workload
    from tunesmith.driver.workloads import is_workload_text
    from tunesmith.search.space.rules_table import SketchWarning

    warnings.simplefilter("ignore", SketchWarning)  # the lines of a space have these
    if is_workload_text(what):
        shown = show_workload(what, target=target, space=space or not script, script=script, trace=trace, sizes=list(sizes) or None)
    else:
        if sizes:
            raise click.UsageError("--sizes takes a WORKLOAD, not a LOG")
        if space:
            raise click.UsageError("--space takes a WORKLOAD, not a LOG")
        shown = show_log(what, script=script, trace=trace)
    finish(shown.render(), shown.data, out, True)


@main.command(name="compile")
@click.argument("workloads", metavar="WORKLOAD...", nargs=-1, required=True)
@target_option
@click.option("--records", metavar="LOG", type=LOG, help="Log with the schedules.")
@click.option("-o", "library", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The shared library to write.")
@click.option("--strict", is_flag=True, help="Refuse functions without a record.")
@click.option(
    "--error-growth", default=3.0, show_default=True, metavar="X", help="Largest rounding errors of schedules, relative to direct sums."
)
@click.option("--bounds-check", is_flag=True, help="Check every index at run time, serially; the first one out of bounds is an error.")
@click.option("--executor", metavar="KIND", help="For a model: graph, vm or aot; by default graph where supported, else vm.")
@click.option(
    "--parameters",
    type=click.Choice(["inside", "beside"]),
    default="inside",
    help="For a model: storage of its weights, in the library or in a file next to it.",
)
@click.option("--header", type=click.Path(dir_okay=False, path_type=Path), help="With --executor aot: the C header to write.")
@click.option("--name", metavar="NAME", help="With --executor aot: prefix of the C function names; model by default.")
@json_option
def compile_(
    workloads: tuple[str, ...],
    target: str | None,
    records: Path | None,
    library: Path,
    strict: bool,
    error_growth: float,
    bounds_check: bool,
    executor: str | None,
    parameters: str,
    header: Path | None,
    name: str | None,
    out: str | None,
) -> None:
    """Compile workloads, or one model, into a shared library, with the best schedules of a log.  Does not search.

    A model is path.py:function, where the function returns a module, as from_torch and from_onnx do.  Compiling for a GPU needs no GPU.
    For OpenCL the file is a program, which tunesmith.load_module also loads.
    """
    from tunesmith.driver.compile import compile as run
    from tunesmith.driver.compile_model import CompiledModel
    from tunesmith.driver.compile_records import DamagedLogWarning
    from tunesmith.driver.compiled import CompiledModule
    from tunesmith.driver.compiled_device import CompiledDeviceModule
    from tunesmith.driver.workloads import find_module

    if header is not None and executor != "aot":
        raise click.UsageError("--header requires a model and --executor aot")
    if library.suffix == ".so" and library.with_suffix(".py").exists():
        module = library.stem  # Python looks for extensions first
        raise click.UsageError(f"`import {module}` would load {library} in place of {module}.py beside it: write lib{module}.so")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DamagedLogWarning)
        made = run(
            find_module(workloads), target, records, strict, executor, name=name, bounds_check=bounds_check, error_growth=error_growth
        )
    for warning in caught:
        say(f"! {warning.message}")
    if isinstance(made, CompiledModel):
        path = made.export_library(library, parameters, header)
        functions = list(dict.fromkeys([c.function for c in made.coverage]))
    else:
        if isinstance(made, CompiledDeviceModule) and made.program.kind == "opencl":
            path = made.save(library)
        else:
            path = made.export_library(library)
        assert isinstance(made, CompiledModule)
        functions = list(made.artifact.functions)
    covered = list(dict.fromkeys([c.function for c in made.coverage if c.status == "used"]))  # dynamic shapes have several entries
    for c in made.coverage:
        say(str(c))
    data = {
        "functions": functions,
        "with_record": covered,
        "without_record": [name for name in functions if name not in covered],
        "bytes_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    finish(f"{path}: {plural(len(functions), 'function')}, {len(covered)} with a record", data, out, True)


@main.command()
@click.option("--quick", is_flag=True, help="Skip the measurement of noise and rates.")
@json_option
def doctor(quick: bool, out: str | None) -> None:
    """Report processor, caches, threads, GPUs, packages and noise of this machine."""
    from tunesmith.driver.doctor import render, report

    found = report(measure=not quick)
    finish(render(found), found, out, True)


def _names(texts: tuple[str, ...]) -> list[str] | None:
    """Names separated by commas, in one or several options, None if none is given; an existing file's name may hold commas."""
    found: list[str] = []
    for text in texts:
        path, colon, _ = text.rpartition(":")
        found += [text] if colon and Path(path).is_file() else [name.strip() for name in text.split(",")]
    if "" in found:
        raise click.UsageError(f"--rules {','.join(texts)}: a name is empty. Separate names by one comma, such as default,path.py:rule")
    return found or None


def _weights(texts: tuple[str, ...]) -> dict[str, float]:
    found = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise click.UsageError(f"--weight {text}: expected WORKLOAD=X with a number X") from None
    return found


def _list_baselines(ctx: click.Context, requested: bool) -> None:
    from tunesmith.measure.baselines.registry import described_baselines

    if requested:
        lines = described_baselines()
        widths = [max(len(line[i]) for line in lines) for i in (0, 1)]
        click.echo("\n".join(f"{name:{widths[0]}}  {state:{widths[1]}}  {what}".rstrip() for name, state, what in lines))
        ctx.exit(0)


main.add_command(arena)
main.add_command(costmodel)
main.add_command(dataset)
main.add_command(experiment)
main.add_command(log)
main.add_command(opt)

if __name__ == "__main__":
    main(prog_name="tunesmith")
