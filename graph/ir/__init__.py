"""Graph functions as data: nodes, operators, script, verifier, interpreter."""
