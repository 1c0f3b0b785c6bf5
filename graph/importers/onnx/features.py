"""Convert ONNX feature extraction: Fourier transforms, mel filters, counts of n-grams, and decision trees, all as products of matrices.

Lengths, and the numbers of mel filters, must be known at import.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tunesmith.graph.importers.onnx.node import Converted, Converter, OnnxNode, cast_to, dtype_of, extents, normalised, rank, shape_of
from tunesmith.graph.importers.onnx.values import Datum, UnsupportedNode
from tunesmith.ir.poly import product

_MOST_POINTS = 4096


def _transformed(node: OnnxNode, real: Datum, imaginary: Datum | None, length: int, bins: int, inverse: bool) -> Datum:
    """The first `bins` of the `length`-point transform along the last axis; a new last axis holds real and imaginary parts."""
    b = node.b
    if length > _MOST_POINTS:
        raise UnsupportedNode(f"a Fourier transform of more than {_MOST_POINTS} points")
    used = extents(real)[-1]
    angles = 2 * np.pi * ((np.arange(used)[:, None] * np.arange(bins)[None, :]) % length) / length
    scale = 1 / length if inverse else 1.0
    cosine = b.constant(np.cos(angles) * scale, real.type.dtype)
    sine = b.constant((np.sin(angles) if inverse else -np.sin(angles)) * scale, real.type.dtype)
    parts = [b.matmul(real, cosine), b.matmul(real, sine)]
    if imaginary is not None:
        parts[0] = b.subtract(parts[0], b.matmul(imaginary, sine))
        parts[1] = b.add(parts[1], b.matmul(imaginary, cosine))
    return b.concat(*[b.expand_dims(p, axes=(-1,)) for p in parts], axis=rank(real))


def _component(node: OnnxNode, x: Datum, i: int) -> Datum:
    last = rank(x) - 1
    return node.b.squeeze(node.b.strided_slice(x, axes=(last,), begin=(i,), end=(i + 1,)), axes=(last,))


def _dft(node: OnnxNode) -> Converted:
    x, b = node.input(0), node.b
    if node.version >= 20:
        axis = node.numbers(2, "axis")[0] if node.has(2) else -2
    else:
        axis = node.attr("axis", 1)
    axis = normalised(axis, rank(x))
    shape = extents(x)
    if shape[-1] not in (1, 2):
        raise node.refuse(f"a last extent of {shape[-1]}; it must be 1 for real and 2 for complex tensors")
    length = node.numbers(1, "dft_length")[0] if node.has(1) else shape[axis]
    inverse, onesided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    if inverse and onesided:
        return _real_signal(node, x, axis)
    if shape[axis] > length:
        x = b.strided_slice(x, axes=(axis,), begin=(0,), end=(length,))
    order = (*[i for i in range(rank(x) - 1) if i != axis], axis)
    parts = [b.permute_dims(_component(node, x, i), axes=order) for i in range(shape[-1])]
    bins = length // 2 + 1 if onesided else length
    made = _transformed(node, parts[0], parts[1] if len(parts) > 1 else None, length, bins, inverse)
    return b.permute_dims(made, axes=(*[order.index(i) for i in range(rank(x) - 1)], rank(x) - 1))


def _real_signal(node: OnnxNode, x: Datum, axis: int) -> Datum:
    """The real signal of a one-sided spectrum: every bin counts twice, except the first one and that of half the sampling rate."""
    b, shape = node.b, extents(x)
    if shape[-1] != 2:
        raise node.refuse(f"a one-sided spectrum with a last extent of {shape[-1]}; it must be 2, complex")
    length = node.numbers(1, "dft_length")[0] if node.has(1) else 2 * (shape[axis] - 1)
    if not 1 <= length <= _MOST_POINTS:
        raise UnsupportedNode(f"a Fourier transform of {length} points, which must be from 1 to {_MOST_POINTS}")
    bins = min(length // 2 + 1, shape[axis])
    if bins < shape[axis]:
        x = b.strided_slice(x, axes=(axis,), begin=(0,), end=(bins,))
    k = np.arange(bins)
    weight = np.where((k == 0) | (2 * k == length), 1.0, 2.0)[:, None] / length
    angles = 2 * np.pi * ((k[:, None] * np.arange(length)[None, :]) % length) / length
    order = (*[i for i in range(rank(x) - 1) if i != axis], axis)
    real, imaginary = [b.permute_dims(_component(node, x, i), axes=order) for i in (0, 1)]
    cosine, sine = [b.constant(function(angles) * weight, x.type.dtype) for function in (np.cos, np.sin)]
    made = b.subtract(b.matmul(real, cosine), b.matmul(imaginary, sine))
    back = b.permute_dims(made, axes=tuple([order.index(i) for i in range(rank(x) - 1)]))
    return b.expand_dims(back, axes=(rank(x) - 1,))


def _stft(node: OnnxNode) -> Converted:
    """Windowed frames of the signal, transformed."""
    x, b = node.input(0), node.b
    step = node.numbers(1, "frame_step")[0]
    window = node.get(2)
    length = node.numbers(3, "frame_length")[0] if node.has(3) else extents(node.input(2))[0]
    shape = extents(x)
    starts = np.arange((shape[1] - length) // step + 1) * step
    at = b.constant(starts[:, None] + np.arange(length)[None, :], "int64")
    parts = []
    for i in range(shape[-1] if rank(x) == 3 else 1):
        frames = b.take(_component(node, x, i) if rank(x) == 3 else x, at, axis=1)
        parts.append(frames if window is None else b.multiply(frames, window))
    bins = length // 2 + 1 if node.attr("onesided", 1) else length
    return _transformed(node, parts[0], parts[1] if len(parts) > 1 else None, length, bins, False)


def _mel_weight_matrix(node: OnnxNode) -> Converted:
    """The triangular filters of the mel scale, [dft_length // 2 + 1, num_mel_bins], as ONNX specifies them."""
    names = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
    bins, length, rate, low, high = [node.array(i, name).item() for i, name in enumerate(names)]
    if bins < 1 or length < 1 or rate < 1 or not 0 <= low < high or max(bins, length) > _MOST_MEL:
        what = f"{bins} filters of {length} points at {rate} Hz, from {low} to {high} Hz"
        raise node.refuse(f"{what}; numbers must be positive, at most {_MOST_MEL}, and frequencies increase")
    ends = [2595 * np.log10(1 + hertz / 700) for hertz in (low, high)]
    mel = np.arange(bins + 2) * (ends[1] - ends[0]) / (bins + 2) + ends[0]
    at = ((length + 1) * (700 * (10 ** (mel / 2595) - 1)) // rate).astype(int)
    made = np.zeros((length // 2 + 1, bins))
    if at[-1] >= made.shape[0]:
        raise node.refuse(f"an upper edge of {high} Hz beyond half the sampling rate of {rate} Hz")
    for i, (lower, centre, upper) in enumerate(zip(at, at[1:], at[2:], strict=False)):
        rows = np.arange(made.shape[0])
        rising = (rows >= lower) & (rows <= centre)
        made[rising, i] = (rows[rising] - lower) / (centre - lower) if centre > lower else 1.0
        falling = (rows >= centre) & (rows < upper)
        made[falling, i] = (upper - rows[falling]) / max(upper - centre, 1)
    return node.b.constant(made, dtype_of(node.attr("output_datatype", 1)))


_MOST_MEL = 1 << 14


# ---- n-grams -----------------------------------------------------------------------------------------------------------


def _tf_idf(node: OnnxNode) -> Converted:
    """Counts of the n-grams of a pool in each row, weighted: windows of n tokens, at each distance, are compared with all n-grams."""
    x, b = node.input(0), node.b
    if node.attr("pool_strings") is not None:
        raise node.refuse("n-grams of strings")
    pool, starts = list(node.attr("pool_int64s")), list(node.attr("ngram_counts"))
    places = list(node.attr("ngram_indexes"))
    weights, mode = node.attr("weights"), node.attr("mode")
    if mode not in ("TF", "IDF", "TFIDF"):
        raise node.refuse(f"the mode {mode!r}; modes are TF, IDF and TFIDF")
    rows = x if rank(x) == 2 else b.reshape(x, shape=(1, shape_of(x)[0]))
    length = extents(rows)[1]
    shortest, longest, skips = node.attr("min_gram_length"), node.attr("max_gram_length"), node.attr("max_skip_count")
    counts: list[Datum] = []
    columns: list[int] = []
    first = 0
    for n, (start, end) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), 1):
        grams = np.asarray(pool[start:end], np.int64).reshape(-1, n)
        where, first = places[first : first + len(grams)], first + len(grams)
        if not len(grams) or not shortest <= n <= longest:
            continue
        reach = range(1 if n == 1 else min(skips, length) + 1)
        found = [_matches(node, rows, grams, s + 1) for s in reach if (n - 1) * (s + 1) < length]
        if found:
            counts.append(_sum(node, found))
            columns += where
    table = np.zeros((len(columns), max(places) + 1), np.float32)
    scale = np.ones(len(places), np.float32) if weights is None or mode == "TF" else np.asarray(weights, np.float32)
    table[np.arange(len(columns)), columns] = scale[[places.index(c) for c in columns]]
    joined = b.cast(counts[0] if len(counts) == 1 else b.concat(*counts, axis=1), dtype="float32")
    if mode == "IDF":
        joined = b.minimum(joined, node.like(1, joined))
    made = b.matmul(joined, b.constant(table))
    return made if rank(x) == 2 else b.reshape(made, shape=(table.shape[1],))


def _matches(node: OnnxNode, rows: Datum, grams: np.ndarray, distance: int) -> Datum:
    """int64[rows, n-grams]: how often each n-gram occurs with its tokens at a distance."""
    b, n = node.b, grams.shape[1]
    windows = b.expand_dims(b.cast(b.unfold(rows, axis=1, size=n, dilation=distance), dtype="int64"), axes=(2,))
    return b.sum(b.cast(b.all(b.equal(windows, b.constant(grams)), axes=(3,)), dtype="int64"), axes=(1,))


def _sum(node: OnnxNode, parts: list[Datum]) -> Datum:
    made = parts[0]
    for part in parts[1:]:
        made = node.b.add(made, part)
    return made


# ---- classical machine learning ----------------------------------------------------------------------------------------


def _array_feature_extractor(node: OnnxNode) -> Converted:
    """Elements of the last axis; a vector is one row."""
    x, b = node.input(0), node.b
    chosen = b.reshape(node.input(1), shape=(product(node.input(1).type.shape),))
    rows = b.expand_dims(x, axes=(0,)) if rank(x) == 1 else x
    return b.take(rows, chosen, axis=rank(rows) - 1)


def _binarizer(node: OnnxNode) -> Converted:
    x = node.input(0)
    return node.b.cast(node.b.greater(x, node.like(node.attr("threshold", 0.0), x)), dtype=x.type.dtype)


_COMPARISONS = ("less_equal", "less", "greater_equal", "greater", "equal", "not_equal")
"""The operators of the node modes 0 to 5; mode 6 tests whether a value is in a set."""
_MEMBER = 6


def _tree_ensemble(node: OnnxNode) -> Converted:
    """Decision trees as matrix products (Nakandala et al., Hummingbird, OSDI 2020).

    All conditions are evaluated.  A leaf is reached if all conditions on its path have the values of the path: with +1 for each true edge
    and -1 for each false one, their sum is the number of true edges.
    """
    x, b = node.input(0), node.b
    if node.attr("post_transform", 0) != 0 or node.attr("aggregate_function", 1) not in (0, 1):
        raise node.refuse("a post transform, or an aggregate other than the sum and the average")
    paths = _paths(node)
    features = np.asarray(node.attr("nodes_featureids"), np.int64)
    signs = np.zeros((len(features), len(paths)))
    for leaf, (_, path) in enumerate(paths):
        for at, side in path:
            signs[at, leaf] += 1 if side else -1
    kind = x.type.dtype
    held = cast_to(b, _conditions(node, b.take(x, b.constant(features), axis=1)), kind)
    reached = b.equal(b.matmul(held, b.constant(signs, kind)), b.constant(np.maximum(signs, 0).sum(0), kind))
    targets = np.zeros((len(paths), node.attr("n_targets")))
    weights, ids = np.asarray(node.attr("leaf_weights")).ravel(), node.attr("leaf_targetids")
    for row, (leaf, _) in enumerate(paths):
        targets[row, ids[leaf]] = weights[leaf]
    if node.attr("aggregate_function", 1) == 0:
        targets /= len(node.attr("tree_roots"))
    return b.matmul(cast_to(b, reached, kind), b.constant(targets, kind))


def _paths(node: OnnxNode) -> list[tuple[int, list[tuple[int, bool]]]]:
    """For each leaf that a root leads to: its number and the edges to it, (node, whether its condition is true)."""
    children = [node.attr(name) for name in ("nodes_falsenodeids", "nodes_truenodeids", "nodes_falseleafs", "nodes_trueleafs")]
    found: list[tuple[int, list[tuple[int, bool]]]] = []
    seen: set[int] = set()
    waiting: list[tuple[int, list[tuple[int, bool]]]] = [(root, []) for root in node.attr("tree_roots")]
    while waiting:
        at, path = waiting.pop()
        if at in seen:
            raise node.refuse(f"the node {at} is reached twice, so the nodes are not trees")
        seen.add(at)
        for side in (False, True):
            child, edges = children[side][at], [*path, (at, side)]
            if children[2 + side][at]:
                found.append((child, edges))
            else:
                waiting.append((child, edges))
    return found


def _conditions(node: OnnxNode, values: Datum) -> Datum:
    """bool[rows, nodes]: the condition of each node for the values of its feature."""
    b, kind = node.b, values.type.dtype
    modes, splits = np.asarray(node.attr("nodes_modes")).ravel(), np.asarray(node.attr("nodes_splits")).ravel()
    held: Datum | None = None
    for mode in sorted(set(modes.tolist())):
        if mode == _MEMBER:
            found = _members(node, values, modes)
        elif mode < len(_COMPARISONS):
            found = b.call(_COMPARISONS[mode], values, b.constant(splits, kind))
        else:
            raise node.refuse(f"the mode {mode} of a node")
        held = found if held is None else b.where(b.constant(modes == mode), found, held)
    assert held is not None
    tracks = node.attr("nodes_missing_value_tracks_true")
    if tracks is not None and any(tracks):
        held = b.logical_or(held, b.logical_and(b.isnan(values), b.constant(np.asarray(tracks, bool))))
    return held


def _members(node: OnnxNode, values: Datum, modes: np.ndarray) -> Datum:
    """Whether each value is in the set of its node; sets are listed in the order of these nodes, each ends with NaN."""
    b, kind = node.b, values.type.dtype
    numbers = np.asarray(node.attr("membership_values")).ravel()
    sets = np.split(numbers, np.flatnonzero(np.isnan(numbers)) + 1)
    wide = np.full((len(modes), max(len(s) for s in sets)), np.nan)  # NaN equals no value
    for row, members in zip(np.flatnonzero(modes == _MEMBER), sets, strict=False):
        wide[row, : len(members)] = members
    return b.any(b.equal(b.expand_dims(values, axes=(2,)), b.constant(wide, kind)), axes=(2,))


CONVERTERS: Mapping[str, Converter] = {
    "DFT": _dft,
    "MelWeightMatrix": _mel_weight_matrix,
    "STFT": _stft,
    "TfIdfVectorizer": _tf_idf,
    "ai.onnx.ml.ArrayFeatureExtractor": _array_feature_extractor,
    "ai.onnx.ml.Binarizer": _binarizer,
    "ai.onnx.ml.TreeEnsemble": _tree_ensemble,
}
