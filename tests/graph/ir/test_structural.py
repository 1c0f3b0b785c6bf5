"""Test digests and differences of graph functions, alone and in modules."""

from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.structural import difference, digest, equal
from tunesmith.ir import structural
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Var, less_than, poly


def built(name: str = "f", *, late: bool = False, **other: Any) -> GraphFunc:
    """A function with the changes in `other`; `late` creates its sizes in reverse order."""
    sizes = {n: Var(name + n) for n in ("mn" if late else "nm")}
    n, m = poly(sizes["n"]), poly(sizes["m"])
    b = GraphBuilder(name)
    x, c = b.input(name + "x", (n, m)), b.input("c", (), "bool")
    y = b.input("y", (n * m + m,), other.get("dtype", "float32"))
    b.assume(other.get("assume", lambda n, m: less_than(n, 8))(n, m))
    k = b.constant(np.array(other.get("data", [1.0, 2.0]), np.float32), name + "k")
    p = b.call(other.get("operator", "probe_relu"), x, name=name + "p")
    q = b.probe_scale(p, factor=other.get("factor", 2.0), extra=other.get("extra"))
    (z,) = b.call_function(other.get("function", "g"), [q], [x.type], [other.get("size", lambda n, m: n + m)(n, m)])
    out = b.branch(c, lambda r: r.probe_add(q, z if other.get("same") else p), lambda r: p, name=name + "out")
    return b.finish(out, k, y, *([x] if other.get("more") else [])).with_(attrs=other.get("attrs", ()))


def test_names_and_the_order_of_creation_are_ignored() -> None:
    a, b = built(), built("another", late=True)
    assert equal(a, b) and difference(a, b) is None and digest(a) == digest(b)


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "operator": ({"operator": "probe_neg"}, r"/binding 0 \(fp\).operator: 'probe_relu' != 'probe_neg'"),
    "operand": ({"same": True}, r"/binding 3 \(fout\)/then/binding 0 \(probe_add\).operand 1: fp \(value 3\) != g \(value 5\)"),
    "attribute": ({"factor": 3.0}, r"/binding 1 \(probe_scale\).attribute factor: 2.0 != 3.0"),
    "attribute type": ({"factor": 2}, "attribute factor: 2.0 != 2"),
    "attribute text": ({"extra": "1"}, "attribute extra: None != '1'"),
    "function": ({"function": "h"}, r"/binding 2 \(g\).function: 'g' != 'h'"),
    "size": ({"size": lambda n, m: n}, r"/binding 2 \(g\).sizes: "),
    "sizes swapped": ({"size": lambda n, m: n + m + 1}, r"/binding 2 \(g\).sizes: "),
    "constant": ({"data": [1.0, 3.0]}, r"/.result 1: constant \w+ != constant \w+"),
    "type": ({"dtype": "float64"}, r"/parameter 2 \(y\).type: float32\[.*\] != float64\[.*\]"),
    "assumption": ({"assume": lambda n, m: less_than(m, 8)}, "/.assumption: .*n < 8 != .*m < 8"),
    "attributes": ({"attrs": (("k", "v"),)}, r"/.attributes: \(\) != \(\('k', 'v'\),\)"),
    "results": ({"more": True}, "/.results: 3 != 4"),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_every_change_is_found(case: str) -> None:
    changes, message = CHANGES[case]
    a, b = built(), built(**changes)
    found = difference(a, b)
    assert found is not None and not equal(b, a) and digest(a) != digest(b)

    assert re.search(message, found), found


def test_constants_are_compared_by_their_elements() -> None:
    zero = built(data=[0.0, 1.0])
    assert equal(zero, built(data=[0.0, 1.0])) and not equal(zero, built(data=[-0.0, 1.0]))


def test_modules(graphs: SimpleNamespace) -> None:
    a, b = graphs.module(), graphs.module()
    assert structural.equal(a, b) and structural.digest(a) == structural.digest(b)
    alone = IRModule({"fused_add": graphs.fused_add()})
    assert structural.digest(a) != structural.digest(alone)
    changed = b.update({"main": b["main"].with_(attrs=(("k", "v"),))})
    assert structural.difference(a, changed) == "/main/.attributes: () != (('k', 'v'),)"
    assert structural.digest(a) != structural.digest(changed)
    other = b.update({"main": graphs.fused_add()})
    assert structural.difference(a, other) is not None and structural.digest(a) != structural.digest(other)
    assert structural.digest(a["main"]) == structural.digest(b["main"])


_SCRIPT = """
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.ir import structural
from tunesmith.ir.poly import Var
b = GraphBuilder()
n = Var("n")
x = b.input("x", (n, 2))
print(structural.digest(b.finish(x, b.constant([1.0, 2.0], "k"))))
"""


def test_the_digest_is_the_same_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        found.add(subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1 and len(found.pop().strip()) == 32


def test_digests_are_those_of_earlier_versions() -> None:
    b = GraphBuilder("main")
    assert structural.digest(b.finish(b.relu(b.input("x", (8,))))) == "1246be89720ba0f77bcaabc617596b38"
