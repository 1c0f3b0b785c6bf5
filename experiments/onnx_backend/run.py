"""How many of ONNX's backend node tests pass: `python experiments/onnx_backend/run.py [--out FOLDER] [--match TEXT] [--execute M:F]`.

A test passes, is unsupported (the importer says so), or fails (wrong numbers, or any other error).  "Strict" tests have tensors of float32,
float16, integers and bool only, and no strings, sequences, optionals, control flow or training.  Writes results.json (each test) and
table.md (counts for each operator); a test belongs to the operator that its name tells, `_expanded` ones to the operator that was expanded.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from tunesmith.graph.onnx_import_errors import OnnxImportError
from tunesmith.support.registry import resolve
from tunesmith.testing.onnx_backend import Execute, PreparedModel, interpreted

_PLAIN = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 12, 13})
"""TensorProto.DataType of float32, integers of 8 to 64 bits, bool and float16."""


def is_strict(model: Any) -> bool:
    """Whether a model has plain tensors only."""
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    plain = all(v.type.WhichOneof("value") == "tensor_type" and v.type.tensor_type.elem_type in _PLAIN for v in values)
    nodes = model.graph.node
    inner = any(a.HasField("g") or a.graphs or (a.name == "to" and a.i not in _PLAIN) for n in nodes for a in n.attribute)
    return plain and not inner and not any("training" in n.domain or n.op_type.startswith("Optional") for n in nodes)


def run_case(case: Any, execute: Execute) -> tuple[str, str]:
    """The verdict on a test and what there is to say about it."""
    from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt, Runner

    from tunesmith.support.errors import ModelImportError

    try:
        prepared = PreparedModel(case.model, execute)
        for inputs, outputs in case.data_sets:
            made = prepared.run([_array(x) for x in inputs])
            Runner.assert_similar_outputs([_array(x) for x in outputs], made, rtol=case.rtol, atol=case.atol)
    except OnnxImportError as error:
        return "unsupported", "; ".join(sorted({f"{u.operator}: {u.reason}" for u in error.unsupported}))
    except (ModelImportError, BackendIsNotSupposedToImplementIt) as error:
        cause = error.__cause__
        if isinstance(cause, OnnxImportError):
            return "unsupported", "; ".join(sorted({f"{u.operator}: {u.reason}" for u in cause.unsupported}))
        return "unsupported", str(error)
    except Exception as error:  # a test fails in any way it likes
        return "fail", f"{type(error).__name__}: {error}"[:1000]
    return "pass", f"known at import: {', '.join(prepared.frozen)}" if prepared.frozen else ""


def _array(x: Any) -> Any:
    """What a test holds as an array; some hold messages."""
    from onnx import TensorProto, numpy_helper

    return numpy_helper.to_array(x) if isinstance(x, TensorProto) else x if isinstance(x, list) else np.asarray(x)


def operator_of(case: Any, names: dict[str, str]) -> str:
    """The operator that a test is about: its only one, else the longest that its name begins with."""
    if len(case.model.graph.node) == 1:
        return str(case.model.graph.node[0].op_type)
    plain = case.name.removeprefix("test_").replace("_", "")
    found = [k for k in names if plain.startswith(k)]
    return names[max(found, key=len)] if found else "?"


def table(rows: list[dict[str, Any]]) -> str:
    """Counts for each operator, the operators with most open tests first."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/onnx_backend"), help="folder for results.json and table.md")
    parser.add_argument("--match", default="", help="only tests whose name holds this text")
    parser.add_argument("--execute", default="", help="module:function that computes a module's results; default: the interpreter")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    import onnx.defs
    from onnx.backend.test.loader import load_model_tests

    execute: Any = resolve(options.execute) if options.execute else interpreted
    names = {s.name.lower(): s.name for s in onnx.defs.get_all_schemas()}
    rows = []
    for case in load_model_tests(kind="node"):
        if options.match in case.name:
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
    strict = [r for r in rows if r["strict"]]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    head = f"# ONNX backend node tests\n\nAll: {summary(rows)}.\n\nStrict: {summary(strict)}."
    text = f"{head}\n\n## Strict\n\n{table(strict)}\n\n## All\n\n{table(rows)}\n"
    (options.out / "table.md").write_text(text, encoding="utf-8")
    print(f"all:    {summary(rows)}\nstrict: {summary(strict)}\nsee {options.out}/table.md")


if __name__ == "__main__":
    main()
