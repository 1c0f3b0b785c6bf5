"""Build programs from tensor expressions, and provide the operator library, each operator with its numpy reference."""
