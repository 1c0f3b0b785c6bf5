"""Read and write parquet files with metadata: kind of table, format version, and data specific to the kind.

Files are written atomically, with checksums, and read as untrusted data: files that are damaged, of another kind or of a newer version are
rejected.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tunesmith.measure.records.fields import show
from tunesmith.support import atomic_file, json_lines
from tunesmith.support.errors import RecordError

PathLike = str | os.PathLike[str]

_KEY = b"tunesmith"
_MAX_METADATA = 1 << 28
"""Limit of the metadata in bytes; the script of a workload has a few thousand."""
MAX_BYTES = 1 << 30
"""Default limit of the uncompressed cells in bytes, for small files."""
MAX_RATIO = 100
"""Default limit of the ratio of uncompressed cells to file size; tables of measurements have 5 to 30."""
_CELL = 4
"""Minimum bytes of a cell."""
_BATCH = 8192
"""Rows that are uncompressed at a time."""


def write(path: PathLike, table: pa.Table, kind: str, version: int, metadata: Mapping[str, object]) -> None:
    """Write a table atomically: readers of `path` see the old or the new file.

    Args:
        path: the file; its folder is created if missing.
        table: the columns.
        kind: kind of the table, checked by `read`.
        version: version of the columns and the metadata of this kind.
        metadata: plain JSON stored with the table.
    Raises:
        RecordError: the file cannot be written, or the metadata is not JSON.
    """
    path = Path(path)
    try:
        text = json.dumps({"kind": kind, "v": version, **metadata}, allow_nan=False, separators=(",", ":"))
        described = table.replace_schema_metadata({_KEY: text.encode("ascii")})
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file.replacing(path) as file:
            pq.write_table(described, file, compression="zstd", write_page_checksum=True)
    except (OSError, pa.ArrowException, TypeError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise RecordError(f"cannot write the table {path}: {why}. Check the path, its permissions and the free space") from error


def read(path: PathLike, kind: str, version: int, schema: pa.Schema, max_bytes: int | None = None) -> tuple[pa.Table, dict[str, object]]:
    """Read the columns and the metadata of a file written by `write`.

    Args:
        path: the file.
        kind: required kind.
        version: the newest supported version.
        schema: required columns with their types; non-nullable fields must not contain nulls, and lists never may.  Other columns are
            returned unchanged.
        max_bytes: limit of the uncompressed cells; by default the larger of `MAX_BYTES` and `MAX_RATIO` times the file size.
    Raises:
        RecordError: the file does not exist, is damaged, of another kind or of a newer version, has other columns, or exceeds the memory
            limit.
    """
    path = Path(path)
    if not path.is_file():
        raise RecordError(f"cannot read the table {path}: the file does not exist. Check the path")
    try:
        with pq.ParquetFile(path) as file:
            metadata = _metadata(path, (file.schema_arrow.metadata or {}).get(_KEY), kind, version)
            texts = [f.name for f in file.schema_arrow if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
        limit = max(MAX_BYTES, MAX_RATIO * path.stat().st_size) if max_bytes is None else max_bytes
        # Repeated texts are stored once: they are read as dictionaries, and expanded only after their total size is checked.
        with pq.ParquetFile(path, page_checksum_verification=True, read_dictionary=texts) as file:
            table = _bounded(path, file, limit)
            table.validate(full=True)
        for at, field in enumerate(table.schema):
            if pa.types.is_dictionary(field.type):
                table = table.set_column(at, field.name, table.column(at).cast(field.type.value_type))
    except (OSError, EOFError, pa.ArrowException, ValueError, OverflowError) as error:
        raise RecordError(
            f"cannot read the table {path}: {error}. It is not a parquet file, or damaged; rebuild it from its log"
        ) from error
    return _conforming(path, table, schema), metadata


def _bounded(path: Path, file: pq.ParquetFile, limit: int) -> pa.Table:
    """The whole table, with texts as dictionaries; its size is checked first by the file's metadata, then by the actual contents."""
    about = file.metadata
    stored = sum(
        about.row_group(g).column(c).total_uncompressed_size for g in range(about.num_row_groups) for c in range(about.num_columns)
    )
    needed = max(stored, about.num_rows * about.num_columns * _CELL)
    _refuse_large(path, needed, limit)
    batches, needed = [], 0
    for batch in file.iter_batches(_BATCH, use_threads=False):
        needed += sum(_unpacked(column) for column in batch.columns)
        _refuse_large(path, needed, limit)
        batches.append(batch)
    return pa.Table.from_batches(batches, file.schema_arrow)


def _unpacked(column: pa.Array) -> int:
    """Bytes of the column with expanded texts."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = pc.cast(pc.binary_length(column.dictionary), pa.int64())
    return int(pc.sum(lengths.take(column.indices)).as_py() or 0) + len(column) * _CELL


def _refuse_large(path: Path, needed: int, limit: int) -> None:
    if needed > limit:
        raise RecordError(
            f"{path} needs at least {needed >> 20} MB uncompressed, but the limit is {limit >> 20} MB: for a file of "
            f"{path.stat().st_size >> 10} KB this suggests a decompression bomb. If the file is trusted, load it with "
            "RecordTable.load(path, max_bytes=...)"
        )


def kind_of(path: PathLike) -> str:
    """The kind of table in a file, from its metadata alone; empty if the file was not written by tunesmith."""
    try:
        with pq.ParquetFile(path) as file:
            found = json_lines.parse((file.schema_arrow.metadata or {}).get(_KEY, b"null"), max_line_bytes=_MAX_METADATA)
    except (OSError, EOFError, pa.ArrowException, ValueError, OverflowError):
        return ""
    return str(found.get("kind", "")) if isinstance(found, dict) else ""


def _metadata(path: Path, text: bytes | None, kind: str, version: int) -> dict[str, object]:
    if text is None:
        raise RecordError(
            f"{path} is a parquet file, but not written by tunesmith: create a table with `tunesmith dataset build` or `import`"
        )
    found = json_lines.parse(text, max_line_bytes=_MAX_METADATA)
    if not isinstance(found, dict):
        why = found.reason if isinstance(found, json_lines.BadLine) else "not a JSON object"
        raise RecordError(f"{path}: its metadata is damaged ({why}); rebuild the table from its log")
    if found.get("kind") != kind:
        raise RecordError(f"{path} is a table of {show(found.get('kind'))}, but a table of {kind!r} is expected")
    v = found.get("v")
    if type(v) is not int or v < 1:
        raise RecordError(f"{path}: its version is {show(v)}, not a positive integer; the file is damaged")
    if v > version:
        raise RecordError(f"{path} is of version {show(v)}, but tables of {kind} are supported up to version {version}. Upgrade tunesmith")
    return found


def _conforming(path: Path, table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with the required columns converted to the types of the schema."""
    for field in schema:
        at = table.schema.get_all_field_indices(field.name)
        if len(at) != 1:
            raise RecordError(f"{path}: it has {len(at)} columns named {field.name!r}, expected one")
        column = table.column(at[0])
        if pa.types.is_list(column.type) and pc.list_flatten(column).null_count:
            raise RecordError(f"{path}: the column {field.name!r} has lists with null elements, which are not allowed")
        if not field.nullable and column.null_count:
            raise RecordError(f"{path}: the column {field.name!r} has {column.null_count} null cells, which are not allowed")
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except pa.ArrowException as error:
                raise RecordError(f"{path}: the column {field.name!r} is {column.type}, not {field.type}: {error}") from error
            table = table.set_column(at[0], field, column)
    return table
