"""The script form of TIR: programs as Python text, and back."""
