"""Parse and print TIR as Python script."""
