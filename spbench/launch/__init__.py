"""Starts, watches and ends ranks. No torch in the parent."""
