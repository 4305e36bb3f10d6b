"""spbench compares sequence-parallel strategies: proved equal, counted, timed with spread."""

__version__ = "0.1.0"
