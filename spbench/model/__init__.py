"""The transformer, written once, blind to ranks and strategies."""
