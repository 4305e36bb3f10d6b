"""Base against head: launched alternately, or head against a baseline, a verdict, an exit code."""
