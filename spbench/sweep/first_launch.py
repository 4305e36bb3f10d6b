"""What the launches of a run say of a workload's numbers, which no one device could compute.

Strategies compute the same. So the fingerprint of each case's first launch that succeeds stays in
the run's folder, and the launches of a workload are held against each other, also in a run that is
resumed. Where two strategies disagree nobody knows which is wrong, and neither counts: their rows
are followed by ``wrong_result``, which is the last and holds. Once a third strategy agrees with one
of them, or one device tells, the rows of the right one are written once more, with its figures.

    dsp           ok                     wrong_result (ulysses differs)     ok (ring agrees)
    ulysses                 ok, then at once wrong_result                   wrong_result
    ring                                                        ok
"""

import contextlib
import functools
import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import spbench
from spbench.launch.cluster import source_digest
from spbench.results.agreement import TOLERANCE, Difference, Fingerprint, farthest, noise_floor
from spbench.results.hand_over import Sample, read_json, write_atomically
from spbench.results.record import COLUMNS, Record
from spbench.strategies.registry import UnknownStrategyError, module_of
from spbench.text import counted
from spbench.workload.case import Case

FOLDER = "fingerprints"
SCHEME = 2
"""How weights and inputs are seeded and signs are drawn: others are not comparable."""
ONE_DEVICE = "one device"
NOT_TOLD = "one of the two launches is wrong, and neither counts until a third strategy, or one "
NOT_TOLD += "device, tells which"
TIMES = (
    *("step_ms", "step_ms_p10", "step_ms_p90", "step_ms_low", "step_ms_high", "iterations"),
    *("samples_per_s", "tokens_per_s", "tokens_per_s_per_rank", "tflops_per_rank", "mfu"),
    *("compute_ms", "exposed_comm_ms", "exposed_comm_ms_low", "exposed_comm_ms_high"),
    *("hidden_comm_ms", "exposed_gb_per_s", "issue_ms"),
)
"""Columns that a row loses which does not count."""


class KeptLaunch(BaseModel, frozen=True):
    """A case's first launch that succeeded, as the run's folder keeps it."""

    scheme: int = SCHEME
    case: str
    """The case's key."""
    strategy: str
    ranks: int
    device_name: str
    torch: str
    code: str = ""
    """Digest of spbench and of the strategy's module."""
    is_proved: bool = False
    """Whether one device could compute the whole workload, and agrees."""
    fingerprint: Fingerprint

    @property
    def label(self) -> str:
        return f"{self.strategy} on {counted(self.ranks, 'rank')}"

    @property
    def drawn_by(self) -> tuple[Any, ...]:
        """What random numbers depend on: another GPU or torch draws others."""
        return self.scheme, self.device_name, self.torch


class KeptLaunches(BaseModel, frozen=True):
    """All cases of a workload, in the order of their first launches."""

    dtype: str
    launches: list[KeptLaunch]
    withheld: list[dict[str, Any]] = []
    """Rows of launches that do not count, as they are if they are told right."""

    def apart(self, one: KeptLaunch, other: KeptLaunch) -> Difference:
        """The tensor in which two launches differ most."""
        tolerances = dict.fromkeys(one.fingerprint, TOLERANCE[self.dtype])
        floor = noise_floor(other.fingerprint, self.dtype)
        return farthest(one.fingerprint, other.fingerprint, tolerances, floor)

    @property
    def camps(self) -> list[list[KeptLaunch]]:
        """Launches that agree with each other."""
        camps: list[list[KeptLaunch]] = []
        for launch in self.launches:
            for camp in camps:
                if self.apart(launch, camp[0]).excess <= 1:
                    camp.append(launch)
                    break
            else:
                camps.append([launch])
        return camps

    @property
    def right(self) -> list[KeptLaunch] | None:
        """The camp that is right: the only one, the one that one device is in, or that of the most
        strategies, at least two; None: it is not told."""
        camps = self.camps
        if len(camps) == 1:
            return camps[0]
        proved = [camp for camp in camps if any(launch.is_proved for launch in camp)]
        if proved:
            return proved[0] if len(proved) == 1 else None
        # Forms of one strategy, ring and ring:half-gradients, are wrong together.
        votes = [len({launch.strategy.partition(":")[0] for launch in camp}) for camp in camps]
        most = max(votes)
        return camps[votes.index(most)] if most > 1 and votes.count(most) == 1 else None

    def verdict(self, launch: KeptLaunch) -> "Agreement | None":
        """What the others say of a launch; None: there is nothing to compare it with, or one device
        was compared with already."""
        if launch.is_proved or len(self.launches) == 1:
            return None
        right = self.right
        if right is not None and launch in right:
            other = next(agreed for agreed in right if agreed.case != launch.case)
            return Agreement(far=self.apart(launch, other), agreed_with=other.label)
        other = (right or next(camp for camp in self.camps if launch not in camp))[0]
        far = self.apart(launch, other)
        differs = far.in_words(f"in the first step differs from that of {other.label}")
        with_it = [agreed.label for agreed in right or () if agreed.strategy != other.strategy]
        told = f"{', '.join(with_it)} agrees with the latter" if with_it else "one device tells"
        why = f"{differs}: {told if right else NOT_TOLD}"
        return Agreement(far=far, agreed_with=other.label, why_wrong=why)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far a launch is from another one, and whether it is wrong."""

    far: Difference
    agreed_with: str
    why_wrong: str | None = None
    is_of_launch: bool = False
    """Whether the launch differs from the first one of its own case."""

    @property
    def columns(self) -> dict[str, Any]:
        return {"agreement_error": self.far.relative, "agreed_with": self.agreed_with}


def compare_with_first(folder: Path, case: Case, samples: Sequence[Sample]) -> Agreement | None:
    """How far the launch is from another of its workload.

    A case's first launch is kept, until its code changes: a defect that was mended must not make
    later launches wrong.

    Parameters
    ----------
    folder
        The run's folder.
    case
        What was launched.
    samples
        What its ranks wrote.

    Returns
    -------
    None where there is nothing to compare, or one device was compared with already.
    """
    sample = next((sample for sample in samples if sample.fingerprint), None)
    if sample is None or sample.fingerprint is None:
        return None
    mine = KeptLaunch(
        case=case.key,
        strategy=case.name,
        ranks=case.ranks,
        device_name=sample.device_name,
        torch=sample.versions.get("torch", ""),
        code=_code_of(case.strategy),
        is_proved=sample.agreed_with == ONE_DEVICE,
        fingerprint=sample.fingerprint,
    )
    path = _path(folder, case)
    kept = _kept(path, case.workload.dtype)
    others = [launch for launch in kept.launches if launch.drawn_by == mine.drawn_by]
    first = next((launch for launch in others if launch.case == mine.case), None)
    if first is None:
        launches = [*(launch for launch in kept.launches if launch.case != mine.case), mine]
        kept = kept.model_copy(update={"launches": launches})
        with contextlib.suppress(OSError):  # a disk that is full shows when the row is written
            _write(path, kept)
        return kept.model_copy(update={"launches": [*others, mine]}).verdict(mine)
    far = kept.apart(mine, first)
    if far.excess > 1 and not mine.is_proved:
        why = far.in_words("in the first step differs from that of the case's first launch")
        return Agreement(far=far, agreed_with=first.label, why_wrong=why, is_of_launch=True)
    return kept.model_copy(update={"launches": others}).verdict(first)


def is_disputed(folder: Path, case: Case) -> bool:
    """Whether launches of its workload disagree, or did when the last one ended."""
    kept = _kept(_path(folder, case), case.workload.dtype)
    return bool(kept.withheld) or len(kept.camps) > 1


def revised(folder: Path, case: Case, rows: Sequence[Record]) -> list[Record]:
    """Rows to write behind ``rows``, the latest of a run, after a launch of ``case``: those of its
    workload that do not count any more, or count again."""
    path = _path(folder, case)
    kept = _kept(path, case.workload.dtype)
    withheld = {_launch_of(row): _record(row) for row in kept.withheld}
    changed: list[Record] = []
    for launch in kept.launches:
        same = [other for other in kept.launches if other.drawn_by == launch.drawn_by]
        verdict = kept.model_copy(update={"launches": same}).verdict(launch)
        for row in (row for row in rows if row.case == launch.case):
            key = _launch_of(vars(row))
            if verdict is not None and verdict.why_wrong:
                if row.status == "ok":
                    withheld[key] = row  # as it is if it is told right
                # A row that says the same already is not written again.
                if key in withheld and verdict.why_wrong != row.reason:
                    changed.append(_wrong(row, verdict))
            elif key in withheld and row.status != "ok":
                told = verdict.columns if verdict is not None else {}
                changed.append(replace(withheld.pop(key), **told))
    if changed:
        left = [vars(row) for row in withheld.values()]
        _write(path, kept.model_copy(update={"withheld": left}))
    return changed


def _wrong(row: Record, verdict: Agreement) -> Record:
    """The row without the figures of a step that nobody has proved."""
    blank: dict[str, Any] = dict.fromkeys(TIMES)
    why: dict[str, Any] = {"status": "wrong_result", "reason": verdict.why_wrong}
    return replace(row, **blank, **why, **verdict.columns)


def _record(row: Mapping[str, Any]) -> Record:
    """A row that was withheld, by whichever version of spbench."""
    return Record(**{name: value for name, value in row.items() if name in COLUMNS})


def _launch_of(row: Mapping[str, Any]) -> tuple[str, int]:
    """The case's key, and the launch's number."""
    return row["case"], row["launch"]


def _path(folder: Path, case: Case) -> Path:
    return folder / FOLDER / f"{case.workload_key}-{case.device}-seed{case.seed}.json"


def _kept(path: Path, dtype: str) -> KeptLaunches:
    """What the folder has of a workload, without launches whose code has changed."""
    kept = read_json(path, KeptLaunches) or KeptLaunches(dtype=dtype, launches=[])
    launches = [launch for launch in kept.launches if launch.code == _code_of(launch.strategy)]
    return kept.model_copy(update={"launches": launches})


def _write(path: Path, kept: KeptLaunches) -> None:
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, kept.model_dump_json())


@functools.cache
def _code_of(strategy: str) -> str:
    """Equal for equal code of spbench and of this strategy, which may be a plug-in's."""
    try:
        spec = importlib.util.find_spec(module_of(strategy.partition(" ")[0]))  # without its mesh
    except (ImportError, UnknownStrategyError, ValueError):
        return ""
    plug_in = Path(spec.origin).read_bytes() if spec and spec.origin else b""
    package = source_digest(Path(spbench.__file__).parent)
    return f"{package} {hashlib.sha256(plug_in).hexdigest()[:12]}"
