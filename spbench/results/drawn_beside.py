"""Where what is drawn of a run goes: beside its rows, but never into a baseline."""

from __future__ import annotations

from pathlib import Path

from spbench.results.find_run import RESULTS
from spbench.results.run_json import folder_of_run


def drawn_beside(run: Path, name: str, baselines: Path) -> Path:
    """The path of ``name`` in the folder of a run. Of a CSV file alone it begins with that file's
    name; of a baseline, whose own folder is to be committed, it lies under results/."""
    home = folder_of_run(run)
    if home.resolve().parent == baselines.resolve():
        return RESULTS / f"baseline-{home.name}" / name
    return home / name if home.is_dir() else home.with_name(f"{home.stem}-{name}")
