"""Rules of users: named as functions of files, and refused as theirs if their results are wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.ops.workload import workload
from tunesmith.search.space.rules import contraction
from tunesmith.search.space.rules_table import SEARCH_RULES, find_rules, generate
from tunesmith.support.errors import BuildError, UserError

FUNC = workload("relu(shape=64)").func
TARGET = Target("llvm -num-cores=2")
EXPECTED = r"a rule returns a list of \(name, function of a Schedule\), or \[\] if it does not apply$"
RULE = """
def sketches(func, target):
    return [("as it is", lambda sch: None)]

def typo(func, target):
    return [("typo", lambda sch: sch.split_loop())]

number = 3
"""


def test_rules_of_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(RULE)
    rules = find_rules([f"{file}:sketches", "contraction"])
    assert rules[1] is contraction.sketches and generate(FUNC, TARGET, rules).sketches[0].name == "as it is"
    with pytest.raises(UserError, match=r"holds no 'sketch'\. Did you mean 'sketches'"):
        find_rules([f"{file}:sketch"])
    with pytest.raises(UserError, match=r"a rule is a function of \(func, target\), not an int: 3"):
        find_rules([f"{file}:number"])
    with pytest.raises(UserError, match="mine.py' is a file and no search rule: .*: .*mine.py:NAME, one of sketches, typo"):
        find_rules([str(file)])
    with pytest.raises(UserError, match=r"the rule mine_\w+:typo raised AttributeError: .*split_loop.* at .*mine.py:6 in <lambda>"):
        generate(FUNC, TARGET, find_rules([f"{file}:typo"]))
    with pytest.raises(UserError, match="unknown search rule 'contractions'. Did you mean 'contraction'"):
        find_rules(["contractions"])


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "returned None"),
        ("text", "returned a str"),
        ([3], "returned a list with an int, 3"),
        ([("name", None)], "returned a list with a tuple, .'name', None."),
        ([(3, print)], "returned a list with a tuple"),
    ],
)
def test_a_rule_that_returns_something_else_is_refused_by_name(result: object, message: str) -> None:
    def mine(func: object, target: object) -> Any:
        return result

    with pytest.raises(UserError, match=f"^the rule {__name__}:.*mine {message}.*; {EXPECTED}"):
        generate(FUNC, TARGET, [mine])


def test_a_rule_that_makes_no_schedule_is_named() -> None:
    def mine(func: object, target: object) -> Any:
        return []

    advice = r"that applies\. Change the rule, or name 'default' too, which has the rules of the target$"
    with pytest.raises(BuildError, match=f"^the rule {__name__}:.*mine makes no schedule for relu {advice}"):
        generate(FUNC, TARGET, [mine])
    with pytest.raises(BuildError, match=f"^the rules {__name__}:.*mine, .*rows:sketches make no schedule for relu {advice}"):
        generate(FUNC, TARGET, [mine, *find_rules(["rows"])])
    assert generate(FUNC, TARGET, find_rules([mine, "default"])).sketches


def test_a_name_that_no_record_can_hold_is_refused() -> None:
    with pytest.raises(UserError, match=r"the rule .*<lambda> returned a sketch whose name has 257 characters; a record holds at most 256"):
        generate(FUNC, TARGET, [lambda func, target: [("n" * 257, lambda s: None)]])


@pytest.mark.parametrize("rule", [lambda func: [], lambda func, target, more: []])
def test_a_rule_with_other_parameters_is_refused(rule: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match=r"the rule .*<lambda> is called with \(func, target\), which it does not take"):
        find_rules([rule])


def test_a_schedule_with_other_parameters_is_refused() -> None:
    with pytest.raises(UserError, match=r"returned a function for 'none' which is called with \(schedule\), which it does not take"):
        generate(FUNC, TARGET, [lambda func, target: [("none", lambda: None)]])


def test_the_rules_of_the_library_have_the_form() -> None:
    assert find_rules(SEARCH_RULES.names())


def test_a_function_without_blocks_is_refused_with_the_spelling_of_a_block() -> None:
    func: Any = parse(
        "@T.prim_func\n"
        "def f(A: T.Buffer((8,), 'float32'), B: T.Buffer((8,), 'float32')):\n    for i in T.serial(8):\n        B[i] = A[i]\n",
        "f",
    )
    with pytest.raises(BuildError, match=r"f, which has no blocks: wrap the statement of each computation in `with T.block\("):
        generate(func, TARGET)
