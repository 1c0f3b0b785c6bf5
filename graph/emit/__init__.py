"""Emit programs of the graph executor and the virtual machine from lowered graph functions."""
