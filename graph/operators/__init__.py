"""Define the operators of graph functions, one file for each family; see `graph.ir.operator`."""
