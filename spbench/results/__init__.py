"""Records and where they are kept. No torch."""
