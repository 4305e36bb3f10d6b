"""The catalogue: workloads by name, each a YAML file with its source."""

from __future__ import annotations

from pathlib import Path

from spbench.workload.load import WorkloadError, load_file, nearest
from spbench.workload.workload import Workload

PACKAGED = Path(__file__).parents[1] / "configs"
CHECKED_OUT = Path(__file__).parents[2] / "configs"


def configs() -> Path:
    """The folder of YAML files: inside an installed package, or beside it in a checkout."""
    return PACKAGED if PACKAGED.is_dir() else CHECKED_OUT


def names(kind: str = "workloads") -> list[str]:
    return sorted(path.stem for path in (configs() / kind).glob("*.yaml"))


def find(name_or_file: str, kind: str = "workloads") -> Workload:
    """A workload of the catalogue, or of a file of one's own. Raises WorkloadError."""
    if name_or_file.endswith((".yaml", ".yml")) or "/" in name_or_file:
        return load_file(Path(name_or_file))
    if name_or_file not in names(kind):
        hint = nearest(name_or_file, names(kind))
        raise WorkloadError(f"unknown workload {name_or_file!r}. {hint}")
    return load_file(configs() / kind / f"{name_or_file}.yaml")
