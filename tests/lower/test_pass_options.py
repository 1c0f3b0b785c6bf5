"""pass_options: defaults decide the types of options; what no option can be is refused where the pass is made."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tunesmith.lower.pass_infra import ModulePass, Pass, function_pass, module_pass
from tunesmith.lower.pass_options import Configurable, parse_pass
from tunesmith.support.errors import UserError


def run(func: Any, target: Any, *, exact: bool = True, most: int = 8, share: float = 0.5, layout: str = "NHWC") -> Any:
    return func


def test_the_default_of_an_option_is_its_type() -> None:
    p = function_pass(requires="FLAT")(run)
    assert p.defaults == {"exact": True, "most": 8, "share": 0.5, "layout": "NHWC"} and str(p) == "run"
    given = p.with_texts({"exact": "false", "most": "2", "share": "1", "layout": "8"})
    assert given.options == (("exact", False), ("layout", "8"), ("most", 2), ("share", 1.0))
    assert str(given) == "run{exact=false,layout=8,most=2,share=1.0}"
    name, texts = parse_pass(str(given))
    assert name == "run" and p.with_texts(texts) == given == p.with_options(exact=False, most=2, share=1, layout="8")
    assert given.with_options(most=3).options[2] == ("most", 3)


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [("exact", 1, "bool"), ("most", True, "int"), ("most", 1.0, "int"), ("share", "x", "float"), ("layout", None, "str")],
)
def test_values_of_another_type_are_refused(option: str, value: Any, wanted: str) -> None:
    with pytest.raises(UserError, match=f"the option '{option}' of the pass 'run' is of type {wanted}, got "):
        function_pass(requires="FLAT")(run).with_options(**{option: value})


def test_options_without_a_default_of_a_simple_type_are_refused() -> None:
    def required(func: Any, target: Any, *, most: int) -> Any: ...
    def optional(func: Any, target: Any, *, most: int | None = None) -> Any: ...
    def several(func: Any, target: Any, *, most: tuple[int, ...] = (1, 2)) -> Any: ...

    for f, found in ((required, "no default"), (optional, "the default None"), (several, r"the default \(1, 2\)")):
        for make in (function_pass(requires="FLAT"), module_pass, lambda g: Pass("p", g, "FLAT", "FLAT"), lambda g: ModulePass("p", g)):
            with pytest.raises(UserError, match=rf"the option 'most' of the pass .*{f.__name__}\) has {found}: .*Give most such a default"):
                make(f)


def test_stages_that_do_not_exist_are_refused() -> None:
    with pytest.raises(UserError, match="the pass 'run': there is no stage 'FALT'. Stages are SCHEDULED, OPAQUE, FLAT, VECTOR"):
        function_pass(requires="FALT")(run)
    with pytest.raises(UserError, match="the pass 'run': there is no stage ''"):
        function_pass(requires="FLAT", provides="")(run)
    with pytest.raises(UserError, match="requires FLAT and provides OPAQUE, which is earlier.*Without provides= "):
        function_pass(requires="FLAT", provides="OPAQUE")(run)
    with pytest.raises(UserError, match=r"function_pass needs a stage: write @function_pass\(requires='SCHEDULED'\)"):
        function_pass(run)  # type: ignore[arg-type]


def test_functions_with_other_parameters_are_refused() -> None:
    with pytest.raises(UserError, match=r"<lambda> is called with \(func, target\), .* missing a required argument: 'c'"):
        function_pass(requires="FLAT")(lambda a, b, c: a)
    with pytest.raises(UserError, match=r"test_pass_options.run is called with \(mod\), which it does not take"):
        module_pass(run)
    with pytest.raises(UserError, match=r"<lambda> is called with \(mod, target\), which it does not take: too many positional arguments"):
        ModulePass("p", lambda mod: mod)


def test_what_is_no_function_with_a_name_is_refused() -> None:
    for name, given in (("p", 3), (None, run)):
        with pytest.raises(UserError, match="a pass has a name, which is a text, and a function; got "):
            Configurable(name, given)  # type: ignore[arg-type]
    for make in (function_pass(requires="FLAT"), module_pass):
        for wrong in (partial(run), 3):
            with pytest.raises(UserError, match="is no function with a name: make a pass of a function, or give Pass or ModulePass a name"):
                make(wrong)  # type: ignore[arg-type]


def test_an_option_may_have_any_name() -> None:
    p = function_pass(requires="FLAT")(run)
    with pytest.raises(UserError, match="has no option 'self'"):
        p.with_options(**{"self": 1})
