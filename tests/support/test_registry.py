"""The generic registry: names, lazy paths, entry points, refusals."""

from __future__ import annotations

import importlib
import sys
import warnings
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from tunesmith.support.errors import MissingExtraError, UserError
from tunesmith.support.registry import ANYTHING, FUNCTION, Contract, Registry, derived_from, instance_of, resolve


def _module(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    monkeypatch.delitem(sys.modules, name, raising=False)


def _distribution(monkeypatch: pytest.MonkeyPatch, folder: Path, entry_points: str, name: str = "plugin-under-test") -> None:
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    monkeypatch.syspath_prepend(folder)


def test_register_returns_the_value_and_get_finds_it() -> None:
    registry: Registry[int] = Registry("answer")
    assert registry.register("all", 42) == 42
    assert registry.get("all") == 42
    assert "all" in registry and "none" not in registry


def test_decorator_leaves_the_function_as_it_is() -> None:
    registry: Registry[object] = Registry("rule")

    @registry.registers("twice")
    def twice(x: int) -> int:
        return 2 * x

    assert twice(4) == 8
    assert registry.get("twice") is twice


def test_names_are_sorted_independently_of_registration_order() -> None:
    registry: Registry[int] = Registry("letter")
    for name in ("c", "a", "b"):
        registry.register(name, ord(name))
    assert registry.names() == list(registry) == ["a", "b", "c"]
    assert len(registry) == 3


def test_a_taken_name_is_refused_with_both_sources() -> None:
    registry: Registry[object] = Registry("backend", {"llvm": "json:loads"})
    with pytest.raises(UserError, match=r"backend 'llvm' is registered twice: json:loads, and function registered in the program"):
        registry.register("llvm", lambda: None)
    with pytest.raises(UserError, match="registered twice"):
        registry.register_lazy("llvm", "json:dumps")
    assert registry.get("llvm").__name__ == "loads"


def test_unknown_name_lists_known_ones_and_the_nearest() -> None:
    registry: Registry[int] = Registry("cost model")
    registry.register("xgb", 1)
    registry.register("analytic", 2)
    with pytest.raises(UserError, match=r"unknown cost model 'analytik'\. Did you mean 'analytic'\? Known: analytic, xgb\."):
        registry.get("analytik")
    with pytest.raises(UserError, match=r"unknown sampler 'x'\. None is registered\."):
        Registry[int]("sampler").get("x")


def test_lazy_value_is_imported_on_first_use_and_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _module(monkeypatch, tmp_path, "lazy_under_test", "class Box:\n    content = object()\n")
    registry: Registry[object] = Registry("thing", {"content": "lazy_under_test:Box.content"})
    assert registry.names() == ["content"]
    assert "lazy_under_test" not in sys.modules
    assert registry.get("content") is registry.get("content") is sys.modules["lazy_under_test"].Box.content


def test_a_path_that_cannot_be_imported_says_which_and_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _module(monkeypatch, tmp_path, "needs_under_test", "import no_such_package_at_all\n")
    registry: Registry[object] = Registry("device", {"a": "needs_under_test:X", "b": "json:no_such_name", "c": "no_such_module:X"})
    message = r"cannot import the device 'a' \(needs_under_test:X\): No module named 'no_such_package_at_all'. Check the spelling"
    with pytest.raises(UserError, match=message):
        registry.get("a")
    with pytest.raises(UserError, match="json has no 'no_such_name'"):
        registry.get("b")
    with pytest.raises(UserError, match="No module named 'no_such_module'"):
        registry.get("c")


def test_missing_extra_of_a_lazy_module_is_raised_unchanged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "from tunesmith.support.errors import MissingExtraError\nraise MissingExtraError('optuna', 'optuna', 'This sampler')\n"
    _module(monkeypatch, tmp_path, "extra_under_test", text)
    registry: Registry[object] = Registry("sampler", {"tpe": "extra_under_test:X"})
    with pytest.raises(MissingExtraError, match=r"pip install 'tunesmith\[optuna\]'") as refusal:
        registry.get("tpe")
    assert refusal.value.__notes__ == ["while loading the sampler 'tpe' (extra_under_test:X)"]


@pytest.mark.parametrize("path", ["json", "json:", ":loads", "json.loads", "../evil:x", "json:loads()", "a b:c", "json:loads\n"])
def test_malformed_paths_are_refused_before_anything_is_imported(path: str) -> None:
    with pytest.raises(UserError, match="is not a dotted path. Spell it package.module:Name"):
        Registry[object]("thing").register_lazy("x", path)
    with pytest.raises(UserError, match="is not a dotted path"):
        resolve(path)


def test_entry_points_are_found_on_a_miss(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _distribution(monkeypatch, tmp_path, "[tunesmith.plugin_kind]\nloads = json:loads\n")
    registry: Registry[object] = Registry("plugin kind")
    registry.register("own", 1)
    assert registry.names() == ["loads", "own"]
    assert registry.get("loads").__name__ == "loads"


def test_an_entry_point_may_not_replace_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _distribution(monkeypatch, tmp_path, "[tunesmith.plugin_kind]\nown = json:loads\n")
    registry: Registry[object] = Registry("plugin kind")
    registry.register("own", 1)
    assert registry.get("own") == 1
    for _ in range(2):
        with pytest.raises(UserError, match="twice: int .*, and json:loads from .* group tunesmith.plugin_kind of the package"):
            registry.names()


def test_the_path_of_a_lazy_name_is_known_without_an_import() -> None:
    registry: Registry[object] = Registry("answer", {"all": "package_that_does_not_exist:ALL"})
    registry.register("none", 0)
    assert registry.path("all") == "package_that_does_not_exist:ALL"
    assert registry.path("none") is None
    with pytest.raises(UserError, match="unknown answer 'al'"):
        registry.path("al")


def test_entry_points_of_a_former_group_are_read_with_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _distribution(
        monkeypatch, tmp_path, "[tunesmith.old_kind]\nloads = json:loads\nboth = json:dumps\n[tunesmith.kind]\nboth = json:dumps\n"
    )
    registry: Registry[object] = Registry("kind", formerly="old kind")
    message = (
        "package plugin-under-test has the kind 'loads' in the entry point group tunesmith.old_kind, which is now tunesmith.kind: rename"
    )
    with pytest.warns(DeprecationWarning, match=message) as found:
        assert registry.names() == ["both", "loads"]
    assert len(found) == 1 and registry.get("loads").__name__ == "loads"
    assert registry.names() == ["both", "loads"], "the groups are read once"


def test_a_former_group_may_not_replace_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _distribution(monkeypatch, tmp_path, "[tunesmith.old_kind]\nx = json:loads\n")
    _distribution(monkeypatch, tmp_path, "[tunesmith.kind]\nx = json:dumps\n", "other")
    registry: Registry[object] = Registry("kind", formerly="old kind")
    with pytest.raises(UserError, match="'x' is registered twice: json:dumps .*, and json:loads .* of the package plugin-under-test"):
        registry.names()


def test_of_both_groups_of_a_package_the_present_one_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    _distribution(monkeypatch, tmp_path, "[tunesmith.old_kind]\nx = json:loads\n[tunesmith.kind]\nx = json:dumps\n")
    registry: Registry[object] = Registry("kind", formerly="old kind")
    assert registry.get("x").__name__ == "dumps" and not recwarn.list


BROKEN = {
    "1 / 0": "ZeroDivisionError: division by zero",
    "raise SystemExit(2)": "SystemExit: 2",
    "def (": r"SyntaxError: invalid syntax \(broken_under_test.py, line 1\)",
    "from json import no_such_name": "cannot import name 'no_such_name' from 'json' .* Check the spelling",
    "import tunesmith.measure.peers.peer": r"'tunesmith.measure.peers'. tunesmith.measure.peers is tunesmith.measure.baselines since",
    "from tunesmith.ir.target import Target": "tunesmith.ir.target is tunesmith.ir.target.target since version 0.2",
    "def __getattr__(name): raise OSError('no file')": "OSError: no file",
    "Y = 1": "broken_under_test has no 'X'",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_module_with_a_defect_is_refused_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    _distribution(monkeypatch, tmp_path, "[tunesmith.plugin_kind]\nx = broken_under_test:X\nloads = json:loads\n")
    _module(monkeypatch, tmp_path, "broken_under_test", text + "\n")
    registry: Registry[object] = Registry("plugin kind")
    where = r"cannot import the plugin kind 'x' \(broken_under_test:X from the .* group tunesmith.plugin_kind of the package plugin-"
    for _ in range(2):
        with pytest.raises(UserError, match=f"{where}.*{BROKEN[text]}"):
            registry.get("x")
    assert registry.names() == ["loads", "x"] and registry.get("loads").__name__ == "loads"


def test_an_entry_point_that_breaks_the_contract_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _distribution(monkeypatch, tmp_path, "[tunesmith.plugin_kind]\nx = json:loads\n")
    registry: Registry[Path] = Registry("plugin kind", contract=instance_of(Path))
    message = r"the plugin kind 'x' \(json:loads from the .* package plugin-under-test\) is <function loads.*, not an instance of pathlib"
    with pytest.raises(UserError, match=message):
        registry.get("x")


def test_a_registered_value_that_breaks_the_contract_is_refused() -> None:
    registry: Registry[Path] = Registry("place", contract=instance_of(Path))
    with pytest.raises(UserError, match="the place 'x' is 3 .int., not an instance of pathlib"):
        registry.register("x", 3)  # type: ignore[arg-type]
    assert "x" not in registry


class Base(ABC):
    @abstractmethod
    def run(self) -> None: ...


class Whole(Base):
    def run(self) -> None: ...


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("contract", "value"), [(ANYTHING, None), (FUNCTION, len), (FUNCTION, Whole), (instance_of(Base), Whole()), (derived_from(Base), Whole)]
)
def test_values_that_are_accepted(contract: Contract, value: object) -> None:
    contract.check(value, "the thing 'x'")


@pytest.mark.parametrize(
    ("contract", "value", "message"),
    [
        (FUNCTION, 3, r"the thing 'x' is 3 \(int\), not a function. Correct the registration, or uninstall"),
        (instance_of(Base), Whole, r"is the class Whole, not an instance of \S+test_registry.Base"),
        (derived_from(Base), Whole(), r"is <.*> \(Whole\), not a class derived from \S+test_registry.Base"),
        (derived_from(Base), Base, r"the thing 'x' Base has no run: the contract is that of \S+test_registry.Base"),
        (derived_from(Base), dict, "is the class dict, not a class derived from"),
        (FUNCTION, Unprintable(), r"is an object whose repr raises ValueError \(Unprintable\), not a function"),
    ],
)
def test_values_that_are_refused(contract: Contract, value: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        contract.check(value, "the thing 'x'")


def test_a_long_value_is_shortened() -> None:
    with pytest.raises(UserError) as refusal:
        FUNCTION.check("x" * 10_000, "the thing 'x'")
    assert len(str(refusal.value)) < 250


def test_a_package_with_damaged_metadata_disturbs_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _module(monkeypatch, tmp_path, "fine_plugin", "X = 3\n")
    for name in ("fine", "unnamed", "broken"):
        _distribution(monkeypatch, tmp_path, f"[tunesmith.damaged_kind]\n{name} = fine_plugin:X\n", name)
    (tmp_path / "unnamed-1.0.dist-info" / "METADATA").write_bytes(b"Name: \xff\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whether the name is read depends on the version of Python
        assert "fine" in Registry("damaged kind").names()
    (tmp_path / "unnamed-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: unnamed\nVersion: 1.0\n")
    (tmp_path / "broken-1.0.dist-info" / "entry_points.txt").write_bytes(b"[tunesmith.damaged_kind]\nno equals sign \xff\n")
    registry: Registry[int] = Registry("damaged kind")
    with pytest.warns(UserWarning, match="the installed package .*broken-1.0.dist-info is left out, because its metadata cannot be read"):
        assert "fine" in registry.names()
    assert registry.get("fine") == 3
