"""Rank 6: graph IR, importers, graph passes, task extraction, record replay."""
