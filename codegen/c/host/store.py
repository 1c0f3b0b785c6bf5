"""Print stores in C: elements, vectors, and groups that are transposed or interleaved in registers."""

from __future__ import annotations

from tunesmith.codegen.c.host.expr import ExprPrinter
from tunesmith.codegen.c.host.text import Code, call, stored
from tunesmith.codegen.cpu.active_lanes import active_lanes
from tunesmith.codegen.cpu.store_groups import Interleaved, Tile
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.poly import ONE, poly
from tunesmith.ir.stmt import BufferStore
from tunesmith.support import dtype as dt


class StorePrinter(ExprPrinter):
    """Printer of stores.

    Attributes:
        whole: register buffers whose inactive lanes are not used.
    """

    whole: set[Buffer]

    def store(self, n: BufferStore) -> None:
        """Print a store."""
        b, p, lanes, vector = n.buffer, n.indices[0], dt.lanes(n.value.dtype), stored(n.value.dtype)
        self.check_scope(b)
        mask = active_lanes(n.mask, lanes)
        if mask is not None and mask.const == 0:
            return
        self.begin(n.value)
        v = self.bits(n.value)
        self.loads.pop(b, None)
        if b in self.registers:
            place = self.register(b, p, lanes)
            if mask is not None and b not in self.whole:
                bits = dt.bits(dt.element(vector))
                v = call(self.prelude.select(vector), self.first_lanes(mask, bits, lanes), v, place)
            self.line(f"{place} = {v};")
            return
        if lanes == 1:
            self.line(f"{self.base[b]}[{self.index(p)}] = {v};")
            return
        at = self.address(b, p)
        if n.stride is None or n.stride == ONE:
            if mask is None:
                self.line(f"{call(self.prelude.store(vector), at, v)};")
            else:
                self.line(f"{call(self.prelude.store_first(vector), at, self.index(mask), v)};")
            return
        count = poly(lanes) if mask is None else mask
        self.line(f"{call(self.prelude.scatter(vector), at, self.index(n.stride), self.index(count), v)};")

    def store_group(self, group: Tile | Interleaved) -> None:
        """Print stores that are rearranged in registers."""
        first = group.stores[0]
        vector, lanes = stored(first.value.dtype), dt.lanes(first.value.dtype)
        self.check_scope(group.buffer)
        self.begin(*[s.value for s in group.stores])
        values = [self.bits(s.value) for s in group.stores]
        self.loads.pop(group.buffer, None)
        index, count = first.indices[0], len(group.stores)
        if isinstance(group, Interleaved):
            pieces = [(index + lanes * k, group.lanes * count - lanes * k, v) for k, v in enumerate(self._shuffled(values, vector, count))]
        else:
            rows = self._shuffled(values, vector, lanes)
            pieces = [(index + group.stride * k, count, rows[k]) for k in range(group.lanes)]
        for place, number, v in pieces:
            at = self.address(group.buffer, place)
            if number >= lanes:
                self.line(f"{call(self.prelude.store(vector), at, v)};")
            elif number > 0:
                self.line(f"{call(self.prelude.store_first(vector), at, str(number), v)};")

    def _shuffled(self, values: list[Code], vector: str, count: int) -> list[Code]:
        """The vectors after log2(count) perfect shuffles of all their lanes, each of which moves one bit of a vector's number to its lane.

        For as many vectors as lanes this transposes them; for fewer it takes the lanes of all of them in turn.

        Args:
            values: at most `count` vectors.
            vector: their dtype.
            count: a power of two.
        """
        t, lanes, half = self.prelude.type_of(vector), dt.lanes(vector), count // 2
        rows = [self.name(v, t) for v in values]
        rows += [rows[-1]] * (count - len(values))
        picks = [[start + k // 2 + k % 2 * lanes for k in range(lanes)] for start in (0, lanes // 2)]
        for _ in range(count.bit_length() - 1):
            known: dict[tuple[str, str], list[Code]] = {}
            for a, b in zip(rows[:half], rows[half:], strict=True):
                if (a, b) not in known:
                    known[a, b] = [self.name(Code(self.prelude.shuffle(vector, a, b, ids)), t) for ids in picks]
            rows = [x for a, b in zip(rows[:half], rows[half:], strict=True) for x in known[a, b]]
        return rows
