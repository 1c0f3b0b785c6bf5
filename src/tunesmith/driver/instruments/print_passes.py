"""Print the program before or after passes."""

from __future__ import annotations

from tunesmith.driver.instruments.program_text import Program, Write, print_text, program_name, program_text
from tunesmith.lower.instrument import Instrument
from tunesmith.lower.pass_context import check_pass_names
from tunesmith.support.errors import UserError


class PrintPasses(Instrument):
    """Write the program at named passes.

    Args:
        names: names of passes.
        when: "after", "before" or "both".
        write: takes each program; by default it is printed.
    Raises:
        UserError: no name, or another `when`.
    """

    def __init__(self, *names: str, when: str = "after", write: Write = print_text) -> None:
        if not names or not all(isinstance(n, str) for n in names):
            raise UserError(f"PrintPasses{names!r:.200}: give the names of passes, such as PrintPasses('fuse_operators')")
        if when not in ("after", "before", "both"):
            raise UserError(f"when={when!r:.100}: a program is printed 'after' a pass, 'before' it, or at 'both' places")
        self.names, self.when = names, when
        self._write = write

    def enter(self) -> None:
        """Refuse names that no pass has."""
        check_pass_names(self.names)

    def before(self, name: str, ir: Program) -> None:
        """Write what the pass gets."""
        if name in self.names and self.when != "after":
            self._write(f"# before {name}, {program_name(ir)}\n{program_text(ir)}\n")

    def after(self, name: str, before: Program, after: Program, seconds: float) -> None:
        """Write what the pass makes."""
        if name in self.names and self.when != "before":
            self._write(f"# after {name}, {program_name(after)}\n{program_text(after)}\n")
