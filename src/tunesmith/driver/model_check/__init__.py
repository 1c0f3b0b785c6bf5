"""Compare models before and after a search, and choose schedules by their speed in a model."""
