"""spbench compares sequence-parallel strategies: proved equal, counted, timed with spread.

``read_runs`` and ``read_samples`` give a results directory to a notebook, as DataFrames, and
``plot`` draws it. ``SequenceGroup`` makes a model of your own parallel, and ``prove`` compares it
with one device; it returns a ``Proof`` or raises ``ProofError``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spbench.own_model.module_step import ProofError
    from spbench.own_model.prove import Proof, prove
    from spbench.own_model.sequence_group import SequenceGroup
    from spbench.report.notebook_plot import plot
    from spbench.results.runs_csv import read_runs
    from spbench.results.samples import read_samples

__all__ = [
    "Proof",
    "ProofError",
    "SequenceGroup",
    "__version__",
    "plot",
    "prove",
    "read_runs",
    "read_samples",
]
__version__ = "0.1.0"
HOMES = {
    "Proof": "spbench.own_model.prove",
    "ProofError": "spbench.own_model.module_step",
    "SequenceGroup": "spbench.own_model.sequence_group",
    "plot": "spbench.report.notebook_plot",
    "prove": "spbench.own_model.prove",
    "read_runs": "spbench.results.runs_csv",
    "read_samples": "spbench.results.samples",
}
"""Where each public name is defined."""


def __getattr__(name: str) -> Any:
    """torch and pandas are loaded when a name that needs them is first asked for."""
    if name in HOMES:
        return getattr(import_module(HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
