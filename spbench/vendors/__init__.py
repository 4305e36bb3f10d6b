"""Strategies that are other packages' own code: one adapter a file."""
