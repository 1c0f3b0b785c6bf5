"""Write the report of a study: a self-contained HTML page of tables and curves, without scripts, and a folder of its figures."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tunesmith.display.noise import clean_share, noise_remark
from tunesmith.display.tables import plural
from tunesmith.experiments.arena.plots import line_style, slug
from tunesmith.experiments.study.plots import MARK, Chart, Curve, bar_chart, curve_chart
from tunesmith.experiments.study.results import load_manifest, load_run
from tunesmith.experiments.study.statistics import MIN_INTERVAL, MIN_SEEDS, verdict
from tunesmith.experiments.study.summary import SHARES, summarise
from tunesmith.search.samplers.proposals import asked_once
from tunesmith.search.tuner import PHASES
from tunesmith.support import atomic_file
from tunesmith.support.errors import MissingExtraError, RecordError
from tunesmith.support.escaped_text import escaped

Json = Mapping[str, Any]
NamedChart = tuple[str, Chart]
ADVICE = "Run the study again in another folder on a quiet machine; differences near the spread of the seeds may be noise"
FIGURES = "figures"
"""Folder beside a page for its figures and their numbers."""
_SHOWN_ELSEWHERE = frozenset({"v", "kind", "run", "study", "settings", "workloads"})
"""Keys of a manifest line that other sections show."""


def report_experiment(folder: str | PathLike[str], out: str | PathLike[str] | None = None) -> tuple[Path, dict[str, object]]:
    """Write the report of a run, finished or not.

    Args:
        folder: folder of the run.
        out: the file to write; by default `report.html` in the folder.  The folder `figures` beside it gets each figure as SVG and its
            numbers as CSV, under names that begin with the name of the page.  A pipe gets the page alone.
    Returns:
        The path of the file, and its numbers.
    Raises:
        RecordError: the folder is not a run, a file in it is malformed, or the page cannot be written.
        MissingExtraError: jinja2 or matplotlib is not installed.
    """
    folder = Path(folder)
    path = folder / "report.html" if out is None else Path(out)
    data = summarise(load_run(folder)) | {"runs": load_manifest(folder)}
    charts = draw_charts(data)
    page = render(data, charts, f"{path.stem}-")
    try:
        atomic_file.write_text(path, page)
        if path.is_file():  # not a pipe or a terminal, beside which there is no folder
            _write_figures(charts, path.parent / FIGURES, f"{path.stem}-")
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror or error}. Check the folder and its permissions") from error
    return path, data


def _write_figures(charts: Sequence[NamedChart], folder: Path, prefix: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, chart in charts:
        atomic_file.write_bytes(folder / f"{prefix}{name}.svg", chart.svg)
        atomic_file.write_text(folder / f"{prefix}{name}.csv", chart.csv)


def render(data: Json, charts: Sequence[NamedChart], prefix: str = "") -> str:
    """Fill the template with the result of `summarise` and, as `runs`, the environment.  All texts are escaped: they come from files.

    Args:
        data: the numbers.
        charts: the result of `draw_charts`.
        prefix: beginning of the names of the files in `FIGURES`, to which the page links.
    Raises:
        MissingExtraError: jinja2 or matplotlib is not installed.
    """
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        raise MissingExtraError("jinja2", "plot", "writing a report") from None
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=_printable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    s = data["settings"]
    kinds = sorted({kind for r in data["results"] for kind in r["errors"]})
    return environment.get_template("report.html.j2").render(
        data=data,
        charts=[{"inline": chart.inline, "link": f"{FIGURES}/{quote(prefix + name)}"} for name, chart in charts],
        note=asked_once(s["batch"], s["trials"]) if s["batch"] >= s["trials"] else None,
        packed=base64.b64encode(json.dumps(data, allow_nan=False).encode()).decode(),
        workloads=plural(len(data["workloads"]), "workload"),
        shares=[str(share) for share in SHARES],
        share_heads=[f"trials to {share} %" for share in SHARES],
        min_interval=MIN_INTERVAL,
        min_seeds=MIN_SEEDS,
        phases=["total", *PHASES],
        phase_heads=[f"{phase} s" for phase in ("total", *PHASES)],
        error_kinds=kinds,
        error_counts=[
            [sum(r["errors"].get(kind, 0) for r in data["results"] if r["arm"] == arm) for kind in kinds] for arm in data["arms"]
        ],
        settings=[*flat({"settings": data["settings"], "variants": data["variants"]})],
        parts=plural(len(data["runs"]), "part"),
        facts=_facts(data["runs"]),
        line_style=line_style,
        clean_share=clean_share,
        noise=noise_remark(data["clean"], data["measured"], ADVICE),
        verdict=verdict,
    )


def _printable(value: object) -> object:
    """Replace unprintable characters, which escaping keeps, in every value that the template prints, except in markup."""
    return escaped(value, MARK) if isinstance(value, str) and not hasattr(value, "__html__") else value


def draw_charts(data: Json) -> list[NamedChart]:
    """The charts of the page, each with the name of its files: overall, of the workloads in their order, and of time if phases were timed.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    overall = curve_chart(_curves(data["arms"], data["overall"]), label="Speed over trials, all workloads", size=(9.6, 4.4))
    charts = [("speed-overall", overall)]
    for n, name in enumerate(w["name"] for w in data["workloads"]):
        results = [r for r in data["results"] if r["workload"] == name]
        charts.append((f"speed-{n}-{slug(name)}", curve_chart(_curves(data["arms"], results), label=f"Speed over trials, {name}")))
    timed = [(t["arm"], {p: 1000 * t["seconds"][p] / t["trials"] for p in PHASES}) for t in data["time"] if t["trials"]]
    return charts + ([("time-by-phase", bar_chart(timed, PHASES, label="Milliseconds of a trial by phase"))] if timed else [])


def _curves(arms: Sequence[str], results: Sequence[Json]) -> list[Curve]:
    return [
        Curve(r["arm"], arms.index(r["arm"]), c["trials"], c["percent"], c["low"], c["high"])
        for r in results
        if (c := r["curve"]) is not None
    ]


def _facts(runs: Sequence[Json]) -> dict[str, list[str]]:
    """The distinct values of each fact about machine and software, over the parts of a run."""
    facts: dict[str, list[str]] = {}
    for run in runs:
        for name, value in flat({k: v for k, v in run.items() if k not in _SHOWN_ELSEWHERE}):
            values = facts.setdefault(name, [])
            if value not in values:
                values.append(value)
    return facts


def flat(data: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Leaves of plain JSON with their dotted paths."""
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from flat(value, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        is_list = isinstance(data, list) and not any(isinstance(x, (dict, list)) for x in data)
        yield prefix, ", ".join(map(str, data)) if is_list else str(data)  # type: ignore[call-overload]  # a list, by is_list
