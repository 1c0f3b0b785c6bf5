"""What `path.py:name` names: how a sampler, a model or a workload of the user's own reaches the command line without being installed."""

from __future__ import annotations

import importlib.util
import sys
from hashlib import blake2b
from pathlib import Path

from tunesmith.support.errors import UserError


def names_a_file(spec: str) -> bool:
    """Whether the text is of the form `path.py:name`, and so no registered name."""
    return ".py:" in spec


def load_from_file(spec: str) -> object:
    """What `path.py:name` names: the file is run as Python, as if it were imported.

    It is run anew for each call.  Only what the user has named on the command line or in a call may come here, never a text from
    a log, a dataset or a saved model.

    Raises:
        UserError: there is no such file, it fails, or it holds no such name.
    """
    path, _, name = spec.rpartition(":")
    file = Path(path)
    if not file.is_file():
        where = "" if file.is_absolute() else f" in {Path.cwd()}"
        raise UserError(f"{spec!r}: there is no file {path}{where}. Spell it path.py:name")
    # A name of its own for each file: two files `mine.py` in different folders are different modules.
    module_name = f"{file.stem}_{blake2b(str(file.resolve()).encode(), digest_size=4).hexdigest()}"
    module_spec = importlib.util.spec_from_file_location(module_name, file)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_name] = module  # dataclasses look their module up
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise UserError(f"{spec!r}: running {path} failed with {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise UserError(f"{spec!r}: {path} holds no {name!r}")
    return getattr(module, name)
