"""Known changes that a check accepts, each with its reason: ``accepted.yaml`` beside the baselines.

The file is small and sorted, so that it can be committed beside the code that it excuses.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field

from spbench.results.hand_over import write_atomically
from spbench.workload.block import Frozen
from spbench.workload.yaml_file import YamlData, parse_mapping, read_mapping, validated

NAME = "accepted.yaml"
MOST_BYTES = 10_000_000
HEAD = "# Changes that 'spbench check' accepts, written by --accept REASON. Remove what is over.\n"


class Accepted(Frozen):
    """One metric of one case that is worse than its base, and may stay so."""

    baseline: str = ""
    """Name of the baseline; blank: it was checked against a commit."""
    run: str = ""
    """The run that the baseline held then: against another one it says nothing."""
    case: str
    workload: str = ""
    strategy: str = ""
    ranks: int = 0
    metric: Literal["status", "time", "memory", "volume"]
    ratio: float | None = None
    """After over before, when it was accepted."""
    high: float | None = None
    """The largest ratio that is still the accepted change: the upper end of its interval."""
    what: str = ""
    """The status, or the bytes and calls that differ."""
    commit: str = ""
    date: str = ""
    reason: str = Field(min_length=1)

    @property
    def place(self) -> tuple[str, str, str]:
        """What the entry is about; a file has one entry for each."""
        return self.baseline, self.case, self.metric


class AcceptedFile(Frozen):
    """What the file holds."""

    accepted: tuple[Accepted, ...] = Field(strict=False)


def read_accepted(folder: Path) -> list[Accepted]:
    """The entries of the folder's file; none without a file. Raises WorkloadError with the line."""
    file = folder / NAME
    if not file.exists():
        return []
    return _entries(read_mapping(file, "a file of accepted changes", MOST_BYTES))


def accepted_in(text: str, where: str) -> list[Accepted]:
    """The entries of a text. Raises WorkloadError."""
    return _entries(parse_mapping(text, where, "a file of accepted changes"))


def _entries(data: YamlData) -> list[Accepted]:
    return list(validated(AcceptedFile, data, {"accepted": Accepted}).accepted)


def write_accepted(folder: Path, entries: Sequence[Accepted]) -> Path:
    """Writes the entries, sorted; of several about one thing the last. Raises OSError."""
    last = {entry.place: entry for entry in entries}
    data = [last[place].model_dump(exclude_defaults=True) for place in sorted(last)]
    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump({"accepted": data}, sort_keys=False, allow_unicode=True, width=100)
    write_atomically(folder / NAME, HEAD + text)
    return folder / NAME
