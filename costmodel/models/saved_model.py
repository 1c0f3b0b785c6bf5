"""Read and write the files of saved cost models, and identify the model of a file.

Every file contains the name of its model and the version of the features it was trained on: `"model"` and `"schema"` at the top level of
a JSON file, or in the metadata of a safetensors file (`{"__metadata__": {...}}` at the start, after an 8-byte length).  Reading executes
no code: the name selects a registered class, whose `load` checks the rest.
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
"""Suffixes of model files."""
MAX_HEADER = 1 << 20
"""Maximum bytes of the header of a safetensors file; typical headers have a few thousand."""
MAX_BYTES = 1 << 28
"""Maximum bytes of a JSON file; a hundred trees take a million."""


def is_model_file(spec: str) -> bool:
    """Whether the text names a model file instead of a registered name or a class."""
    return spec.endswith(SUFFIXES)


def model_of_file(path: str | os.PathLike[str]) -> str:
    """The name of the model in a file.

    Raises:
        RecordError: the file does not exist, or is not a model file.
    """
    try:
        found = _metadata(Path(path)).get("model")
        if not isinstance(found, str):
            raise ValueError('it has no field "model"')
        return found
    except (OSError, ValueError) as error:
        raise RecordError(
            f"{os.fspath(path)} is not a saved cost model: {_reason(error)}. If a class of your own wrote it, name both: "
            f"path.py:Class@{os.fspath(path)}"
        ) from None


def check_schema(path: str | os.PathLike[str], schema: object) -> None:
    """Raise RecordError unless the model was trained on features of this version."""
    if schema != SCHEMA_VERSION:
        raise RecordError(
            f"{os.fspath(path)} was trained on features of version {schema}; this is version {SCHEMA_VERSION}. Train it again"
        )


def check_suffix(path: str | os.PathLike[str], suffix: str) -> None:
    """Raise UserError unless the file name ends with the model's suffix."""
    if not os.fspath(path).endswith(suffix):
        raise UserError(f"cannot save to {os.fspath(path)}: files of this model have names that end with {suffix}")


def write_json(path: str | os.PathLike[str], data: Mapping[str, object]) -> None:
    """Write a model as JSON.  Raises UserError if the file cannot be written."""
    check_suffix(path, ".json")
    text = json.dumps(data) + "\n"
    try:
        atomic_file.write_text(path, text)
    except OSError as error:
        raise unwritable(path, error) from None


def read_json(path: str | os.PathLike[str], model: str, kind: type) -> dict[str, Any]:
    """The data that `write_json` wrote for this model, after a check of its feature version.

    Raises:
        RecordError: the file does not exist, contains something else, or has another version.
    """
    try:
        data = _parsed(Path(path).read_bytes())
        if not isinstance(data, dict) or "model" not in data:
            raise ValueError('it is not a JSON object with a field "model"')
        if data["model"] != model:
            raise ValueError(f"it contains a model {data['model']!r}")
        if "schema" not in data:
            raise ValueError('it has no field "schema"')
    except (OSError, ValueError) as error:
        raise not_saved(path, kind, error) from None
    check_schema(path, data["schema"])
    return data


def not_saved(path: str | os.PathLike[str], kind: type, error: Exception) -> RecordError:
    """The error for a file that this class did not write."""
    return RecordError(f"{os.fspath(path)} is not a model written by {kind.__name__}.save: {_reason(error)}")


def unwritable(path: str | os.PathLike[str], error: OSError) -> UserError:
    """The error for a file that cannot be written."""
    return UserError(f"cannot write {os.fspath(path)}: {error.strerror or error}. Check the path and its permissions")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"the field {error} is missing" if isinstance(error, KeyError) else str(error)


def _parsed(data: bytes) -> object:
    """The JSON data of a file.  Raises ValueError if it is not JSON, too deeply nested or too large."""
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
                raise ValueError(f"its header has {size} bytes, more than {MAX_HEADER}")
            data = _parsed(file.read(size))
        data = data.get("__metadata__") if isinstance(data, dict) else None
    if not isinstance(data, dict):
        raise ValueError("it contains no model metadata")
    return data
