"""Schedule functions that have no tuning record."""
