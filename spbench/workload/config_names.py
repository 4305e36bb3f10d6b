"""Names of workloads, sweeps and clusters: the YAML files of the catalogue, none of them read."""

from pathlib import Path

PACKAGED = Path(__file__).parents[1] / "configs"
CHECKED_OUT = Path(__file__).parents[2] / "configs"


def configs() -> Path:
    """The folder of YAML files: inside an installed package, or beside it in a checkout."""
    return PACKAGED if PACKAGED.is_dir() else CHECKED_OUT


def names(kind: str = "workloads") -> list[str]:
    return sorted(path.stem for path in (configs() / kind).glob("*.yaml"))
