"""Build and export functions of devices."""
