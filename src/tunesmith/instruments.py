"""Export instruments for `PassContext(instruments=[...])`: they dump, time, compare, verify and print programs between passes."""

from tunesmith.driver.instruments.dump_stages import DumpStages as DumpStages
from tunesmith.driver.instruments.pass_diff import PassDiff as PassDiff
from tunesmith.driver.instruments.pass_times import PassTimes as PassTimes
from tunesmith.driver.instruments.print_passes import PrintPasses as PrintPasses
from tunesmith.driver.instruments.verify_passes import VerifyPasses as VerifyPasses
from tunesmith.lower.instrument import Instrument as Instrument
from tunesmith.lower.instrument import InstrumentError as InstrumentError

__all__ = ["DumpStages", "Instrument", "InstrumentError", "PassDiff", "PassTimes", "PrintPasses", "VerifyPasses"]
