"""Export the debugger of models: `trace` keeps all intermediate results, `first_difference` names the first call that differs."""

from tunesmith.driver.debug.first_difference import Difference as Difference
from tunesmith.driver.debug.first_difference import first_difference as first_difference
from tunesmith.driver.debug.trace import Trace as Trace
from tunesmith.driver.debug.trace import TracedCall as TracedCall
from tunesmith.driver.debug.trace import trace as trace

__all__ = ["Difference", "Trace", "TracedCall", "first_difference", "trace"]
