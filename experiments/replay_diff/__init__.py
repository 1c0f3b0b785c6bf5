"""Compare the compiler output of two source versions on a fixed corpus."""
