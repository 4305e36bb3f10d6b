"""spbench compares sequence-parallel strategies: proved equal, counted, timed with spread.

``read_runs`` and ``read_samples`` give a results directory to a notebook, as DataFrames.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spbench.results.iterations import read_samples
    from spbench.results.reading import read_runs

__all__ = ["__version__", "read_runs", "read_samples"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """pandas is loaded when a function that needs it is first asked for."""
    if name == "read_runs":
        from spbench.results.reading import read_runs

        return read_runs
    if name == "read_samples":
        from spbench.results.iterations import read_samples

        return read_samples
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
