"""Stand in for the executor of a model that was compiled for another machine: it can be exported, but not called."""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.runtime.executor.bound_program import BoundProgram
from tunesmith.runtime.executor.device_memory import Array
from tunesmith.runtime.executor.executable import Executable
from tunesmith.runtime.executor.executor import Executor, Shape
from tunesmith.runtime.executor.graph_executor import static_specs
from tunesmith.runtime.executor.program_data import field
from tunesmith.runtime.executor.virtual_machine import VirtualMachine
from tunesmith.support.errors import OtherMachineError


class RefusedExecutor(Executor):
    """Has the inputs and outputs of the model, and refuses to run it.

    Args:
        executable: the model.
        reason: why it cannot run here.
    """

    def __init__(self, executable: Executable, reason: str) -> None:
        self.kind = executable.kind
        self.reason = reason
        program = executable.program
        if executable.kind == VirtualMachine.kind:
            called = {row[1]: _nothing for row in program["code"] if row[0] == "call"}
            machine = VirtualMachine(program, executable.constants, called)
            inputs, outputs = list(machine.inputs), list(machine.outputs)
        else:
            inputs, outputs = [static_specs(field(program, name, "the program"), name) for name in ("inputs", "outputs")]
        super().__init__(inputs, outputs, {})

    def _bound_program(self, arrays: Sequence[Array]) -> tuple[BoundProgram, Sequence[Shape]]:
        raise OtherMachineError(self.reason)


def _nothing(*_: object) -> None:
    """In place of a function that cannot be called."""
