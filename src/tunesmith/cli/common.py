"""What the commands of the command line share: options, exit statuses, and how a result is given to people and to scripts."""

from __future__ import annotations

import errno
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console, RenderableType

from tunesmith.display.tables import console, printable
from tunesmith.support import atomic_file
from tunesmith.support.errors import BuildError, InternalError, RunError, UserError

FAILED, MISUSED = 1, 2
"""Exit statuses: some task failed and was named; wrong use."""
F = TypeVar("F", bound=Callable[..., Any])

LOG = click.Path(dir_okay=False, path_type=Path)
"""The type of an argument that names a log."""


class Commands(click.Group):
    """The group of commands: what a user can mend is told in one message, without a traceback."""

    def main(self, *arguments: Any, **settings: Any) -> Any:
        """Run the command line.  What standard output cannot encode is replaced; that it takes no more is one message, and status 1."""
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        try:
            try:
                return super().main(*arguments, **settings)
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()
        except OSError as error:
            sys.stdout = io.StringIO()  # what it still holds cannot be written at the end of the process either
            if error.errno != errno.EPIPE:
                complain(f"cannot write the result: {error}. Is standard output a file on a full disk?")
            sys.exit(FAILED)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except UserError as error:
            complain(str(error))
            ctx.exit(FAILED if isinstance(error, (BuildError, RunError)) else MISUSED)
        except KeyboardInterrupt:
            complain("interrupted")
            ctx.exit(FAILED)
        except InternalError as error:
            Console(stderr=True).print_exception()
            complain(str(error))
            ctx.exit(FAILED)


def json_option(command: F) -> F:
    """`--json OUT`, the argument `out`."""
    return click.option("--json", "out", metavar="OUT", help="Write the result as JSON to this file; - is standard output.")(command)


def target_option(command: F) -> F:
    """`--target T`, the argument `target`."""
    return click.option("--target", metavar="T", help="Such as 'llvm -mcpu=native'; by default this machine.")(command)


def finish(shown: RenderableType, data: object, out: str | None, ok: bool) -> None:
    """Give the result to people, and to a script that asked for it; exit with 1 unless all is well."""
    console(stderr=out == "-").print(printable(shown) if isinstance(shown, str) else shown)
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
    """A line of progress, on standard error."""
    Console(stderr=True).print(printable(text, "dim"), soft_wrap=True)


def complain(text: str) -> None:
    """A message of an error, on standard error."""
    Console(stderr=True).print(printable(f"error: {text}", "red"), soft_wrap=True)
