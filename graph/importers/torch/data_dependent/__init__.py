"""Convert the parts of torch programs that depend on the elements of tensors: numbers and sizes from data, and loops."""
