"""Import TenSet's measurement records, which are Ansor logs in one folder per platform, into a foreign table.

`measure_records/PLATFORM/*.json` has one file per task, in Ansor's format.  The pickles beside them (`network_info`) are never opened.
Only they define what a workload's hash means, so workloads are identified by their key.
(source: TenSet, Zheng et al., NeurIPS 2021 datasets; CC BY 4.0)
"""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.datasets.foreign_table import ForeignTable, compact, files_of
from tunesmith.datasets.import_ansor import limited, read
from tunesmith.datasets.parquet_file import PathLike
from tunesmith.measure.records.log import LogReport


def load(paths: PathLike | Sequence[PathLike], limit: int | None = None) -> ForeignTable:
    """Load TenSet records; `hardware` is the platform: the name of the folder that contains the file.

    Args:
        paths: `measure_records`, platform folders in it, or files.
        limit: maximum number of records per workload and target; the first ones are kept.  The whole data set has 51 million.
    Raises:
        RecordError: a file cannot be read.  Its content never raises: invalid lines are counted in `report`.
        UserError: the limit is below 1.
    """
    report = LogReport()
    found = (
        (f"{path.parent.name}/{path.name}", number, record)
        for path in files_of(paths, "*.json")
        for number, record in read(str(path), report, "tenset", compact({"platform": path.resolve().parent.name}))
    )
    return ForeignTable.of(limited(found, limit), report)
