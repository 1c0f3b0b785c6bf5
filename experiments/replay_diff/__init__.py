"""Compare what two versions of the sources make of a fixed corpus."""
