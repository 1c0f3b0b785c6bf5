"""Define non-maximum suppression: for each batch and class, the boxes of the highest scores that do not overlap a better one.

A box is compared with the boxes that were selected before it, in the order of the scores and eight at a time, until one overlaps it.
"""

from __future__ import annotations

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse

_TEXT = """
@T.prim_func
def {name}(
    boxes: T.Buffer((batches, n, 4), "{dtype}"),
    scores: T.Buffer((batches * classes, n), "{dtype}"),
    order: T.Buffer((batches * classes, n), "int64"),
    limit: T.Buffer((), "int64"),
    overlap: T.Buffer((), "{dtype}"),
    least: T.Buffer((), "{dtype}"),
    found: T.Buffer((batches * classes, n), "int64"),
    count: T.Buffer((batches * classes,), "int64"),
    batches: T.int64, classes: T.int64, n: T.int64,
):
    low_y = T.alloc_buffer((batches * classes, (n + 7) // 8, 8), "{dtype}")
    low_x = T.alloc_buffer((batches * classes, (n + 7) // 8, 8), "{dtype}")
    high_y = T.alloc_buffer((batches * classes, (n + 7) // 8, 8), "{dtype}")
    high_x = T.alloc_buffer((batches * classes, (n + 7) // 8, 8), "{dtype}")
    for r in T.parallel(batches * classes):
        with T.block("select"):
            v = T.axis.spatial(batches * classes, r)
            at = T.allocate((1,), "int64", scope="register")
            k = T.allocate((1,), "int64", scope="register")
            made = T.allocate((1,), "int64", scope="register")
            free = T.allocate((1,), "bool", scope="register")
            box = T.allocate((4,), "{dtype}", scope="register")
            height = T.allocate((8,), "{dtype}", scope="register")
            width = T.allocate((8,), "{dtype}", scope="register")
            shared = T.allocate((8,), "{dtype}", scope="register")
            whole = T.allocate((8,), "{dtype}", scope="register")
            hit = T.allocate((8,), "{dtype}", scope="register")
            for q in T.serial(n):
                found[v, q] = T.index(0)
            at[0] = T.int64(0)
            made[0] = T.int64(0)
            while at[0] < T.index(n) and made[0] < limit[()]:
                with T.lookup(at[0], n) as t:
                    with T.lookup(order[v, t], n) as p:
                        free[0] = {candidate}
{corners}
                k[0] = T.int64(0)
                while free[0] and k[0] * T.int64(8) < made[0]:
                    with T.lookup(k[0], (n + 7) // 8) as s:
                        for u in T.vectorized(8):
                            height[u] = T.min(box[2], high_y[v, s, u]) - T.max(box[0], low_y[v, s, u])
                            width[u] = T.min(box[3], high_x[v, s, u]) - T.max(box[1], low_x[v, s, u])
                            shared[u] = height[u] * width[u]
                            whole[u] = (box[2] - box[0]) * (box[3] - box[1])
                            hit[u] = (high_y[v, s, u] - low_y[v, s, u]) * (high_x[v, s, u] - low_x[v, s, u])
                            whole[u] = {overlapping}
                            hit[u] = T.select(k[0] * T.int64(8) + T.index(u) < made[0], whole[u], {zero})
                    free[0] = T.reduce_max(hit.vload((0,), 8)) <= {zero}
                    k[0] = k[0] + T.int64(1)
                if free[0]:
                    with T.lookup(made[0], n) as s:
                        with T.lookup(at[0], n) as t:
                            found[v, s] = order[v, t]
                        low_y[v, s // 8, s % 8] = box[0]
                        low_x[v, s // 8, s % 8] = box[1]
                        high_y[v, s // 8, s % 8] = box[2]
                        high_x[v, s // 8, s % 8] = box[3]
                    made[0] = made[0] + T.int64(1)
                at[0] = at[0] + T.int64(1)
            count[v] = made[0]
"""

_SIGNS = " and ".join([f"{side}[u] > {{zero}}" for side in ("height", "width", "shared", "whole", "hit")])
_OVERLAPPING = f"T.select({_SIGNS} and shared[u] / (whole[u] + hit[u] - shared[u]) > overlap[()], {{one}}, {{zero}})"
"""Whether a box and a selected one share more than `overlap` of their union; boxes without an area share nothing."""

_CORNERS = [
    "box[0] = T.min(boxes[v // classes, p, 0], boxes[v // classes, p, 2])",
    "box[1] = T.min(boxes[v // classes, p, 1], boxes[v // classes, p, 3])",
    "box[2] = T.max(boxes[v // classes, p, 0], boxes[v // classes, p, 2])",
    "box[3] = T.max(boxes[v // classes, p, 1], boxes[v // classes, p, 3])",
]
_FROM_CENTER = [
    "box[0] = boxes[v // classes, p, 1] - boxes[v // classes, p, 3] / {two}",
    "box[1] = boxes[v // classes, p, 0] - boxes[v // classes, p, 2] / {two}",
    "box[2] = boxes[v // classes, p, 1] + boxes[v // classes, p, 3] / {two}",
    "box[3] = boxes[v // classes, p, 0] + boxes[v // classes, p, 2] / {two}",
]


def non_max_suppression(dtype: str, *, center: bool = False, filtered: bool = True) -> PrimFunc:
    """The function of boxes, scores, their order, the limits, and its results: the selected boxes of each row, and their number.

    A row is a class of a batch, in the order of the batches; the first results of a row are the selected boxes in the order of their
    scores, and the rest are 0.  The parameters after the buffers are the numbers of batches, of classes and of boxes.

    Args:
        dtype: type of the boxes and scores, a float.
        center: whether a box is (x of the center, y of the center, width, height); else (y1, x1, y2, x2) of any two opposite corners.
        filtered: whether boxes are selected only if their score is greater than `least`.
    """
    lines = _FROM_CENTER if center else _CORNERS
    text = _TEXT.format(
        name=f"non_max_suppression_{dtype}{'_center' if center else ''}{'_filtered' if filtered else ''}",
        dtype=dtype,
        zero=f"T.{dtype}(0)",
        overlapping=_OVERLAPPING.format(zero=f"T.{dtype}(0)", one=f"T.{dtype}(1)"),
        candidate="scores[v, p] > least[()]" if filtered else "T.bool(True)",
        corners="\n".join([" " * 24 + line.format(two=f"T.{dtype}(2)") for line in lines]),
    )
    found = parse(text)
    assert isinstance(found, PrimFunc)
    return found
