"""Collect the passes of the lowering pipelines, one per file."""
