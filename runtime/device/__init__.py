"""Use devices: arrays in device memory, and modules of device functions."""
