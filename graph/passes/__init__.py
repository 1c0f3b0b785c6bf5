"""Transform modules with graph functions: one pass per file, and the pipelines of the compiler."""
