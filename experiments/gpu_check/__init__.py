"""Check a GPU: correctness, tuning and a comparison with torch."""
