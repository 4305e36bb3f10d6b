"""What strategies are made of: projections, the attention kernel, heads and rings."""
