"""Run ONNX's backend node tests and tabulate verdicts per test and counts per operator.

A test passes, is unsupported (refused by the importer), or fails (wrong numbers or any other error).  "Strict" tests use only tensors
of float32, float16, integers and bool, without strings, sequences, optionals, control flow or training.  A test is assigned to the
operator in its name, `_expanded` tests to the expanded operator.
"""

from __future__ import annotations

import json
import time
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from tunesmith.graph.importers.onnx.errors import OnnxImportError
from tunesmith.testing.onnx_backend import Execute, PreparedModel, arrays_of

_PLAIN = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 12, 13})
"""TensorProto.DataType of float32, integers of 8 to 64 bits, bool and float16."""


def is_strict(model: Any) -> bool:
    """Whether a model uses only the tensor types above."""
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    plain = all(v.type.WhichOneof("value") == "tensor_type" and v.type.tensor_type.elem_type in _PLAIN for v in values)
    nodes = model.graph.node
    inner = any(a.HasField("g") or a.graphs or (a.name == "to" and a.i not in _PLAIN) for n in nodes for a in n.attribute)
    return plain and not inner and not any("training" in n.domain or n.op_type.startswith("Optional") for n in nodes)


def run_case(case: Any, execute: Execute) -> tuple[str, str]:
    """The verdict on a test, and a note."""
    from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

    from tunesmith.support.errors import ModelImportError

    try:
        prepared = PreparedModel(case.model, execute)
        for inputs, outputs in case.data_sets:
            made = prepared.run([_array(x) for x in inputs])
            _compare([_array(x) for x in outputs], made, case)
    except OnnxImportError as error:
        return "unsupported", "; ".join(sorted({f"{u.operator}: {u.reason}" for u in error.unsupported}))
    except (ModelImportError, BackendIsNotSupposedToImplementIt) as error:
        cause = error.__cause__
        if isinstance(cause, OnnxImportError):
            return "unsupported", "; ".join(sorted({f"{u.operator}: {u.reason}" for u in cause.unsupported}))
        return "unsupported", str(error)
    except Exception as error:  # any error is a failed test
        return "fail", f"{type(error).__name__}: {error}"[:1000]
    return "pass", f"known at import: {', '.join(prepared.frozen)}" if prepared.frozen else ""


def _compare(expected: list[Any], made: list[Any], case: Any) -> None:
    """Compare the outputs of a test; ONNX's runner compares no lengths of sequences."""
    from onnx.backend.test.runner import Runner

    forms = [[len(x) if isinstance(x, list) else None for x in outputs] for outputs in (expected, made)]
    assert forms[0] == forms[1], f"lengths of sequences: {forms[1]}; expected {forms[0]}"
    flat = [[a for x in outputs for a in arrays_of(x)] for outputs in (expected, made)]
    Runner.assert_similar_outputs(*flat, rtol=case.rtol, atol=case.atol)


def _array(x: Any) -> Any:
    """A test value as an array, a list of arrays or None; some values are protobuf messages."""
    from onnx import TensorProto, numpy_helper

    if x is None or isinstance(x, list):
        return None if x is None else [_array(e) for e in x]
    return numpy_helper.to_array(x) if isinstance(x, TensorProto) else np.asarray(x)


def operator_of(case: Any, names: dict[str, str]) -> str:
    """The operator under test: the only one in the model, else the longest one that is a prefix of the test's name."""
    if len(case.model.graph.node) == 1:
        return str(case.model.graph.node[0].op_type)
    plain = case.name.removeprefix("test_").replace("_", "")
    found = [k for k in names if plain.startswith(k)]
    return names[max(found, key=len)] if found else "?"


def table(rows: list[dict[str, Any]]) -> str:
    """Table of counts per operator, sorted by the number of tests that do not pass."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        counts[row["operator"]][row["verdict"]] += 1
    lines = ["| operator | pass | unsupported | fail |", "|---|---|---|---|"]
    for name, c in sorted(counts.items(), key=lambda e: (-e[1]["fail"], -e[1]["unsupported"], e[0])):
        lines.append(f"| {name} | {c['pass']} | {c['unsupported']} | {c['fail']} |")
    return "\n".join(lines)


def summary(rows: list[dict[str, Any]]) -> str:
    """One line of counts."""
    c = Counter(row["verdict"] for row in rows)
    frozen = sum(row["verdict"] == "pass" and bool(row["note"]) for row in rows)
    return f"{len(rows)} tests: {c['pass']} pass ({frozen} with inputs known at import), {c['unsupported']} unsupported, {c['fail']} fail"


def run_all(execute: Execute, match: str = "", every: int = 1) -> list[dict[str, Any]]:
    """One result per node test with `match` in its name, or per `every`-th of them: name, operator, strict, verdict, note, seconds."""
    import onnx.defs
    from onnx.backend.test.loader import load_model_tests

    names = {s.name.lower(): s.name for s in onnx.defs.get_all_schemas()}
    rows = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for case in [c for c in load_model_tests(kind="node") if match in c.name][::every]:
            start = time.perf_counter()
            verdict, note = run_case(case, execute)
            rows.append(
                {
                    "name": case.name,
                    "operator": operator_of(case, names),
                    "strict": is_strict(case.model),
                    "verdict": verdict,
                    "note": note,
                    "seconds": round(time.perf_counter() - start, 3),
                }
            )
    return rows


def write(rows: list[dict[str, Any]], folder: Path) -> str:
    """Write results.json (each test) and table.md; returns a summary of two lines."""
    strict = [r for r in rows if r["strict"]]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    head = f"# ONNX backend node tests\n\nAll: {summary(rows)}.\n\nStrict: {summary(strict)}."
    text = f"{head}\n\n## Strict\n\n{table(strict)}\n\n## All\n\n{table(rows)}\n"
    (folder / "table.md").write_text(text, encoding="utf-8")
    return f"all:    {summary(rows)}\nstrict: {summary(strict)}"
