"""Run the command line with `python -m tunesmith`."""

from tunesmith.cli.main import main

main(prog_name="tunesmith")
