"""`python -m tunesmith`: the command line."""

from tunesmith.cli import main

main(prog_name="tunesmith")
