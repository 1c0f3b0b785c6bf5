"""Write the program after each pass to a file."""

from __future__ import annotations

import re
from os import PathLike
from pathlib import Path

from tunesmith.driver.instruments.program_text import Program, program_name, program_text
from tunesmith.lower.instrument import Instrument
from tunesmith.support.errors import UserError

INDEX = "stages.txt"
"""The file that lists all passes in order."""


class DumpStages(Instrument):
    """Write the program after each pass that changes it to `NUMBER-FUNCTION-PASS.txt`, and what a failing pass got to `....failed.txt`.

    `stages.txt` lists all passes in order with their times; it is written when the context ends.  A pass that runs others is listed after
    them.

    Args:
        folder: made if it does not exist; it must be empty.
    Raises:
        UserError: the folder has files, or cannot be made.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        self.folder = Path(folder)
        self._lines: list[str] = []
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            is_empty = next(self.folder.iterdir(), None) is None
        except OSError as error:
            raise UserError(f"stages cannot be written to {self.folder}: {error}") from error
        if not is_empty:
            raise UserError(f"{self.folder} has files already: name an empty folder for the stages, or one that does not exist")

    def before(self, name: str, ir: Program) -> None:
        """Write the first program that a pass gets."""
        if not self._lines:
            self._write("input", ir, 0.0)

    def after(self, name: str, before: Program, after: Program, seconds: float) -> None:
        """Write the program if it changed."""
        if after is before:
            self._lines.append(f"{len(self._lines):04d}  {seconds * 1e3:9.2f} ms  {name}, {program_name(after)}: no change")
        else:
            self._write(name, after, seconds)

    def failed(self, name: str, before: Program, error: BaseException, seconds: float) -> None:
        """Write what the pass got, and the error."""
        self._write(name, before, seconds, f"# {type(error).__name__} in {name}\n# " + "\n# ".join(str(error).splitlines()) + "\n")

    def exit(self) -> None:
        """Write the list of the passes."""
        (self.folder / INDEX).write_text("".join(f"{line}\n" for line in self._lines), encoding="utf-8")

    def _write(self, name: str, program: Program, seconds: float, fault: str = "") -> None:
        number = len(self._lines)
        label = "-".join([re.sub(r"[^\w.]+", "_", part) for part in (program_name(program), name)])
        file = f"{number:04d}-{label}{'.failed' if fault else ''}.txt"
        self._lines.append(f"{number:04d}  {seconds * 1e3:9.2f} ms  {name}, {program_name(program)}: {'failed, ' if fault else ''}{file}")
        (self.folder / file).write_text(f"{fault}{program_text(program)}\n", encoding="utf-8")
