"""Checks whether a machine is fit: software, GPUs, cores, memory, and ranks that exchange data."""
