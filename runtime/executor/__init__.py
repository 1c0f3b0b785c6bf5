"""Run compiled models: graph executor, virtual machine and ahead-of-time executor."""
