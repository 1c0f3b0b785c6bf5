"""Tables, progress bars and reports for terminals."""
