"""Schedule programs with recorded primitives, in concrete or parametric mode."""
