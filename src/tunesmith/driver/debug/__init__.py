"""Keep and compare the intermediate results of models."""
