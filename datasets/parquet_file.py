"""One parquet file of ours: what kind of table it is and of which version stands in its metadata, next to whatever the kind keeps there.

A file is written whole or not at all, with checksums, and read as data from anywhere: what is damaged, of another kind or of a newer
version is refused.
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
"""Bytes; the script of a workload is a few thousand."""
MAX_BYTES = 1 << 30
MAX_RATIO = 100
"""Of the memory of a table's cells and the size of its file: measured tables have 5 to 30."""
_CELL = 4
_BATCH = 8192
"""Bytes that a cell needs at least, and rows that are unpacked at once."""


def write(path: PathLike, table: pa.Table, kind: str, version: int, metadata: Mapping[str, object]) -> None:
    """Write a table, in one step: whoever reads `path` sees the old file or the new one.

    Args:
        path: the file; its folder is made when missing.
        table: the columns.
        kind: what the table is, for `read`.
        version: of the columns and the metadata of this kind.
        metadata: plain JSON that goes with the table.
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
    """The columns and the metadata of a file that `write` made.

    Args:
        path: the file.
        kind: what it must be.
        version: the newest version that can be read.
        schema: columns that must be there, with their types; a field that is not nullable may hold no null, and no list any.  Others are
            kept as they are.
        max_bytes: that its cells may need unpacked; by default the larger of `MAX_BYTES` and `MAX_RATIO` times the size of the file.
    Raises:
        RecordError: there is no such file, it is damaged, of another kind, of a newer version, its columns are others, or it would need
            more memory than it may.
    """
    path = Path(path)
    if not path.is_file():
        raise RecordError(f"cannot read the table {path}: there is no such file. Check the path")
    try:
        with pq.ParquetFile(path) as file:
            metadata = _metadata(path, (file.schema_arrow.metadata or {}).get(_KEY), kind, version)
            texts = [f.name for f in file.schema_arrow if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
        limit = max(MAX_BYTES, MAX_RATIO * path.stat().st_size) if max_bytes is None else max_bytes
        # Texts that repeat are stored once: they are read as they are stored, and written out when their size is known to be fine.
        with pq.ParquetFile(path, page_checksum_verification=True, read_dictionary=texts) as file:
            table = _bounded(path, file, limit)
            table.validate(full=True)
        for at, field in enumerate(table.schema):
            if pa.types.is_dictionary(field.type):
                table = table.set_column(at, field.name, table.column(at).cast(field.type.value_type))
    except (OSError, EOFError, pa.ArrowException, ValueError, OverflowError) as error:
        raise RecordError(
            f"cannot read the table {path}: {error}. It is no parquet file, or damaged; make it again from its log"
        ) from error
    return _conforming(path, table, schema), metadata


def _bounded(path: Path, file: pq.ParquetFile, limit: int) -> pa.Table:
    """The whole table, its texts as dictionaries; what a file says of itself is looked at first, and then what it turns out to be."""
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
    """Bytes of the column with texts written out."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = pc.cast(pc.binary_length(column.dictionary), pa.int64())
    return int(pc.sum(lengths.take(column.indices)).as_py() or 0) + len(column) * _CELL


def _refuse_large(path: Path, needed: int, limit: int) -> None:
    if needed > limit:
        raise RecordError(
            f"{path} would need at least {needed >> 20} MB unpacked, and may need {limit >> 20} MB: a table of "
            f"{path.stat().st_size >> 10} KB does not become that large unless it was made to. If it is right, load it with "
            "RecordTable.load(path, max_bytes=...)"
        )


def kind_of(path: PathLike) -> str:
    """The kind of table that a file is, by its metadata alone; empty if it is no table of ours."""
    try:
        with pq.ParquetFile(path) as file:
            found = json_lines.parse((file.schema_arrow.metadata or {}).get(_KEY, b"null"), max_line_bytes=_MAX_METADATA)
    except (OSError, EOFError, pa.ArrowException, ValueError, OverflowError):
        return ""
    return str(found.get("kind", "")) if isinstance(found, dict) else ""


def _metadata(path: Path, text: bytes | None, kind: str, version: int) -> dict[str, object]:
    if text is None:
        raise RecordError(f"{path} is a parquet file, but not one of tunesmith's: make a table with `tunesmith dataset build` or `import`")
    found = json_lines.parse(text, max_line_bytes=_MAX_METADATA)
    if not isinstance(found, dict):
        why = found.reason if isinstance(found, json_lines.BadLine) else "no JSON object"
        raise RecordError(f"{path}: its metadata is damaged ({why}); make the table again from its log")
    if found.get("kind") != kind:
        raise RecordError(f"{path} is a table of {show(found.get('kind'))}, and one of {kind!r} is wanted")
    v = found.get("v")
    if type(v) is not int or v < 1:
        raise RecordError(f"{path}: its version is {show(v)}, not a number from 1 on; the file is damaged")
    if v > version:
        raise RecordError(
            f"{path} is of version {show(v)}, this tunesmith reads tables of {kind} up to version {version}. Upgrade tunesmith"
        )
    return found


def _conforming(path: Path, table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with the columns of the schema in its types."""
    for field in schema:
        at = table.schema.get_all_field_indices(field.name)
        if len(at) != 1:
            raise RecordError(f"{path}: it has {len(at)} columns named {field.name!r}, and one is wanted")
        column = table.column(at[0])
        if pa.types.is_list(column.type) and pc.list_flatten(column).null_count:
            raise RecordError(f"{path}: the column {field.name!r} has lists with empty elements, and none is allowed")
        if not field.nullable and column.null_count:
            raise RecordError(f"{path}: the column {field.name!r} has {column.null_count} empty cells, and none is allowed")
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except pa.ArrowException as error:
                raise RecordError(f"{path}: the column {field.name!r} is {column.type}, not {field.type}: {error}") from error
            table = table.set_column(at[0], field, column)
    return table
