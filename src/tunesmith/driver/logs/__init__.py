"""Audit, count, prune and merge logs, and import the records of another tuner."""
