"""Share options, exit statuses and result output between the commands."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console, RenderableType

from tunesmith.display.tables import console, printable
from tunesmith.support import atomic_file
from tunesmith.support.errors import BuildError, InternalError, RunError, UserError

FAILED, MISUSED = 1, 2
"""Exit statuses: a task failed and was reported; wrong use."""
F = TypeVar("F", bound=Callable[..., Any])

LOG = click.Path(dir_okay=False, path_type=Path)
"""Argument type for the path of a log."""


LOG_OPTIONS = {"--log": "--records", "--records": "--log"}
"""The option of the log in one command -> that in another one: commands that write it too have `--log`."""


class Command(click.Command):
    """A command that proposes its own option of the log if that of another command is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            other = LOG_OPTIONS.get(error.option_name)
            if other is None or not any(other in p.opts for p in self.params):
                raise
            raise click.UsageError(f"No such option {error.option_name}. Did you mean {other}?", ctx) from error


class Commands(click.Group):
    """The root command group; reports user errors as one message without a traceback."""

    command_class = Command

    def main(self, *arguments: Any, **settings: Any) -> Any:
        """Run the command line.

        Characters that standard output cannot encode are replaced.  A failing write to it is one message and exit status 1.
        """
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        try:
            try:
                return super().main(*arguments, **settings)
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()
        except OSError as error:
            sys.stdout = io.StringIO()  # its buffer would fail again at interpreter exit
            if error.errno != errno.EPIPE:
                complain(f"cannot write the result: {error}. Is standard output a file on a full disk?")
            sys.exit(FAILED)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command.  Warnings of tunesmith are messages without a line of code: the caller is a command."""
        try:
            with warnings.catch_warnings():
                python, warnings.showwarning = warnings.showwarning, lambda *found: _show_warning(python, *found)
                return super().invoke(ctx)
        except UserError as error:
            complain("\n".join([str(error), *getattr(error, "__notes__", ())]))
            ctx.exit(FAILED if isinstance(error, (BuildError, RunError)) else MISUSED)
        except KeyboardInterrupt:
            complain("interrupted")
            ctx.exit(FAILED)
        except InternalError as error:
            Console(stderr=True).print_exception()
            complain(str(error))
            ctx.exit(FAILED)


def json_option(command: F) -> F:
    """Add `--json OUT`, passed as the argument `out`."""
    return click.option(
        "--json", "out", metavar="OUT", callback=_check_writable, help="Write the result as JSON to this file; - is standard output."
    )(command)


def _check_writable(context: click.Context, parameter: click.Parameter, out: str | None) -> str | None:
    """Refuse a file that cannot be written, before the command runs: its result would be lost."""
    if out is None or out == "-":
        return out
    folder = Path(out).parent
    if Path(out).is_dir():
        raise click.UsageError(f"cannot write {out}: it is a folder")
    if not folder.is_dir():
        raise click.UsageError(f"cannot write {out}: there is no folder {folder}. Create it first")
    is_pipe = Path(out).exists() and not Path(out).is_file()  # or a terminal: it is opened, and not replaced
    if not is_pipe and not os.access(folder, os.W_OK):
        raise click.UsageError(f"cannot write {out}: you may not write in the folder {folder}")
    return out


def target_option(command: F) -> F:
    """Add `--target T`, passed as the argument `target`."""
    return click.option("--target", metavar="T", help="Such as 'llvm -mcpu=native'; by default this machine.")(command)


def renamed(**options: str) -> dict[str, Any]:
    """Context settings of a command that accept earlier names of options, with a warning: `renamed(peers="baselines")`."""

    def current(name: str) -> str:
        if name in options:
            say(f"! --{name} is an earlier name of --{options[name]}, which replaces it")
        return options.get(name, name)

    return {"token_normalize_func": current}


def finish(shown: RenderableType, data: object, out: str | None, ok: bool) -> None:
    """Print the result, write it as JSON if requested, and exit with status 1 unless `ok`."""
    console(stderr=out == "-").print(printable(shown) if isinstance(shown, str) else shown, crop=False)
    if out is not None:
        text = json.dumps(data, indent=2) + "\n"
        if out == "-":
            click.echo(text, nl=False)
        else:
            try:
                atomic_file.write_text(out, text)
            except OSError as error:
                raise click.UsageError(f"cannot write {out}: {error.strerror}") from error
    if not ok:
        sys.exit(FAILED)


def say(text: str) -> None:
    """Print a line of progress to standard error."""
    Console(stderr=True).print(printable(text, "dim"), soft_wrap=True)


def _show_warning(otherwise: Callable[..., None], message: Warning | str, category: type[Warning], *where: Any) -> None:
    """Print a warning of tunesmith as a message, and any other one as Python does."""
    if category.__module__.partition(".")[0] == "tunesmith":
        say(f"! {message}")
    else:
        otherwise(message, category, *where)


def complain(text: str) -> None:
    """Print an error message to standard error."""
    Console(stderr=True).print(printable(f"error: {text}", "red"), soft_wrap=True)
