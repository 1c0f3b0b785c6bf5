"""A runner that counts how its candidates ended."""

from collections import Counter

from tunesmith.measure.runner import Runner


class CountingRunner(Runner):
    def __init__(self, inner):
        self.inner, self.slots, self.counts = inner, inner.slots, Counter()

    def run(self, requests):
        results = self.inner.run(requests)
        self.counts.update("ran" if r.error is None else r.error.kind for r in results)
        return results

    def compare(self, requests, policy):
        return self.inner.compare(requests, policy)

    def close(self):
        self.inner.close()
