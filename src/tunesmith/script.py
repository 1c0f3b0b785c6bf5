"""Export the TensorIR script syntax: `from tunesmith import script as T`, then `@T.prim_func`, `T.grid`, `T.block`, ..."""

from tunesmith.ir.script.syntax import *  # noqa: F403
from tunesmith.ir.script.syntax import __all__ as __all__
from tunesmith.ir.script.syntax import __getattr__ as __getattr__
