"""Define the command line, one file per command group."""
