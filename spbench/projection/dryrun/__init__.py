"""What a rank does and holds in a step, by running the strategy's own code without data."""
