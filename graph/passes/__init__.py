"""Transform modules with graph functions; one pass per file."""
