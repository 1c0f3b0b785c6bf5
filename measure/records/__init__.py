"""Read and write measurements: records, logs and the record database."""
