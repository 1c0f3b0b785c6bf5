"""Check a GPU: correctness, tuning and comparison with torch."""
