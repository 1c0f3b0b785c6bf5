"""The operators of graph functions, a file for each family; see `graph.ir.operator`."""
