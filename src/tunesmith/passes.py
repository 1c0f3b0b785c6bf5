"""Export passes, pipelines and what steers them: `from tunesmith.passes import GRAPH, CPU, Pipeline, module_pass, ...`"""

from tunesmith.driver.passes.tune_functions import TuneFunctions as TuneFunctions
from tunesmith.graph.passes.pipelines import GRAPH as GRAPH
from tunesmith.graph.tuning.apply_records import ApplyRecords as ApplyRecords
from tunesmith.lower.pass_context import PassContext as PassContext
from tunesmith.lower.pass_infra import ModulePass as ModulePass
from tunesmith.lower.pass_infra import Pass as Pass
from tunesmith.lower.pass_infra import Pipeline as Pipeline
from tunesmith.lower.pass_infra import function_pass as function_pass
from tunesmith.lower.pass_infra import module_pass as module_pass
from tunesmith.lower.pipelines import CPU as CPU
from tunesmith.lower.pipelines import CPU_CHECKED as CPU_CHECKED
from tunesmith.lower.pipelines import GPU as GPU

__all__ = [
    "CPU",
    "CPU_CHECKED",
    "GPU",
    "GRAPH",
    "ApplyRecords",
    "ModulePass",
    "Pass",
    "PassContext",
    "Pipeline",
    "TuneFunctions",
    "function_pass",
    "module_pass",
]
