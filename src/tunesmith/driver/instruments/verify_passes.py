"""Verify the program after each pass."""

from __future__ import annotations

from tunesmith.driver.instruments.program_text import Program
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.verify import verify as verify_graph
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.verify import verify
from tunesmith.lower.instrument import Instrument


class VerifyPasses(Instrument):
    """Check that each function is well formed after each pass that changes it; an InstrumentError names the pass and the fault."""

    def after(self, name: str, before: Program, after: Program, seconds: float) -> None:
        """Verify the functions that changed.  ScriptError for the first fault."""
        if isinstance(after, PrimFunc):
            verify(after)
            return
        known = set(map(id, before.values())) if isinstance(before, IRModule) else set()
        for f in after.values():
            if isinstance(f, PrimFunc) and id(f) not in known:
                verify(f)
            elif isinstance(f, GraphFunc) and after is not before:  # a graph function depends on the functions that it calls
                verify_graph(f, after)
