"""Export tensor expressions: `from tunesmith import te`, then `te.placeholder`, `te.compute`, `te.reduce_axis`, `te.create_prim_func`."""

from tunesmith.ops.intrinsic_functions import FUNCTIONS as _FUNCTIONS
from tunesmith.ops.tensor_expression import *  # noqa: F403
from tunesmith.ops.tensor_expression import __all__ as __all__
from tunesmith.ops.tensor_expression import __dir__ as __dir__
from tunesmith.ops.tensor_expression import __getattr__ as __getattr__

# help() and completion read the names of a module; documentation tools that do not run it read those above.
globals().update(_FUNCTIONS, __all__=[*__all__, *_FUNCTIONS])
