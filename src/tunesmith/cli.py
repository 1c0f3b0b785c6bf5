"""The command line.  Results go to standard output, progress and messages to standard error; `--json -` leaves nothing but
the data on standard output.  Exit status: 0 done, 1 some task failed and was named, 2 wrong use.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console, RenderableType

import tunesmith
from tunesmith.support.errors import BuildError, InternalError, RunError, UserError
from tunesmith.tables import console

FAILED, MISUSED = 1, 2
F = TypeVar("F", bound=Callable[..., Any])

_LOG = click.Path(dir_okay=False, path_type=Path)


class Commands(click.Group):
    """The group of commands: what a user can mend is told in one message, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except UserError as error:
            _complain(str(error))
            ctx.exit(FAILED if isinstance(error, (BuildError, RunError)) else MISUSED)
        except KeyboardInterrupt:
            _complain("interrupted")
            ctx.exit(FAILED)
        except InternalError as error:
            Console(stderr=True).print_exception()
            _complain(str(error))
            ctx.exit(FAILED)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(tunesmith.__version__, prog_name="tunesmith")
def main() -> None:
    """tunesmith finds fast programs for tensor operators by searching for them.

    A WORKLOAD is an operator, NAME(key=value,...) such as 'matmul(m=512,n=512,k=512)', or path.py:function.
    """


def _json_option(command: F) -> F:
    return click.option("--json", "out", metavar="OUT", help="Write the result as JSON to this file; - is standard output.")(command)


def _target_option(command: F) -> F:
    return click.option("--target", metavar="T", help="Such as 'llvm -mcpu=native'; by default this machine.")(command)


@main.command()
@click.argument("workloads", metavar="WORKLOAD...", nargs=-1, required=True)
@_target_option
@click.option("--trials", default=128, show_default=True, help="Candidates to measure for each workload, those of the log included.")
@click.option("--log", default="log.jsonl", show_default=True, type=_LOG, help="Records: read first, then appended to.")
@click.option("--seed", default=0, show_default=True)
@click.option("--sampler", default="evolutionary", show_default=True, metavar="NAME", help="A name, or path.py:Class.")
@click.option("--model", default="xgb", show_default=True, metavar="NAME", help="The learned cost model.")
@click.option("--workers", metavar="N", help="Processes that compile; by default one for each core. 0 runs all in this process.")
@click.option("--batch", default=32, show_default=True, help="Candidates of a workload before the next has its turn.")
@_json_option
def tune(
    workloads: tuple[str, ...],
    target: str | None,
    trials: int,
    log: Path,
    seed: int,
    sampler: str,
    model: str,
    workers: str | None,
    batch: int,
    out: str | None,
) -> None:
    """Search for fast schedules.  Goes on from where the log ends; Ctrl-C keeps everything measured."""
    from tunesmith.tune import tune as run

    if workers is not None and not workers.isdecimal():
        raise click.UsageError(f"--workers {workers}: a number of processes is wanted; clusters are not supported in this version")
    count = None if workers is None else int(workers)
    report = run(list(workloads), target, trials, log, seed, sampler=sampler, model=model, batch=batch, workers=count)
    _finish(report.render(), report.to_json(), out, report.ok)


@main.command()
@click.argument("workloads", metavar="WORKLOAD...", nargs=-1, required=True)
@click.option("--log", default="log.jsonl", show_default=True, type=_LOG, help="Where our best schedules are.")
@click.option("--against", metavar="PEER,...", help="By default torch,openblas,onnxruntime,jax; see `tunesmith bench --peers`.")
@click.option(
    "--peers", is_flag=True, is_eager=True, expose_value=False, callback=lambda c, p, v: _list_peers(c, v), help="List the peers."
)
@click.option("--rounds", default=8, show_default=True, help="Windows in which each system is timed, in turn.")
@_target_option
@_json_option
def bench(workloads: tuple[str, ...], log: Path, against: str | None, rounds: int, target: str | None, out: str | None) -> None:
    """Time our replayed best and the libraries of others, interleaved in one run; outputs are compared first."""
    from tunesmith.bench import DEFAULT_PEERS, BenchPolicy
    from tunesmith.bench import bench as run

    peers = DEFAULT_PEERS if against is None else tuple(name.strip() for name in against.split(",") if name.strip())
    report = run(list(workloads), log, peers, target=target, policy=BenchPolicy(rounds=rounds), say=_say)
    _finish(report.render(), report.to_json(), out, report.ok)


@main.command()
@click.argument("log", type=_LOG)
@click.option("--verify", is_flag=True, help="Run each program and compare its output with the reference.")
@click.option("--time", "timed", is_flag=True, help="Verify, and time.")
@_json_option
def replay(log: Path, verify: bool, timed: bool, out: str | None) -> None:
    """Apply every best record of LOG to its workload: digest, legality, output."""
    from tunesmith.replay import replay as run

    report = run(log, verify=verify, time=timed)
    _finish(report.render(), report.to_json(), out, report.ok)


@main.command()
@click.argument("what", metavar="LOG|WORKLOAD")
@click.option("--space", is_flag=True, help="Of a workload: the sketches and their sizes (the default).")
@click.option("--script", is_flag=True, help="Of a log: the best programs. Of a workload: the program.")
@click.option("--trace", is_flag=True, help="Of a log: the best schedules as Python. Of a workload: the sketches as Python.")
@_target_option
@_json_option
def show(what: str, space: bool, script: bool, trace: bool, target: str | None, out: str | None) -> None:
    """Show what a log holds, or what a search could do with a workload."""
    from tunesmith.show import show_log, show_workload

    if "(" in what or ".py:" in what:
        shown = show_workload(what, target=target, space=space or not script, script=script, trace=trace)
    else:
        if space:
            raise click.UsageError("--space is about a WORKLOAD, and LOG is a file of records")
        shown = show_log(what, script=script, trace=trace)
    _finish(shown.render(), shown.data, out, True)


@main.command(name="compile")
@click.argument("workloads", metavar="WORKLOAD...", nargs=-1, required=True)
@_target_option
@click.option("--records", metavar="LOG", type=_LOG, help="Where the schedules are.")
@click.option("-o", "library", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The shared library to write.")
@click.option("--strict", is_flag=True, help="Refuse functions without a record.")
@_json_option
def compile_(workloads: tuple[str, ...], target: str | None, records: Path | None, library: Path, strict: bool, out: str | None) -> None:
    """Compile workloads into a shared library, with the best schedules of a log; no search."""
    from tunesmith.compile import compile as run
    from tunesmith.ir.function import IRModule
    from tunesmith.workloads import find_subjects

    functions = IRModule([s.func for s in find_subjects(list(workloads))])
    made = run(functions, target, records, strict)
    path = made.export_library(library)
    covered = [c.function for c in made.coverage if c.status == "used"]
    for c in made.coverage:
        _say(str(c))
    data = {
        "functions": list(made.artifact.functions),
        "with_record": covered,
        "without_record": [name for name in made.artifact.functions if name not in covered],
        "bytes_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    _finish(f"{path}: {len(made.artifact.functions)} functions, {len(covered)} with a record", data, out, True)


@main.command()
@click.option("--quick", is_flag=True, help="Measure nothing: leave out noise and rates.")
@_json_option
def doctor(quick: bool, out: str | None) -> None:
    """What tunesmith finds on this machine: processor, caches, threads, GPUs, packages, noise."""
    from tunesmith.doctor import render, report

    found = report(measure=not quick)
    _finish(render(found), found, out, True)


def _finish(shown: RenderableType, data: object, out: str | None, ok: bool) -> None:
    """Give the result to people, and to a script that asked for it."""
    console(stderr=out == "-").print(shown)
    if out is not None:
        text = json.dumps(data, indent=2) + "\n"
        if out == "-":
            click.echo(text, nl=False)
        else:
            try:
                Path(out).write_text(text, encoding="utf-8")
            except OSError as error:
                raise click.UsageError(f"cannot write {out}: {error.strerror}") from error
    if not ok:
        sys.exit(FAILED)


def _say(text: str) -> None:
    Console(stderr=True).print(text, style="dim", highlight=False, markup=False, soft_wrap=True)


def _complain(text: str) -> None:
    Console(stderr=True).print(f"error: {text}", style="red", highlight=False, markup=False, soft_wrap=True)


def _list_peers(ctx: click.Context, wanted: bool) -> None:
    from tunesmith.measure.peers.registry import PEERS

    if wanted:
        click.echo("\n".join(PEERS.names()))
        ctx.exit(0)
