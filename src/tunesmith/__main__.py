"""`python -m tunesmith`: the command line."""

from tunesmith.cli.main import main

main(prog_name="tunesmith")
