"""Parts that the code generators of CPUs share: arenas, masks, order of evaluation, groups of stores, C headers."""
