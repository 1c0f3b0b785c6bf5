"""Compare programs tuned once for a range of sizes with programs tuned for each size."""
