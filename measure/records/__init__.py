"""Read and write measurements: records, logs, the database."""
