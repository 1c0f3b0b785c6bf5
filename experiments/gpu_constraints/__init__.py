"""Compare the constraints of GPU sketches with the CUDA compiler's figures."""
