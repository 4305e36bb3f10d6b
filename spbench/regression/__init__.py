"""Base against head: measured in turn or against a baseline, a verdict, an exit code."""
