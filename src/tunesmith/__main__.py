"""Run the command line: `python -m tunesmith`, and the script `tunesmith`."""

import sys


def run() -> None:
    """Run the command line.  Ctrl-C while it is imported ends it as Ctrl-C in a command does, without a traceback."""
    try:
        from tunesmith.cli.main import main

        main(prog_name="tunesmith")
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(1)


if __name__ == "__main__":
    run()
