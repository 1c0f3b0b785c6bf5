"""Format results as tables, progress views and reports for terminals."""
