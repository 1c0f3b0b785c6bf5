"""Fuse calls that share one loop nest into primitive functions (source: TVM's FuseOps; Chen et al., OSDI 2018).

A group is extended from a call to its immediate post-dominator if the kinds of all calls on the paths between them permit it:

    elementwise, broadcast, injective   are fused into an elementwise, broadcast or injective call, or a reduction
    reduction, fusable                  take subsequent elementwise and broadcast calls on results of the same shape, but no casts of bytes
    dequantize                          is fused into a depthwise convolution of its result, which then reads bytes
    opaque                              are never fused

A group has at most MAX_CALLS calls, and none of its expressions becomes too large by inlining (`fused_size`).
Every group has one last call, and only the results of this call are used outside the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import PRIMITIVE, Binding, Call, Constant, Operand, Region, TensorType, with_branches
from tunesmith.graph.ir.operator import BROADCAST, ELEMENTWISE, FUSABLE, GRAPH_OPERATORS, INJECTIVE, OPAQUE, REDUCTION, GraphOperator
from tunesmith.graph.ir.outline import Outlined, users_of
from tunesmith.graph.passes.depthwise import image_of_depthwise
from tunesmith.graph.passes.fused_size import FusedSize
from tunesmith.ir.function import IRModule
from tunesmith.support import dtype as dt
from tunesmith.support.arguments import as_count

MAX_CALLS = 64
"""Maximum number of calls of a group, limited by the registers of a loop nest."""

_POINTWISE = (ELEMENTWISE, BROADCAST)
_MAPS = (ELEMENTWISE, BROADCAST, INJECTIVE)
_ANCHORS = (FUSABLE, REDUCTION)
_QUANTIZED = ("quantize", "dequantize")


def fuse_operators(mod: IRModule, *, most: int = MAX_CALLS) -> IRModule:
    """Move every operator call of the graph functions into a primitive function; equal groups share one function.

    A view (reshape) that is alone in its group is not moved, because it needs no code.  Functions of external code generators are
    unchanged (graph.passes.partition).

    Args:
        mod: the module.
        most: maximum number of calls of a group; 1 disables fusion.
    """
    as_count("most", most, what="fuse_operators needs at least 1 call per group, which disables fusion")
    made = Outlined(mod)
    graphs = {name: f for name, f in mod.items() if isinstance(f, GraphFunc) and not f.is_primitive and f.codegen is None}
    functions = {name: _function(f, made, most) for name, f in graphs.items()}
    return mod.update({**functions, **made.functions})


def _function(func: GraphFunc, made: Outlined, most: int) -> GraphFunc:
    body = _region(func.body, made, most)
    return func if body is func.body else func.with_(body=body)


def _region(region: Region, made: Outlined, most: int) -> Region:
    """Replace each group by a call at the position of its last call; returns the same object if there are no groups."""
    groups = Groups(region, most)
    out: list[Binding] = []
    for i, b in enumerate(region.bindings):
        op = b.operation
        if not isinstance(op, Call):
            out.append(with_branches(b, lambda r: _region(r, made, most)))
        elif i in groups.members:
            members = [region.bindings[j] for j in groups.members[i]]
            is_view = len(members) == 1 and GRAPH_OPERATORS.get(op.operator).view
            out.append(b if is_view else made.call(members, _name(members), (PRIMITIVE, "1"), _literals(members)))
    return Region(tuple(out), region.results) if tuple(out) != region.bindings else region


def _name(bindings: Iterable[Binding]) -> str:
    names = [b.operation.operator for b in bindings if isinstance(b.operation, Call)]
    short = [n for i, n in enumerate(names) if i == 0 or n != names[i - 1]]
    text = "_".join(short[:6]) + ("_etc" if len(short) > 6 else "")
    return f"fused_{text}" if len(names) > 1 else f"op_{text}"


def is_literal(o: Operand) -> bool:
    """Whether an operand is a constant of one element, which programs contain as a number."""
    return isinstance(o, Constant) and o.data.size == 1


def _literals(members: Iterable[Binding]) -> Callable[[Operand], bool]:
    """Which operands of a group programs contain as numbers: not scales and zero points, so that quantised layers share a program."""
    calls = [b.operation for b in members if isinstance(b.operation, Call)]
    scales = {o for call in calls if call.operator in _QUANTIZED for o in call.args[1:] if isinstance(o, Constant) and o.data.any()}
    return lambda o: is_literal(o) and o not in scales


class Groups:
    """Partition the bindings of a region into groups, represented by positions of bindings.

    Args:
        region: the region; bindings that are not operator calls are groups of their own.
        most: maximum number of calls of a group.
    Attributes:
        members: last position of a group -> all its positions, ascending.
    """

    def __init__(self, region: Region, most: int = MAX_CALLS) -> None:
        self.bindings = region.bindings
        self._most = most
        self.members: dict[int, list[int]] = {i: [i] for i in range(len(region.bindings))}
        self._last = list(range(len(region.bindings)))
        self._operators: list[GraphOperator | None] = [
            GRAPH_OPERATORS.get(b.operation.operator) if isinstance(b.operation, Call) else None for b in region.bindings
        ]
        self._users = users_of(region)
        self._size = FusedSize()
        self._dominator = _post_dominators(self._users)
        for anchors in (True, False):
            for i in range(len(region.bindings)):
                self._grow(i, anchors)
        for i in range(len(region.bindings)):
            self._trim(i)

    def _kind(self, i: int) -> str:
        op = self._operators[i]
        return OPAQUE if op is None else op.kind

    def _type(self, i: int) -> TensorType:
        return self.bindings[i].results[0].type

    def _grow(self, i: int, anchors: bool) -> None:
        """Merge the group that ends with `i` with its post-dominator, if all calls between them permit it."""
        goal = self._dominator[i]
        if self._last[i] != i or goal == len(self.bindings) or len(self.bindings[i].results) > 1:
            return
        kinds = {self._kind(j) for j in self.members[i]}
        if OPAQUE in kinds or kinds.isdisjoint(_ANCHORS) == anchors:
            return
        between = self._between(i, goal)
        if any(self._converts_input(j) for j in (*between, goal)):
            return
        if anchors:
            epilogue = (*between, goal)
            allowed = all(self._kind(j) in _POINTWISE and self._type(j).shape == self._type(i).shape for j in epilogue)
            allowed = allowed and not any(self._anchored(j) or self._widens_bytes(j) for j in epilogue)
        else:
            allowed = all(self._kind(j) in _MAPS for j in between) and (self._takes(goal, kinds) or self._is_converted(i))
        if allowed:
            self._join({self._last[j] for j in (i, goal, *between)})

    def _anchored(self, i: int) -> bool:
        return any(self._kind(j) in _ANCHORS for j in self.members[self._last[i]])

    def _widens_bytes(self, i: int) -> bool:
        """Whether the call converts bytes to floats: the function that reads them does so, and a fourth of the memory is written."""
        op = self.bindings[i].operation
        return isinstance(op, Call) and op.operator == "cast" and dt.bits(op.args[0].type.dtype) == 8 and dt.is_float(self._type(i).dtype)

    def _takes(self, goal: int, kinds: set[str]) -> bool:
        """Whether maps of these kinds may be fused into the group of `goal`.

        A reduction takes any map of its operand.  A group with an anchor takes pointwise maps if `goal` is pointwise.
        """
        if self._kind(goal) in _MAPS:
            return not self._anchored(goal) or (self._kind(goal) in _POINTWISE and kinds <= set(_POINTWISE))
        return self._kind(goal) == REDUCTION

    def _converts_input(self, i: int) -> bool:
        """Whether the call dequantises the image of a depthwise convolution, and nothing else reads it: the convolution then reads bytes,
        a fourth of the memory, and converts them where it pads the image."""
        op = self._operators[i]
        if op is None or op.name != "dequantize" or len(self._users[i]) != 1 or self._users[i][0] == len(self.bindings):
            return False
        user = self.bindings[self._users[i][0]].operation
        return isinstance(user, Call) and image_of_depthwise(user) is self.bindings[i].results[0]

    def _is_converted(self, i: int) -> bool:
        """Whether the group that ends with `i` is such a call alone."""
        return self.members[i] == [i] and self._converts_input(i)

    def _between(self, i: int, goal: int) -> set[int]:
        """The positions on all paths from `i` to `goal`, exclusive."""
        found: set[int] = set()
        stack = list(self._users[i])
        while stack:
            j = stack.pop()
            if j != goal and j not in found:
                found.add(j)
                stack += self._users[j]
        return found

    def _join(self, lasts: set[int]) -> None:
        """Merge groups.  Only results of the last call are used outside, because all paths from the other calls pass through it."""
        union = sorted([m for j in lasts for m in self.members[j]])
        if len(union) > self._most or not self._size.fits([self.bindings[m] for m in union]):
            return
        end = union[-1]
        for j in lasts:
            del self.members[j]
        self.members[end] = union
        for m in union:
            self._last[m] = end

    def _trim(self, i: int) -> None:
        """Remove views from both ends of a group of maps: outside they are free, inside they add index divisions."""
        while self._last[i] == i and len(group := self.members[i]) > 1 and not self._anchored(i):
            made = {v for j in group for v in self.bindings[j].results}
            ends = [
                j for j in group if (op := self._operators[j]) and op.view and (j == i or self.bindings[j].operation.args[0] not in made)
            ]
            if not ends:
                return
            for j in ends:
                group.remove(j)
                self.members[j], self._last[j] = [j], j
            if group and i in ends:
                self.members[group[-1]] = group
                for j in group:
                    self._last[j] = group[-1]
                i = group[-1]


def _post_dominators(users: Sequence[Sequence[int]]) -> list[int]:
    """The immediate post-dominator of each node of a DAG in topological order; the position after the last one if there is none."""
    exit = len(users)
    parent, depth = [exit] * exit, [0] * (exit + 1)
    for i in reversed(range(exit)):
        meet = users[i][0] if users[i] else exit
        for u in users[i][1:]:
            while meet != u:
                if depth[meet] >= depth[u]:
                    meet = parent[meet]
                else:
                    u = parent[u]
        parent[i], depth[i] = meet, depth[meet] + 1
    return parent
