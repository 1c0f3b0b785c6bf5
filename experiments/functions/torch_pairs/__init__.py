"""Define each function twice, in tensor expressions and in torch, one family a file."""
