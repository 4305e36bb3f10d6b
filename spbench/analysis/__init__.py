"""Records to what they say: no torch, no clock, made from the CSV alone."""
