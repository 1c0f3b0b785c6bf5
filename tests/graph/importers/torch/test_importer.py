"""Test imports of whole torch models: results, dynamic shapes, branches, names, and unsupported models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith.graph.importers.torch import call as torch_import_call
from tunesmith.graph.importers.torch.importer import TORCH_OPERATORS, from_torch
from tunesmith.graph.importers.torch.sizes import Sizes
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import If, all_bindings, constants
from tunesmith.graph.ir.verify import verify
from tunesmith.ir.expr import Binary, Const, IsNegative, Not
from tunesmith.ir.poly import Var, evaluate, poly
from tunesmith.support.errors import MissingExtraError, ModelImportError, RunError, UserError

torch = pytest.importorskip("torch")
nn = torch.nn
torch_models = pytest.importorskip("tunesmith.testing.torch_models")
Dim = torch.export.Dim


def imported(model: Any, inputs: Sequence[Any], dynamic_shapes: Any = None) -> GraphFunc:
    func = from_torch(model, tuple(inputs), dynamic_shapes)["main"]
    verify(func)
    return func


def agree(func: GraphFunc, model: Any, inputs: Sequence[Any]) -> None:
    tensors = [t for t in torch.utils._pytree.tree_leaves(tuple(inputs)) if isinstance(t, torch.Tensor)]
    got = run(func, [t.numpy() for t in tensors])
    with torch.no_grad():
        expected = [np.asarray(torch.as_tensor(w).numpy()) for w in torch.utils._pytree.tree_leaves(model(*inputs)) if w is not None]
    assert len(got) == len(expected)
    for g, w in zip(got, expected, strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5 * np.abs(w).max())


def operators(func: GraphFunc) -> list[str]:
    return [b.operation.operator for b in all_bindings(func.body) if hasattr(b.operation, "operator")]


@pytest.mark.parametrize("name", torch_models.NAMES)
def test_models_agree_with_torch(name: str) -> None:
    model, inputs = torch_models.get(name)
    agree(imported(model, inputs), model, inputs)


def test_convolutional_graph_has_one_operator_per_layer() -> None:
    model, inputs = torch_models.get("mobilenet_v2")
    found = operators(imported(model, inputs))
    assert found.count("conv2d") == found.count("batch_norm") == 10
    assert set(found) == {"conv2d", "batch_norm", "clip", "add", "mean", "reshape", "permute_dims", "matmul"}


def test_weights_are_named_shared_constants() -> None:
    model, inputs = torch_models.get("gpt_prefill")
    func = imported(model, inputs)
    names = [c.name for c in constants(func.body)]
    assert names.count("words.weight") == 1 and "layers.0.qkv.bias" in names
    table = next(c for c in constants(func.body) if c.name == "words.weight")
    uses = [b for b in all_bindings(func.body) if table in b.operation.args]
    assert [b.operation.operator for b in uses] == ["take", "permute_dims"]


def test_constants_are_copies_of_the_weights() -> None:
    model = nn.Linear(2, 2)
    func = imported(model, [torch.ones(1, 2)])
    before = run(func, [np.ones((1, 2), np.float32)])
    with torch.no_grad():
        model.weight.zero_()
    assert np.array_equal(run(func, [np.ones((1, 2), np.float32)])[0], before[0])


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(UserError, match="no torch model 'resnet19' of size 'small'. Models: resnet18"):
        torch_models.get("resnet19")


# ---- dynamic shapes -------------------------------------------------------------------------------------------------------------------


def test_prompt_with_dynamic_length() -> None:
    model, inputs = torch_models.get("gpt_prefill")
    length = Dim("length", max=12)
    func = imported(model, inputs, ({1: length}, {0: length}))
    assert [v.name for v in func.sizes] == ["length"]
    for n in (1, 5, 12):
        agree(func, model, (torch.arange(n)[None] % 50, torch.arange(n)))
    with pytest.raises(RunError, match="length"):
        run(func, [np.zeros((1, 13), np.int64), np.zeros(13, np.int64)])
    with pytest.raises(RunError):
        run(func, [np.zeros((1, 5), np.int64), np.zeros(6, np.int64)])


def test_growing_cache() -> None:
    model, (ids, position, *caches) = torch_models.get("gpt_decode_cat")
    past = Dim("past", max=11)
    func = imported(model, (ids, position, *caches), (None, None, tuple([{2: past}] * len(caches))))
    for n in (1, 4, 11):
        agree(func, model, (ids, torch.tensor([n]), *[torch.randn(1, 2, n, 8) for _ in caches]))


def test_bert_with_dynamic_length_and_batch() -> None:
    model, (ids, kinds, mask) = torch_models.get("bert_base")
    batch, length = Dim("batch", min=1, max=8), Dim("length", min=1, max=16)
    func = imported(model, [t.repeat(3, 1) for t in (ids, kinds, mask)], ({0: batch, 1: length},) * 3)
    for b, n in ((1, 8), (2, 5), (4, 16)):
        agree(func, model, [torch.ones(b, n, dtype=torch.int64)] * 3)


def test_images_with_dynamic_size() -> None:
    model, (image,) = torch_models.get("unet")
    side = 4 * Dim("side", min=2, max=64)
    with pytest.raises(ModelImportError, match="is not itself the extent of an input"):
        from_torch(model, (image,), ({2: side},))


class SizeArithmetic(nn.Module):
    def forward(self, x: Any, y: Any) -> dict[str, Any]:
        n, m = x.shape[0], y.shape[0]
        joined = torch.cat([x, y])
        return {
            "number": x * (n * 0.5) + m,
            "root": x / n**0.5 + x * (m / n),
            "range": torch.arange(n) + m,
            "part": joined[1 : n // 2 + 1],
            "end": joined[-2:],
            "view": x.view(n * 2, -1),
            "filled": torch.full((m,), n),
            "size": n + m,
        }


def test_sizes_as_numbers() -> None:
    model = SizeArithmetic()
    func = imported(model, [torch.randn(8, 4), torch.randn(6, 4)], ({0: Dim("n", min=4)}, {0: Dim("m")}))
    for n, m in ((8, 6), (10, 3), (4, 9)):
        agree(func, model, [torch.randn(n, 4), torch.randn(m, 4)])


class Even(nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        if x.shape[0] % 2 == 0 and x.shape[0] <= 3 * y.shape[0]:
            return x.sum() + y.sum()
        return x.sum() - y.sum()


def test_guards_are_checked_at_run_time() -> None:
    model = Even()
    func = imported(model, [torch.randn(8), torch.randn(6)], ({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC}))
    agree(func, model, [torch.randn(4), torch.randn(3)])
    for n, m in ((5, 3), (10, 3)):
        with pytest.raises(RunError, match="assum"):
            run(func, [np.zeros(n, np.float32), np.zeros(m, np.float32)])


class Rest(nn.Module):
    def forward(self, x: Any, pair: dict[str, Any], *rest: Any) -> Any:
        return x + pair["a"] * rest[0] if x.shape[0] % 3 == 0 and rest[1].shape[0] != 7 and pair["a"].shape[0] > 2 else x


def test_guards_on_nested_inputs() -> None:
    model, varies = Rest(), {0: Dim.DYNAMIC}
    inputs = (torch.randn(6), {"a": torch.randn(6)}, torch.randn(6), torch.randn(5))
    func = imported(model, inputs, (varies, {"a": varies}, (varies, varies)))
    agree(func, model, (torch.randn(9), {"a": torch.randn(9)}, torch.randn(9), torch.randn(3)))
    with pytest.raises(RunError):
        run(func, [np.zeros(e, np.float32) for e in (8, 8, 8, 5)])
    with pytest.raises(RunError):
        run(func, [np.zeros(e, np.float32) for e in (9, 9, 9, 7)])


def test_dynamic_number_input_is_refused() -> None:
    class Times(nn.Module):
        def forward(self, x: Any, n: int) -> Any:
            return x * n

    with pytest.raises(ModelImportError, match="input that is a number: a dynamic size must be the extent of a tensor"):
        from_torch(Times(), (torch.ones(3), 4), (None, Dim.DYNAMIC))


# ---- structure --------------------------------------------------------------------------------------------------------------------------


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.arange(3.0))

    def forward(self, x: dict[str, Any], factor: float, flag: bool) -> Any:
        y = x["b"] * factor if flag else x["b"]
        with torch.no_grad():
            z = y + self.offset
        return {"z": (z, [x["a"], None]), "count": 3, "y": torch.tensor([1.0, 2.0, 3.0]) - y}


def test_inputs_and_outputs_are_flattened_as_in_torch() -> None:
    model, inputs = Nested(), ({"b": torch.randn(2, 3), "a": torch.randn(3)}, 2.5, True)
    func = imported(model, inputs)
    assert [p.name for p in func.params] == ["x_b", "x_a"]
    agree(func, model, inputs)


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        inner = lambda x: torch.cond(x.max() > 2, lambda x: x * 2, lambda x: x + 1, (x,))  # noqa: E731
        return torch.cond(x.sum() > 0, lambda x: (self.layer(x), x.sum()), lambda x: (inner(x), x.max()), (x,))


def test_cond_is_an_if() -> None:
    model = Branch().eval().requires_grad_(False)
    func = imported(model, [torch.randn(2, 4)])
    assert sum(isinstance(b.operation, If) for b in all_bindings(func.body)) == 2
    for x in (torch.ones(2, 4), -torch.ones(2, 4), torch.tensor([[3.0, -9, 0, 0]] * 2)):
        agree(func, model, [x])


def test_exported_program_is_imported() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.GELU())
    program = torch.export.export(model, (torch.randn(2, 4),), dynamic_shapes=({0: Dim("n")},), strict=False)
    mod = from_torch(program, name="head")
    assert list(mod) == ["head"] and operators(mod["head"]) == ["permute_dims", "matmul", "add", "gelu"]
    agree(mod["head"], model, [torch.randn(5, 4)])


def test_from_torch_is_exported() -> None:
    assert tunesmith.from_torch is from_torch


def test_custom_converter() -> None:
    from torch import library

    @library.custom_op("tunesmith_test::halved", mutates_args=())
    def halved(x: torch.Tensor, times: int = 1) -> torch.Tensor:
        return x * 0.5**times

    @halved.register_fake
    def _(x: torch.Tensor, times: int = 1) -> torch.Tensor:
        return torch.empty_like(x)

    class Halved(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.ops.tunesmith_test.halved(x)

    with pytest.raises(ModelImportError, match=r"TORCH_OPERATORS.register\('tunesmith_test.halved.default', convert\)"):
        from_torch(Halved(), (torch.ones(3),))
    TORCH_OPERATORS.register("tunesmith_test.halved.default", lambda call, x, times: call.emit("multiply", x, call.operand(0.5**times)))
    agree(imported(Halved(), [torch.ones(3)]), Halved(), [torch.ones(3)])


# ---- refusals ---------------------------------------------------------------------------------------------------------------------------


class Unsupported(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), Modes())
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.count.add_(1)
        return self.inner(x) + torch.mode(x, keepdim=True).values + F_pool(x)


class Modes(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.mode(x, keepdim=True).values


def F_pool(x: Any) -> Any:
    return nn.functional.avg_pool2d(x[None], 2, ceil_mode=True, divisor_override=3).sum()


def test_one_error_lists_all_unsupported_operators_with_locations() -> None:
    with pytest.raises(ModelImportError) as error:
        from_torch(Unsupported(), (torch.randn(2, 4),), name="net")
    text = str(error.value)
    assert text.startswith("the torch model cannot be imported as net:")
    assert "aten.mode.default (2 times): there is no converter for this operator" in text
    assert "first at node mode (" in text and "test_importer.py:" in text and "module inner.1" in text
    assert "aten.avg_pool2d.default: divisor_override with ceil_mode is not supported" in text
    assert "write to the buffer 'count': graph functions have no side effects" in text


def test_write_to_an_input_is_refused() -> None:
    class Writes(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.add_(1)

    with pytest.raises(ModelImportError, match="write to the user input 'x'"):
        from_torch(Writes(), (torch.ones(3),))


def test_model_in_training_mode_is_refused() -> None:
    with pytest.raises(ModelImportError, match="call model.eval\\(\\)"):
        from_torch(nn.BatchNorm1d(3), (torch.ones(2, 3),))


def test_converter_with_wrong_result_type_is_reported() -> None:
    from torch import library

    TORCH_OPERATORS.register("tunesmith_test.wrong.default", lambda call, x: call.emit("cast", x, dtype="float64"))

    @library.custom_op("tunesmith_test::wrong", mutates_args=())
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    wrong.register_fake(torch.empty_like)

    class Wrong(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.ops.tunesmith_test.wrong(x)

    with pytest.raises(ModelImportError, match=r"its converter returned float64\[3\] for result 0, which is float32\[3\] in torch"):
        from_torch(Wrong(), (torch.ones(3),))


def test_torch_export_errors_are_reported() -> None:
    class Steered(nn.Module):
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    with pytest.raises(ModelImportError, match="torch.export could not trace Steered: .*\nUse torch.cond"):
        from_torch(Steered(), (torch.ones(3),))


def test_arguments_of_a_wrong_kind() -> None:
    with pytest.raises(ModelImportError, match="a model must be an nn.Module or a torch.export.ExportedProgram, got function"):
        from_torch(F_pool, (torch.ones(3),))
    with pytest.raises(ModelImportError, match="example_inputs must be a tuple of the model's positional arguments, got Tensor"):
        from_torch(nn.ReLU(), torch.ones(3))


def test_unsupported_element_type() -> None:
    with pytest.raises(ModelImportError, match="input: tensors of complex64 cannot be imported"):
        from_torch(nn.Identity(), (torch.ones(1, 2).to(torch.complex64),))


def test_missing_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingExtraError, match="importing a torch model needs the package `torch`"):
        torch_import_call.import_torch()


class Slices(nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        n, m = x.shape[0], y.shape[0]
        torch._check(n >= 2 * m)
        kept = x.clone()
        kept[m : 2 * m] = y
        return x[:m] + y, x[-m:], x[n // 2 :], x[m], nn.functional.pad(x, (1, 3)), kept


def test_slices_with_symbolic_bounds() -> None:
    model = Slices()
    func = imported(model, [torch.randn(8), torch.randn(3)], ({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC}))
    for n, m in ((8, 3), (9, 4), (4, 2)):
        agree(func, model, [torch.randn(n), torch.randn(m)])
    with pytest.raises(RunError, match="assum"):
        run(func, [np.zeros(8, np.float32), np.zeros(5, np.float32)])


# ---- arithmetic of sizes and guards -------------------------------------------------------------------------------------------------


@pytest.fixture
def sizes() -> Sizes:
    made = Sizes()
    made.variables.update(n=Var("n"), m=Var("m"))
    return made


@pytest.mark.parametrize(
    ("text", "n", "m", "holds"),
    [
        ("L['x'].size()[0] == 2*L['y'].size()[0]", 6, 3, True),
        ("L['x'].size()[0] == 2*L['y'].size()[0]", 6, 2, False),
        ("(L['x'].size()[0] % 4) != 0", 6, 1, True),
        ("2 <= L['x'].size()[0] and L['x'].size()[0] <= 9", 10, 1, False),
        ("not L['x'].size()[0] < 5", 5, 1, True),
        ("L['x'].size()[0]//2 > L['rest'][0].size()[0] - 1", 6, 3, True),
        ("L['x'].size()[0]**2 >= -L['y'].size()[0] + 4 or L['y'].size()[0] == 7", 1, 2, False),
        ("Max(3, L['x'].size()[0]) == min(L['x'].size()[0], 5)", 4, 1, True),
        ("1 < L['x'].size()[0] < 4", 4, 1, False),
        ("L['kw']['z'].size()[0] == 5", 1, 5, True),
    ],
)
def test_guards_become_conditions_on_sizes(sizes: Sizes, text: str, n: int, m: int, holds: bool) -> None:
    extents = {name: (poly(v),) for name, v in sizes.variables.items()}
    condition = sizes.guard(text, {"x": extents["n"], "y": extents["m"], "rest_0": extents["m"], "z": extents["m"]})
    values = {sizes.variables["n"]: n, sizes.variables["m"]: m}
    assert truth(condition, values) is holds


def truth(condition: Any, values: dict[Var, int]) -> bool:
    if isinstance(condition, Const):
        return bool(condition.value)
    if isinstance(condition, IsNegative):
        return evaluate(condition.index, values) < 0
    if isinstance(condition, Not):
        return not truth(condition.a, values)
    assert isinstance(condition, Binary) and condition.op in ("and", "or")
    both = truth(condition.a, values), truth(condition.b, values)
    return all(both) if condition.op == "and" else any(both)


def test_torch_without_guards_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    decompose = torch.export.ExportedProgram.run_decompositions

    def without_guards(program: Any, table: Any) -> Any:
        made = decompose(program, table)
        del made._guards_code
        return made

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", without_guards)
    with pytest.raises(ModelImportError, match="dynamic_shapes: this torch does not report its assumptions about sizes"):
        from_torch(nn.ReLU(), (torch.ones(3),), ({0: Dim("n")},))


def test_trivial_guards_fold_to_constants(sizes: Sizes) -> None:
    same = {"x": (poly(sizes.variables["n"]),), "y": (poly(sizes.variables["n"]),)}
    assert sizes.guard("L['x'].size()[0] == L['y'].size()[0]", same).value is True
    assert sizes.guard("L['x'].size()[0] != L['y'].size()[0] and L['x'].size()[0] > 3", same).value is False
    assert sizes.guard("not L['x'].size()[0] != L['y'].size()[0] or L['x'].size()[0] > 3", same).value is True


@pytest.mark.parametrize(
    "text",
    [
        "L['x'].stride()[0] == 1",
        "L['x'].size()[0]",
        "L['w'].size()[0] == 1",
        "L['x'].size()[3] == 1",
        "L['x'].size()[0] in (1, 2)",
        "f(L['x'].size()[0]) == 1",
        "L['x'].size()[0] / 2 == 1",
        "L['x'].size()[0] == 'a'",
    ],
)
def test_other_guards_are_refused(sizes: Sizes, text: str) -> None:
    with pytest.raises(ModelImportError, match="which is not a condition on input sizes"):
        sizes.guard(text, {"x": (poly(sizes.variables["n"]),)})


def test_sympy_expressions_become_index_expressions(sizes: Sizes) -> None:
    sympy = pytest.importorskip("sympy")
    from torch.utils._sympy import functions as f

    n, m = sympy.symbols("n m", integer=True, positive=True)
    values = {sizes.variables["n"]: 11, sizes.variables["m"]: 4}
    for term, value in (
        (3 * n * m - 2, 130),
        (f.FloorDiv(n, m), 2),
        (f.Mod(n, m), 3),
        (f.PythonMod(n, m), 3),
        (f.Max(n, 3 * m), 12),
        (f.Min(n, 3 * m), 11),
        (f.CeilToInt(f.IntTrueDiv(n, m)), 3),
        (f.TruncToInt(f.IntTrueDiv(n, m)), 2),
        (f.PowByNatural(n, sympy.Integer(2)), 121),
        (f.ModularIndexing(n, sympy.Integer(3), m), 3),
    ):
        assert evaluate(sizes.of_sympy(term), values) == value
    for term, message in (
        (sympy.Symbol("u0") + 1, "depends on data in a way that is not supported"),
        (sympy.Symbol("k") + 1, "the size k is not itself the extent of an input"),
        (sympy.sqrt(n), "exponent that is not a natural number|contains Half|contains Rational"),
        (f.Where(n > 3, n, m), "contains Where"),
    ):
        with pytest.raises(ModelImportError, match=message):
            sizes.of_sympy(term)
    assert truth(sizes.condition(sympy.And(sympy.Eq(n, 11), sympy.Or(n < m, sympy.Not(sympy.Eq(m, 3))))), values)
    assert not truth(sizes.condition(sympy.Ge(m, n)), values)
    with pytest.raises(ModelImportError, match="is not a condition on sizes"):
        sizes.condition(sympy.Symbol("flag"))


def test_circular_padding_wraps_at_most_once() -> None:
    """Torch reports more than one wrap only at run time."""

    class Padded(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.pad(x, (2, 1), "circular")

    func = imported(Padded(), [torch.randn(1, 2, 9)], ({2: Dim("n", max=64)},))
    (n,) = func.params[0].type.shape[2].vars
    assert any(getattr(c, "index", c) == 1 - poly(n) for c in func.assumptions), func.assumptions
