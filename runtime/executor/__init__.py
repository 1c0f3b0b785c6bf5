"""Run compiled models: graph, virtual machine and ahead-of-time executors."""
