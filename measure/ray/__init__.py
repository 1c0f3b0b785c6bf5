"""Build and run candidates on the machines of a Ray cluster."""
