"""Show what each pass changes."""

from __future__ import annotations

from tunesmith.driver.instruments.program_text import Program, Write, print_text, program_diff, program_name, program_text
from tunesmith.lower.instrument import Instrument
from tunesmith.lower.pass_context import check_pass_names


class PassDiff(Instrument):
    """Write a unified diff of the script for each pass that changes it.

    Args:
        names: names of passes; all if there are none.
        write: takes each diff; by default it is printed.
    """

    def __init__(self, *names: str, write: Write = print_text) -> None:
        self.names = names
        self._write = write

    def enter(self) -> None:
        """Refuse names that no pass has."""
        check_pass_names(self.names)

    def after(self, name: str, before: Program, after: Program, seconds: float) -> None:
        """Write the diff."""
        if after is before or (self.names and name not in self.names):
            return
        diff = program_diff(program_text(before), program_text(after), name)
        if diff:
            self._write(f"# {name}, {program_name(after)}\n{diff}\n")
