"""Derive schedules for any graph of blocks: groups of blocks that share outer loops, and a structure for each block."""
