"""Rank 2: tensor expressions, and the operator library, each operator with its numpy reference."""
