"""Export tensor expressions: `from tunesmith import te`, then `te.placeholder`, `te.compute`, `te.reduce_axis`, `te.create_prim_func`."""

from tunesmith.ops.tensor_expression import *  # noqa: F403
from tunesmith.ops.tensor_expression import __all__ as __all__
from tunesmith.ops.tensor_expression import __dir__ as __dir__
from tunesmith.ops.tensor_expression import __getattr__ as __getattr__
