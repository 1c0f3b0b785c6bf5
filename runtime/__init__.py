"""Layer 1: run deployed programs: devices, compiled modules, threads and timing.  Does not depend on the IR."""
