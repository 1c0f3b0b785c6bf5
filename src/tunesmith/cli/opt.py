"""`tunesmith opt`: run passes on a program."""

from __future__ import annotations

import click

from tunesmith.cli.common import finish, json_option, target_option


@click.command()
@click.argument("program", metavar="PROGRAM", required=False)
@click.option(
    "-p",
    "--passes",
    metavar="PASSES",
    help="Such as 'simplify,version_loops{most=8}', path.py:name, or a pipeline: cpu, cpu_checked, gpu, graph.",
)
@click.option(
    "--show", type=click.Choice(["last", "changed", "all"]), default="last", show_default=True, help="Print the program after which passes."
)
@click.option("--diff", is_flag=True, help="Print what each pass changes.")
@click.option("--list", "listed", is_flag=True, help="List all passes, with their stages and options.")
@target_option
@json_option
def opt(program: str | None, passes: str | None, show: str, diff: bool, listed: bool, target: str | None, out: str | None) -> None:
    """Run passes on PROGRAM and print the result.

    PROGRAM is a file of script text (read, not executed), - for standard input, or a WORKLOAD.
    """
    from tunesmith.driver.opt import opt as run
    from tunesmith.driver.opt import pass_list

    if listed:
        finish(pass_list(), None, None, True)
        return
    if program is None or passes is None:
        raise click.UsageError("give a PROGRAM and --passes, or --list")
    found = run(program, passes, target)
    finish(found.render(show, diff), found.to_json(), out, True)
