"""whole_rows: a search rule: one elementwise stage, parallel over all but its vectors."""

from tunesmith.ir.visit import blocks_under


def sketches(func, target):
    blocks = blocks_under(func.body)
    if len(blocks) != 1 or any(i.kind == "R" for i in blocks[0].iters):
        return []

    def schedule(s):
        loops = s.get_loops(s.get_block(blocks[0].name))
        lanes = s.sample_tile(loops[-1], 2, "lanes", [(4, 8, 16, 32)], waste=1.0)
        outer, inner = s.split(loops[-1], [None, *lanes])
        s.vectorize(inner)
        s.parallel(s.fuse([*loops[:-1], outer]))

    return [("whole rows", schedule)]
