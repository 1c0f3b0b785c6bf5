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
@click.option("--time", "timed", is_flag=True, help="Print the time of each pass on standard error.")
@click.option("--dump", metavar="DIR", help="Write the program behind each pass to a file of an empty folder.")
@click.option("--verify", is_flag=True, help="Check that the program is well formed after each pass.")
@click.option("--disable", multiple=True, metavar="PASS", help="Leave out an optional pass; may be repeated.")
@click.option("--option", "options", multiple=True, metavar="PASS.OPTION=VALUE", help="Set an option of a pass; may be repeated.")
@click.option("--level", type=click.IntRange(0, 3), help="Leave out optional passes of a higher level (see --list); 2 by default.")
@click.option("--list", "listed", is_flag=True, help="List all passes, with their stages and options.")
@target_option
@json_option
def opt(
    program: str | None,
    passes: str | None,
    show: str,
    diff: bool,
    timed: bool,
    dump: str | None,
    verify: bool,
    disable: tuple[str, ...],
    options: tuple[str, ...],
    level: int | None,
    listed: bool,
    target: str | None,
    out: str | None,
) -> None:
    """Run passes on PROGRAM and print the result.

    PROGRAM is a file of script text (read, not executed), - for standard input, or a WORKLOAD.
    """
    from tunesmith.driver.opt import find_passes, pass_list, steered
    from tunesmith.driver.opt import opt as run
    from tunesmith.instruments import DumpStages, Instrument, PassTimes, VerifyPasses
    from tunesmith.passes import PassContext

    if listed:
        finish(pass_list(), None, None, True)
        return
    if program is None or passes is None:
        raise click.UsageError("give a PROGRAM and --passes, or --list")
    chosen = find_passes(passes)
    times = PassTimes()
    observers: list[Instrument] = [
        *([DumpStages(dump)] if dump else []),
        *([VerifyPasses()] if verify else []),
        *([times] if timed else []),
    ]
    with steered(level, disable, options), PassContext(instruments=observers):
        found = run(program, chosen, target)
    if timed:
        click.echo(str(times), err=True)
    finish(found.render(show, diff), found.to_json(), out, True)
