"""Files of saved models: which model a file holds, and files that are JSON.

Every file says which model wrote it and from which version of the features that model has learned: `"model"` and `"schema"` at the
top of a JSON file, or in the metadata of a safetensors file (`{"__metadata__": {...}}`, at the beginning, after eight bytes of its
length).  Reading runs nothing: the name selects a class among the registered ones, and its `load` checks the rest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunesmith.costmodel.features.store_features import SCHEMA_VERSION
from tunesmith.support import atomic_file, json_lines
from tunesmith.support.errors import RecordError, UserError

SUFFIXES = (".json", ".safetensors")
"""What the names of files of models end with."""
MAX_HEADER = 1 << 20
"""Bytes of the header of a safetensors file; ours have a few thousand."""
MAX_BYTES = 1 << 28
"""Bytes of a JSON file; a hundred trees have a million."""


def is_model_file(spec: str) -> bool:
    """Whether a text that names a model names a file of one, rather than a registered name or a class."""
    return spec.endswith(SUFFIXES)


def model_of_file(path: str | os.PathLike[str]) -> str:
    """The name of the model that a file says it holds.

    Raises:
        RecordError: the file is not there, or no model's.
    """
    try:
        found = _metadata(Path(path)).get("model")
        if not isinstance(found, str):
            raise ValueError('it has no field "model"')
        return found
    except (OSError, ValueError) as error:
        raise RecordError(
            f"{os.fspath(path)} is no saved cost model: {_reason(error)}. If a class in a file of your own wrote it, name both: "
            f"path.py:Class@{os.fspath(path)}"
        ) from None


def check_schema(path: str | os.PathLike[str], schema: object) -> None:
    """RecordError unless a model has learned from features of this version."""
    if schema != SCHEMA_VERSION:
        raise RecordError(
            f"{os.fspath(path)} has learned from features of version {schema}; this is version {SCHEMA_VERSION}. Train it again"
        )


def check_suffix(path: str | os.PathLike[str], suffix: str) -> None:
    """UserError unless the name of a file to be written ends with what tells such a file from the name of a model."""
    if not os.fspath(path).endswith(suffix):
        raise UserError(f"cannot save to {os.fspath(path)}: files of this model have names that end with {suffix}")


def write_json(path: str | os.PathLike[str], data: Mapping[str, object]) -> None:
    """Write a model's file.  UserError if that cannot be done."""
    check_suffix(path, ".json")
    text = json.dumps(data) + "\n"
    try:
        atomic_file.write_text(path, text)
    except OSError as error:
        raise unwritable(path, error) from None


def read_json(path: str | os.PathLike[str], model: str, kind: type) -> dict[str, Any]:
    """What `write_json` wrote for this model, the version of its features checked.

    Raises:
        RecordError: the file is not there, holds something else, or is of another version.
    """
    try:
        data = _parsed(Path(path).read_bytes())
        if not isinstance(data, dict) or "model" not in data:
            raise ValueError('it is no JSON object with a field "model"')
        if data["model"] != model:
            raise ValueError(f"it holds a model {data['model']!r}")
        if "schema" not in data:
            raise ValueError('it has no field "schema"')
    except (OSError, ValueError) as error:
        raise not_saved(path, kind, error) from None
    check_schema(path, data["schema"])
    return data


def not_saved(path: str | os.PathLike[str], kind: type, error: Exception) -> RecordError:
    """The error for a file that is not this class's."""
    return RecordError(f"{os.fspath(path)} is no model that {kind.__name__}.save wrote: {_reason(error)}")


def unwritable(path: str | os.PathLike[str], error: OSError) -> UserError:
    """The error for a file that cannot be written."""
    return UserError(f"cannot write {os.fspath(path)}: {error.strerror or error}. Check the path and its permissions")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"the field {error} is missing" if isinstance(error, KeyError) else str(error)


def _parsed(data: bytes) -> object:
    """The JSON of a file.  ValueError if it is none, or too deep or too large for one of ours."""
    found = json_lines.parse(data, max_line_bytes=MAX_BYTES)
    if isinstance(found, json_lines.BadLine):
        raise ValueError(found.reason)
    return found


def _metadata(path: Path) -> Mapping[str, object]:
    if path.suffix != ".safetensors":
        data = _parsed(path.read_bytes())
    else:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > MAX_HEADER:
                raise ValueError(f"its header would have {size} bytes")
            data = _parsed(file.read(size))
        data = data.get("__metadata__") if isinstance(data, dict) else None
    if not isinstance(data, dict):
        raise ValueError("it holds no description of a model")
    return data
