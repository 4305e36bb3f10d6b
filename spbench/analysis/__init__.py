"""From records to verdicts: no torch, no clock, from the CSV alone."""
