"""Define the argsort of rows whose length is unknown at compile time, as a function with loops: a merge sort from below.

`ops.ordering` sorts by tensor expressions, which have a fixed number of steps, so it compares all pairs of an axis of unknown length.
"""

from __future__ import annotations

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.support import dtype as dt

_TEXT = """
@T.prim_func
def {name}(X: T.Buffer((rows, n), "{dtype}"), I: T.Buffer((rows, n), "int64"), rows: T.int64, n: T.int64):
    A = T.alloc_buffer((rows, n), "int64")
    for r in T.parallel(rows):
        with T.block("order"):
            v = T.axis.spatial(rows, r)
            w = T.allocate((1,), "int64", scope="register")
            low = T.allocate((1,), "int64", scope="register")
            mid = T.allocate((1,), "int64", scope="register")
            high = T.allocate((1,), "int64", scope="register")
            i = T.allocate((1,), "int64", scope="register")
            j = T.allocate((1,), "int64", scope="register")
            k = T.allocate((1,), "int64", scope="register")
            left = T.allocate((1,), "bool", scope="register")
            for q in T.serial(n):
                I[v, q] = T.index(q)
            w[0] = T.int64(1)
            while w[0] < T.index(n):
                for q in T.serial(n):
                    A[v, q] = I[v, q]
                low[0] = T.int64(0)
                while low[0] < T.index(n):
                    mid[0] = T.min(low[0] + w[0], T.index(n))
                    high[0] = T.min(mid[0] + w[0], T.index(n))
                    i[0] = low[0]
                    j[0] = mid[0]
                    k[0] = low[0]
                    while k[0] < high[0]:
                        left[0] = i[0] < mid[0]
                        if left[0] and j[0] < high[0]:
                            with T.lookup(i[0], n) as a:
                                with T.lookup(j[0], n) as b:
                                    with T.lookup(A[v, a], n) as p:
                                        with T.lookup(A[v, b], n) as q:
                                            left[0] = {keep}
                        if left[0]:
                            with T.lookup(k[0], n) as t:
                                I[v, t] = T.lookup(i[0], n, lambda a: A[v, a])
                            i[0] = i[0] + T.int64(1)
                        else:
                            with T.lookup(k[0], n) as t:
                                I[v, t] = T.lookup(j[0], n, lambda b: A[v, b])
                            j[0] = j[0] + T.int64(1)
                        k[0] = k[0] + T.int64(1)
                    low[0] = high[0]
                w[0] = w[0] * T.int64(2)
"""


def sort_rows(dtype: str, *, descending: bool = False) -> PrimFunc:
    """The function of a matrix X and of the indices I, int64, that sort each of its rows; equal elements keep their order.

    NaN counts as the greatest number.  The number of the rows and their length are parameters after the buffers; both may be 0.

    Args:
        dtype: type of the elements, a number.
        descending: the greatest first.
    """
    first, second = ("X[v, p]", "X[v, q]")
    if not dt.is_float(dtype):
        keep = f"{first} {'>=' if descending else '<='} {second}"
    elif descending:
        keep = f"{first} >= {second} or T.isnan({first})"
    else:
        keep = f"{first} <= {second} or T.isnan({second})"
    name = f"sort_rows_{dtype}{'_descending' if descending else ''}"
    found = parse(_TEXT.format(name=name, dtype=dtype, keep=keep))
    assert isinstance(found, PrimFunc)
    return found
