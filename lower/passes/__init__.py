"""The passes of the lowering pipelines, one a file."""
