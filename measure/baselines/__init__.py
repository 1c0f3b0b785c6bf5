"""Other people's libraries behind one contract, for honest comparisons: one file per library, imported only when it is asked for."""
