"""A builder that builds equal candidates once."""

from tunesmith.measure.builder import Builder


class CachingBuilder(Builder):
    def __init__(self, inner):
        self.inner, self.slots, self.known = inner, inner.slots, {}

    def build(self, requests):
        new = list(dict.fromkeys(r for r in requests if r not in self.known))
        results = dict(zip(new, self.inner.build(new), strict=True))
        self.known |= {r: built for r, built in results.items() if built.error is None}  # a timeout may succeed later
        return [self.known.get(r) or results[r] for r in requests]

    def close(self):
        self.known.clear()
        self.inner.close()
