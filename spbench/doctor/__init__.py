"""Checks whether a machine is fit: software, GPUs, limits, noise, and ranks that exchange data."""
