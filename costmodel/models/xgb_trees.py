"""Validate boosted trees in XGBoost's JSON format, and copy the known fields.

XGBoost checks no index and crashes on an invalid one.  A digest detects damage, but does not authenticate the file.  So each index is
checked, and only the fields that `XGBModel.save` writes are passed to XGBoost.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from tunesmith.support.array_types import Int64Array

MAX_FEATURES = 1 << 16
NO_PARENT = 0x7FFFFFFF
_FLOAT32 = 3.4e38
_FLOATS = ("base_weights", "loss_changes", "split_conditions", "sum_hessian")
_INTEGERS = ("left_children", "right_children", "parents", "split_indices", "default_left", "split_type")
_CATEGORIES = ("categories", "categories_nodes", "categories_segments", "categories_sizes")


def checked_trees(data: object) -> dict[str, object]:
    """The trees with only the known fields, each of them checked.

    Args:
        data: the JSON data of `Booster.save_raw("json")`.
    Raises:
        ValueError: a field is missing, has the wrong type, or is invalid for a tree.
    """
    learner = _dict(_get(_dict(data, "trees"), "learner"), "learner")
    booster = _dict(_get(learner, "gradient_booster"), "gradient_booster")
    if _get(booster, "name") != "gbtree":
        raise ValueError(f"its booster is {booster['name']!r:.40}, not 'gbtree'")
    model = _dict(_get(booster, "model"), "model")
    params = _dict(_get(learner, "learner_model_param"), "learner_model_param")
    features = _number(_get(params, "num_feature"), "num_feature", 1, MAX_FEATURES)
    trees = _list(_get(model, "trees"), "trees")
    made: dict[str, object] = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
        "iteration_indptr": list(range(len(trees) + 1)),
        "tree_info": [0] * len(trees),
        "trees": [_tree(tree, i, features) for i, tree in enumerate(trees)],
    }
    if "cats" in model:
        made["cats"] = {"enc": [], "feature_segments": [], "sorted_idx": []}
    version = _list(_get(_dict(data, "trees"), "version"), "version")
    if len(version) != 3 or not all(type(v) is int and 0 <= v < 1000 for v in version):
        raise ValueError("its XGBoost version is not a list of three numbers")
    out = {
        "attributes": {},
        "feature_names": [],
        "feature_types": [],
        "gradient_booster": {"model": made, "name": "gbtree"},
        "learner_model_param": {
            "base_score": _base_score(_get(params, "base_score")),
            "boost_from_average": "0",
            "num_class": "0",
            "num_feature": str(features),
            "num_target": "1",
        },
        "objective": {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}},
    }
    return {"learner": out, "version": version}


def _tree(data: object, number: int, features: int) -> dict[str, object]:
    where = f"tree {number}"
    tree = _dict(data, where)
    param = _dict(_get(tree, "tree_param"), where)
    for name, wanted in (("num_deleted", ("0",)), ("num_feature", (str(features),)), ("size_leaf_vector", ("0", "1"))):
        if _get(param, name) not in wanted:
            raise ValueError(f"{where}: {name} is {param[name]!r:.40}, not {wanted[-1]}")
    nodes = _number(_get(param, "num_nodes"), f"{where}: num_nodes", 1, NO_PARENT)
    out: dict[str, object] = {name: _floats(_get(tree, name), nodes, f"{where}: {name}") for name in _FLOATS}
    found = {name: _integers(_get(tree, name), nodes, f"{where}: {name}") for name in _INTEGERS}
    if any(_list(tree.get(name, []), where) for name in _CATEGORIES) or found["split_type"].any():
        raise ValueError(f"{where}: categorical splits are not supported")
    if not np.isin(found["default_left"], (0, 1)).all():
        raise ValueError(f"{where}: default_left has a value other than 0 and 1")
    if (found["split_indices"] < 0).any() or (found["split_indices"] >= features).any():
        raise ValueError(f"{where}: the index of a split feature is not below {features}")
    _check_children(found["left_children"], found["right_children"], found["parents"], where)
    out |= {name: values.tolist() for name, values in found.items()}
    out |= {name: [] for name in _CATEGORIES}
    known = {name: param[name] for name in ("num_deleted", "num_feature", "num_nodes", "size_leaf_vector")}
    return {**out, "id": number, "tree_param": known}


def _check_children(left: Int64Array, right: Int64Array, parents: Int64Array, where: str) -> None:
    """Check that the nodes form a tree: each node but the root is a child of exactly one node, its parent, and there are no cycles."""
    nodes = np.arange(len(left))
    leaf = left == -1
    inside = nodes[~leaf]
    children = np.concatenate([left[~leaf], right[~leaf]])
    if (right[leaf] != -1).any() or not np.array_equal(np.sort(children), nodes[1:]):
        raise ValueError(f"{where}: a node is not the child of exactly one other")
    up = np.full(len(left), 0, np.int64)
    up[left[~leaf]] = inside
    up[right[~leaf]] = inside
    if parents[0] != NO_PARENT or not np.array_equal(parents[1:], up[1:]):
        raise ValueError(f"{where}: parents and children are inconsistent")
    for _ in range(len(left).bit_length()):  # after k steps, `up` is the ancestor 2 ** k levels above
        up = up[up]
    if up.any():
        raise ValueError(f"{where}: nodes are their own ancestors")


def _base_score(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"\[?[-+0-9.eE]{1,30}\]?", value) or not math.isfinite(float(value.strip("[]"))):
        raise ValueError(f"its base_score is {value!r:.40}, not a number")
    return value


def _get(data: dict[str, object], name: str) -> object:
    if name not in data:
        raise ValueError(f"its trees have no field {name!r}")
    return data[name]


def _dict(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: not an object")
    return value


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where}: not a list")
    return value


def _number(value: object, where: str, low: int, high: int) -> int:
    if not isinstance(value, str) or not re.fullmatch("[0-9]{1,12}", value) or not low <= int(value) <= high:
        raise ValueError(f"{where} is {value!r:.40}, not a number from {low} to {high}")
    return int(value)


def _floats(value: object, count: int, where: str) -> list[float]:
    values = _list(value, where)
    if len(values) != count or not all(type(v) in (int, float) and abs(v) <= _FLOAT32 for v in values):
        raise ValueError(f"{where} is not {count} finite numbers")
    return values


def _integers(value: object, count: int, where: str) -> Int64Array:
    values = _list(value, where)
    if len(values) != count or not all(type(v) is int and abs(v) <= NO_PARENT for v in values):
        raise ValueError(f"{where} is not {count} integers")
    return np.array(values, np.int64)
