"""import_tenset: the measure records of TenSet, folders of Ansor logs by platform, to a foreign table.

`measure_records/PLATFORM/*.json` holds a file for each task, its lines those of Ansor.  The pickles beside them (`network_info`) are
never opened: what a workload's hash stands for is only in there, so a workload is known by its key.
(source: TenSet, Zheng et al., NeurIPS 2021 datasets; CC BY 4.0)
"""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.datasets.foreign_table import ForeignTable, compact, files_of
from tunesmith.datasets.import_ansor import limited, read
from tunesmith.datasets.parquet_file import PathLike
from tunesmith.measure.records.log import LogReport


def load(paths: PathLike | Sequence[PathLike], limit: int | None = None) -> ForeignTable:
    """The table of TenSet's records; `hardware` is the platform, the name of the folder that a file lies in.

    Args:
        paths: `measure_records`, folders of platforms in it, or files.
        limit: so many records of each workload and target at most, the first ones.  The whole data set has 51 million.
    Raises:
        RecordError: a file cannot be read.  No content of it raises: what is no record is counted in `report`.
        UserError: the limit is below 1.
    """
    report = LogReport()
    found = (
        (f"{path.parent.name}/{path.name}", number, record)
        for path in files_of(paths, "*.json")
        for number, record in read(str(path), report, "tenset", compact({"platform": path.resolve().parent.name}))
    )
    return ForeignTable.of(limited(found, limit), report)
