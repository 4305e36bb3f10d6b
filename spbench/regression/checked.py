"""What a check has judged, and where the rows of base and head are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spbench.analysis.verdict import Judgement
from spbench.results.provenance import Provenance, provenance
from spbench.results.reading import latest, read_runs


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A judgement of ``head`` against ``base``, each a run."""

    judgement: Judgement
    base: Path
    head: Path

    def origins(self) -> tuple[Provenance, Provenance]:
        """Where the rows of base and head come from."""
        base, head = (provenance(run, latest(read_runs(run))) for run in (self.base, self.head))
        return base, head
