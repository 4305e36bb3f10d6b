"""The catalogue: workloads and sweeps by name, each a YAML file with its source."""

from __future__ import annotations

from pathlib import Path

from spbench.workload.load import load_file
from spbench.workload.validation_errors import suggestion
from spbench.workload.workload import Workload
from spbench.workload.yaml_lines import WorkloadError, short

PACKAGED = Path(__file__).parents[1] / "configs"
CHECKED_OUT = Path(__file__).parents[2] / "configs"


def configs() -> Path:
    """The folder of YAML files: inside an installed package, or beside it in a checkout."""
    return PACKAGED if PACKAGED.is_dir() else CHECKED_OUT


def names(kind: str = "workloads") -> list[str]:
    return sorted(path.stem for path in (configs() / kind).glob("*.yaml"))


def find(name_or_file: str, kind: str = "workloads", folder: Path | None = None) -> Workload:
    """A workload of the catalogue, or of the user's file. Raises WorkloadError."""
    return load_file(path_of(name_or_file, kind, folder))


def path_of(name_or_file: str, kind: str, folder: Path | None = None) -> Path:
    """The file of a name in the catalogue, or the named file, relative to ``folder``."""
    if name_or_file.endswith((".yaml", ".yml")) or "/" in name_or_file:
        return (folder or Path()) / name_or_file
    if name_or_file not in names(kind):
        what, other = ("sweep", "workload") if kind == "sweeps" else ("workload", "sweep")
        if name_or_file in names(f"{other}s"):
            use = {"sweep": "'spbench run --sweep'", "workload": "--workload"}[other]
            raise WorkloadError(f"{name_or_file!r} is a {other}; use {use}")
        hint = suggestion(name_or_file, names(kind))
        raise WorkloadError(f"unknown {what} {short(name_or_file)}. {hint}")
    return configs() / kind / f"{name_or_file}.yaml"
