"""Print lowered functions as portable C11 for CPUs, with the vector extensions of GCC and Clang."""
