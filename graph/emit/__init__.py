"""Turn graph functions into programs of executors."""
