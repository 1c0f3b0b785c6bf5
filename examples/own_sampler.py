"""Write a sampler in a file: hill climbing from several starting points, and chance.

The command line takes it from its file; nothing is installed:

    tunesmith tune 'matmul(m=128,n=128,k=128)' --sampler examples/own_sampler.py:HillClimber --trials 64

and this file tunes a small operator with it:

    python examples/own_sampler.py
"""

import numpy as np

import tunesmith
from tunesmith.search.samplers.history import History, candidate_of
from tunesmith.search.samplers.sampler import Sampler
from tunesmith.support.seeds import stream


class HillClimber(Sampler):
    """Neighbors of the best candidates so far, and a share of random ones.

    The constructor takes those of `task`, `model` (a cost model) and `seed` that it wants.  Other parameters are settings with default
    values.  `History` remembers what was proposed and measured, so that no candidate is proposed twice.
    """

    def __init__(self, task, seed, starts=4, fresh=0.25):
        self.task, self.seed, self.starts, self.fresh = task, seed, starts, fresh
        self.history = History(task)
        self.round = 0

    def ask(self, n):
        """At most n candidates that were never proposed before.  An empty list ends the search."""
        # A stream of random numbers of its own for each round: equal seeds and equal results give equal proposals.
        rng = stream(self.seed, "hill-climber", self.task.digest, self.round)
        self.round += 1
        batch = []
        climbing = n - round(self.fresh * n)
        for best in self.history.elite(self.starts):
            # A candidate is a sketch of the space, by number, and a row of integers; the sketch's space knows the neighbors of rows.
            space = self.task.space.sketches[best.sketch].space
            for row in space.mutate(np.array([best.row] * n), rng):
                if len(batch) < climbing:
                    self.history.take(candidate_of(best.sketch, row), batch)
        self.history.fill(batch, n, rng)
        return batch

    def tell(self, results):
        """Median seconds of measured candidates, or None for those that failed, including those of an earlier run in the log."""
        self.history.tell(results)


def tune():
    """A search of a small product without a log.  The sampler is asked for `batch` candidates at a time."""
    search = tunesmith.Search(sampler=HillClimber, batch=4, seed=0)
    return tunesmith.tune("matmul(m=64,n=64,k=64)", log=None, budget=8, search=search, progress=False)


def main():
    report = tune()
    task = report.tasks[0]
    print(f"{task.workload}: {task.trials} trials, failed candidates by class: {dict(task.errors)}")
    # Eight trials of one seed compare nothing: docs/arena.md tells how samplers are compared.
    for trial, best in enumerate(task.curve, 1):
        print(f"best after {trial} trials: {'none' if best is None else f'{best * 1e6:.1f} us'}")


if __name__ == "__main__":
    main()
