"""Write the report of a study as one self-contained HTML page of tables and curves, without scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from tunesmith.display.tables import plural
from tunesmith.experiments.study.charts import Curve, bar_chart, box_legend, curve_chart, line_legend
from tunesmith.experiments.study.markup import Content, Html, download, el, figure, page, table
from tunesmith.experiments.study.results import load_manifest, load_run
from tunesmith.experiments.study.statistics import MIN_SEEDS, verdict
from tunesmith.experiments.study.summary import SHARES, summarise
from tunesmith.search.samplers.proposals import asked_once
from tunesmith.search.tuner import PHASES
from tunesmith.support import atomic_file
from tunesmith.support.errors import RecordError

Json = Mapping[str, Any]
_SHOWN_ELSEWHERE = frozenset({"v", "kind", "run", "study", "settings", "workloads"})
"""Keys of a manifest line that other sections show."""


def report_experiment(folder: str | PathLike[str], out: str | PathLike[str] | None = None) -> tuple[Path, dict[str, object]]:
    """Write the report of a run, finished or not.

    Args:
        folder: folder of the run.
        out: the file to write; by default `report.html` in the folder.
    Returns:
        The path of the file, and its numbers.
    Raises:
        RecordError: the folder is not a run, a file in it is malformed, or the page cannot be written.
    """
    folder = Path(folder)
    path = folder / "report.html" if out is None else Path(out)
    data = summarise(load_run(folder)) | {"runs": load_manifest(folder)}
    try:
        atomic_file.write_text(path, render(data))
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror or error}. Check the folder and its permissions") from error
    return path, data


def render(data: Json) -> str:
    """The page for the result of `summarise` with an entry `runs` for the environment.  All texts are escaped: they come from files."""
    sections = (_head, _overall, _results, _comparison, _curves, _time, _spaces, _errors, _environment)
    return page(f"{data['name']}: report", [section(data) for section in sections])


def _head(data: Json) -> Content:
    s, cells = data["settings"], data["cells"]
    counts = f"{cells['done']} of {sum(cells.values())} cells are done" + "".join(
        f", {n} {state}" for state, n in cells.items() if n and state != "done"
    )
    sizes = f"{s['trials']} trials per search in batches of {s['batch']}, {s['leaders']} leaders verified and timed in turn at the end"
    return [
        el("h1", data["name"]),
        el("p", data["question"], class_="lead") if data["question"] else None,
        el(
            "p",
            f"{counts}. {sizes}; target {s['target'] or 'the machine of the run'}. Only finished cells are compared.",
            class_="soft",
        ),
        el("p", f"Note: {asked_once(s['batch'], s['trials'])}.") if s["batch"] >= s["trials"] else None,
        el("p", download(f"{data['name']}.json", data, "All numbers of this page as JSON"), "."),
    ]


def _overall(data: Json) -> Content:
    rows = [[o["arm"], str(len(o["seeds"])), _interval(o["percent"], "{:.1f}")] for o in data["overall"]]
    workloads = plural(len(data["workloads"]), "workload")
    return [
        el("h2", "Overall"),
        table(
            ["arm", "seeds", "% of the best known speed"],
            rows,
            caption=f"Geometric mean over {workloads} of the final speed of the searches, relative to the fastest program found by any "
            "search of this run. Brackets are 95 % intervals over seeds; seeds that have not finished every workload are excluded.",
        ),
        line_legend(data["arms"]),
        figure(
            curve_chart([*_lines(data["arms"], data["overall"])], label="Speed over trials, all workloads", width=720, height=300),
            f"Mean speed over {workloads} after a number of trials, relative to the best known. Shades are 95 % intervals over seeds; the "
            "axis of trials is logarithmic. A line "
            "starts where every search has a verified program; programs count with their last measured time.",
        ),
    ]


def _results(data: Json) -> Content:
    rows: list[list[Content]] = []
    for w in data["workloads"]:
        found = [r for r in data["results"] if r["workload"] == w["name"]]
        fastest = min((r["best_us"]["mean"] for r in found if r["best_us"]), default=None)
        rows.append([w["name"]])
        for r in found:
            best = _interval(r["best_us"], "{:.4g}")
            rows.append(
                [
                    r["arm"],
                    f"{len(r['seeds'])}/{r['wanted']}",
                    el("strong", best) if r["best_us"] and r["best_us"]["mean"] == fastest and len(found) > 1 else best,
                    _interval(r["gflops"], "{:.4g}"),
                    _interval(r["percent"], "{:.1f}"),
                    *[_reached(r["trials_to"].get(str(share))) for share in SHARES],
                ]
            )
    return [
        el("h2", "Results by workload"),
        table(
            ["arm", "seeds", "best us", "GFLOP/s", "% of best known", *[f"trials to {share} %" for share in SHARES]],
            rows,
            caption="Time of the final program of the searches, geometric mean over seeds with its 95 % interval, and its rate where "
            "operations are counted; the fastest arm is bold, which does not imply a significant difference. Trials to a percentage of the "
            "best known speed are medians over seeds; in parentheses, the number of searches that reached it. A dash: at most half of "
            "them did, or nothing was measured.",
        ),
    ]


def _comparison(data: Json) -> Content:
    rows = [
        [
            c["workload"] or el("strong", "all workloads"),
            c["arm"],
            str(c["seeds"]),
            _interval({**c, "mean": c["ratio"]}, "{:.3f}"),
            _p(c["p_adjusted"]),
            verdict(c["ratio"], c["p_adjusted"]),
        ]
        for c in data["against_first"]
    ]
    if not rows:
        return None
    return [
        el("h2", f"Against {data['arms'][0]}"),
        table(
            ["workload", "arm", "seeds", "time ratio", "p", "verdict"],
            rows,
            left=2,
            caption=f"Time of each arm over that of the first one, {data['arms'][0]}: below 1 is faster. Arms are compared seed by seed, "
            "over the common finished seeds (Student's t of the differences of logarithms); p is adjusted for the number of lines "
            f"(Holm). Below {MIN_SEEDS} seeds there is no interval, p or verdict.",
        ),
    ]


def _curves(data: Json) -> Content:
    figures = []
    for w in data["workloads"]:
        results = [r for r in data["results"] if r["workload"] == w["name"]]
        best = w["best_known_us"]
        shown = "no program yet" if best is None else f"speed over trials, relative to the best known program, {best:.4g} us"
        figures.append(
            figure(curve_chart([*_lines(data["arms"], results)], label=f"Speed over trials, {w['name']}"), [w["name"], el("br"), shown])
        )
    return [
        el("h2", "Curves"),
        line_legend(data["arms"]),
        el("div", figures, class_="grid"),
        el("p", "Means over seeds with their 95 % intervals, as above.", class_="soft"),
    ]


def _lines(arms: Sequence[str], results: Sequence[Json]) -> Iterator[Curve]:
    for r in results:
        c = r["curve"]
        if c is not None:
            yield Curve(r["arm"], arms.index(r["arm"]), c["trials"], c["percent"], c["low"], c["high"])


def _time(data: Json) -> Content:
    known = [t for t in data["time"] if t["trials"]]
    if not known:
        return None
    bars = [(t["arm"], {p: 1000 * t["seconds"][p] / t["trials"] for p in PHASES}) for t in known]
    rows = [
        [t["arm"], *[f"{t['seconds'][p]:.1f}" for p in ("total", *PHASES)], str(t["trials"]), f"{t['drafted']:,}", f"{t['scored']:,}"]
        for t in known
    ]
    return [
        el("h2", "Where the time goes"),
        box_legend(PHASES),
        figure(
            bar_chart(bars, PHASES, unit="ms", label="Milliseconds of a trial by phase"),
            "Milliseconds of wall time per trial, by phase: candidates drafted (drawn, checked, ranked by the analytic model), "
            "verified (ranked by the learned model), built, measured, and used for training.",
        ),
        table(
            ["arm", *[f"{p} s" for p in ("total", *PHASES)], "trials", "drafted", "scored"],
            rows,
            caption="The same in seconds, over all cells of an arm; trials are those with known times, drafted and scored are the "
            "candidates scored by the analytic and by the learned model.",
        ),
    ]


def _spaces(data: Json) -> Content:
    rows = [
        [
            w["name"],
            "any tile" if s["imperfect_tiles"] else "divisors only",
            *([s["failure"], "", ""] if s["failure"] else [str(s["sketches"]), f"{s['admissible']:,}", f"{s['rows']:,}"]),
        ]
        for w in data["workloads"]
        for s in w["spaces"]
    ]
    if not rows:
        return None
    return [
        el("h2", "Spaces"),
        table(
            ["workload", "tiles", "sketches", "candidates", "at most"],
            rows,
            left=2,
            caption="Sketches and candidates of the search space. If constraints join many parameters, the number of candidates is "
            "estimated by sampling the product of the tables, whose size is the last column.",
        ),
    ]


def _errors(data: Json) -> Content:
    kinds = sorted({k for r in data["results"] for k in r["errors"]})
    rows = []
    for arm in data["arms"]:
        results = [r for r in data["results"] if r["arm"] == arm]
        counts = [sum(r["errors"].get(k, 0) for r in results) for k in kinds]
        rows.append([arm, str(sum(r["trials"] for r in results)), *map(str, counts)])
    failures = [[f["workload"], f["arm"], str(f["seed"]), f["failure"]] for f in data["failures"]]
    caption = "Candidates that failed, by class, over all workloads and seeds." if kinds else "No candidate failed."
    return [
        el("h2", "Errors"),
        table(["arm", "trials", *kinds], rows, caption=caption),
        table(
            ["workload", "arm", "seed", "failure"], failures, left=4, caption="Failed cells with their reasons. The next run repeats them."
        )
        if failures
        else None,
    ]


def _environment(data: Json) -> Content:
    facts: dict[str, list[str]] = {}
    for run in data["runs"]:
        for name, value in flat({k: v for k, v in run.items() if k not in _SHOWN_ELSEWHERE}):
            values = facts.setdefault(name, [])
            if value not in values:
                values.append(value)
    rows = [[name, [v if n == 0 else [el("br"), v] for n, v in enumerate(values)]] for name, values in facts.items()]
    settings = [[name, value] for name, value in flat({"settings": data["settings"], "variants": data["variants"]})]
    caption = f"Machine and software of the run, in {plural(len(data['runs']), 'part')}; values that differ are all shown."
    found = table(["fact", "value"], rows, left=2, caption=caption) if rows else el("p", "The run folder has no manifest.", class_="soft")
    shared = table(["setting", "value"], settings, left=2, caption="Settings of all cells, and the components enabled in each variant.")
    return [
        el("h2", "Environment"),
        el("details", el("summary", "Settings of the study"), shared),
        el("details", el("summary", "Machine and software"), found),
    ]


def flat(data: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Leaves of plain JSON with their dotted paths."""
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from flat(value, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        is_list = isinstance(data, list) and not any(isinstance(x, (dict, list)) for x in data)
        yield prefix, ", ".join(map(str, data)) if is_list else str(data)  # type: ignore[call-overload]  # a list, by is_list


def _interval(value: Json | None, form: str) -> Content:
    """An interval as `12.3 [11.9, 12.8]`."""
    if value is None:
        return "-"
    mean = form.format(value["mean"])
    if value["low"] is None:
        return mean
    return [mean, " ", el("span", f"[{form.format(value['low'])}, {form.format(value['high'])}]", class_="interval")]


def _reached(value: Json | None) -> str:
    if value is None:
        return "-"
    median = "-" if value["median"] is None else f"{value['median']:g}"
    return f"{median} ({value['reached']}/{value['of']})"


def _p(p: float | None) -> Html | str:
    return "-" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
