"""The first launch of a run on a workload, which all others of that workload must agree with.

Where one device could not run the whole workload nobody knows its right numbers. But strategies
compute the same, so the fingerprint of the first launch that succeeds stays in the run's folder,
and each later launch is compared with it, also of a run that is resumed.
"""

import contextlib
import functools
import hashlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import spbench
from spbench.launch.cluster import source_digest
from spbench.results.agreement import TOLERANCE, Difference, Fingerprint, farthest, noise_floor
from spbench.results.sample import Sample, read_json, write_atomically
from spbench.strategies.registry import UnknownStrategyError, module_of
from spbench.text import counted
from spbench.workload.case import Case

FOLDER = "fingerprints"
SCHEME = 2
"""How weights and inputs are seeded and signs are drawn: others are not comparable."""


class KeptLaunch(BaseModel, frozen=True):
    """The first launch that succeeded, as the run's folder keeps it."""

    scheme: int = SCHEME
    strategy: str
    ranks: int
    device_name: str
    torch: str
    code: str = ""
    """Digest of spbench and of the strategy's module."""
    fingerprint: Fingerprint


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far a launch is from the first one."""

    far: Difference
    agreed_with: str

    @property
    def columns(self) -> dict[str, Any]:
        return {"agreement_error": self.far.relative, "agreed_with": self.agreed_with}

    @property
    def why_wrong(self) -> str | None:
        """Which tensor is too far off; two strategies cannot tell which of them it is."""
        if self.far.excess <= 1:
            return None
        far = self.far.in_words(f"in the first step differs from that of {self.agreed_with}")
        return f"{far}: one of the two launches is wrong"


def compare_with_first(folder: Path, case: Case, samples: Sequence[Sample]) -> Agreement | None:
    """How far the launch is from the first of its workload; None where there is nothing to compare,
    or one device was compared with already. A first launch is kept, until its code changes: a
    defect that was mended must not make later launches wrong."""
    sample = next((sample for sample in samples if sample.fingerprint), None)
    if sample is None or sample.fingerprint is None:
        return None
    mine = KeptLaunch(
        strategy=case.strategy,
        ranks=case.ranks,
        device_name=sample.device_name,
        torch=sample.versions.get("torch", ""),
        code=_code_of(case.strategy),
        fingerprint=sample.fingerprint,
    )
    path = folder / FOLDER / f"{case.workload_key}-{case.device}-seed{case.seed}.json"
    first = read_json(path, KeptLaunch)
    if first is None or first.code != _code_of(first.strategy):
        with contextlib.suppress(OSError):  # a disk that is full shows when the row is written
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, mine.model_dump_json())
        return None
    # Another GPU or torch draws other random numbers, so that weights differ.
    drawn_by = [(x.scheme, x.device_name, x.torch) for x in (first, mine)]
    if sample.agreed_with or drawn_by[0] != drawn_by[1]:
        return None
    dtype = case.workload.dtype
    tolerances = dict.fromkeys(mine.fingerprint, TOLERANCE[dtype])
    floor = noise_floor(first.fingerprint, dtype)
    far = farthest(mine.fingerprint, first.fingerprint, tolerances, floor)
    return Agreement(far=far, agreed_with=f"{first.strategy} on {counted(first.ranks, 'rank')}")


@functools.cache
def _code_of(strategy: str) -> str:
    """Equal for equal code of spbench and of this strategy, which may be a plug-in's."""
    try:
        found = importlib.util.find_spec(module_of(strategy))
    except (ImportError, UnknownStrategyError, ValueError):
        return ""
    plug_in = Path(found.origin).read_bytes() if found and found.origin else b""
    package = source_digest(Path(spbench.__file__).parent)
    return f"{package} {hashlib.sha256(plug_in).hexdigest()[:12]}"
