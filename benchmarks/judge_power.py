"""What the judge finds and what it makes up: simulated launches, fixed seeds, no clock.

    python benchmarks/judge_power.py [--trials 2000]

A launch is its own draw: 0.5 % between launches, 1 % between the 50 iterations of one, whose
trimmed mean is the launch's time. Both sides of a round ran next to each other. Exit 1 if a limit
does not hold.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import stats

from spbench.analysis.compare_runs import compare_runs
from spbench.analysis.findings import Finding, Margins
from spbench.analysis.intervals import LEAST_LAUNCHES, quantile
from spbench.regression.sequential import in_stages
from spbench.results.record import Record
from spbench.results.step_time import typical
from spbench.workload.case import Case
from spbench.workload.catalogue import find

BETWEEN, WITHIN, ITERATIONS = 0.005, 0.01, 50
CASE = Case(workload=find("axes-2d", "verify"), strategy="dsp", ranks=2, device="cpu")
ROW = Record.of_case(CASE, run_id="simulated", started_utc="", status="ok")
CHECK = Margins(time=0.03)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Of launches, and how often a neighbour lengthens one, by a fifth to two fifths."""

    between: float = BETWEEN
    disturbed: float = 0.0


def launches(
    rng: np.random.Generator,
    count: int,
    factor: float,
    noise: Noise,
    *,
    first: int = 0,
    case: int = 0,
) -> list[Record]:
    """Rows of one side of one case."""
    centre = 100.0 * factor * np.exp(rng.normal(0, noise.between, count))
    hit = rng.random(count) < noise.disturbed
    centre *= np.where(hit, 1 + rng.uniform(0.2, 0.4, count), 1.0)
    steps = centre[:, None] * np.exp(rng.normal(0, WITHIN, (count, ITERATIONS)))
    row = replace(ROW, strategy=f"strategy-{case}", case=f"{case}")
    return [
        replace(row, launch=first + i, round=f"{first + i}", step_ms=typical(ms))
        for i, ms in enumerate(steps.tolist())
    ]


def apart(rows: list[Record], name: str) -> list[Record]:
    """The same launches as a run of its own, whose rounds are nobody else's."""
    return [replace(row, round=f"{name}{row.round}") for row in rows]


def verdict(before: list[Record], after: list[Record]) -> str:
    """What ``spbench compare A B`` says, with its margin of 2 %."""
    (time,) = (one for one in compare_runs(before, after) if one.metric == "time")
    return time.verdict


@dataclass(kw_only=True)
class Simulated:
    """Two sides of some cases, the first ``changed`` of which differ by ``factor``.

    What is ``kept`` was measured in another hour, and stays as many.
    """

    rng: np.random.Generator
    noise: Noise
    factor: float
    cases: int
    changed: int
    kept: int
    before: list[Record] = field(default_factory=list)
    after: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.kept:
            for case in range(self.cases):
                self.before.extend(apart(self._side(1.0, range(self.kept), case), "stored "))

    def measure(self, numbers: Iterable[int], only: Iterable[str] | None = None) -> None:
        numbers = list(numbers)
        for case in range(self.cases) if only is None else map(int, only):
            if not self.kept:
                self.before.extend(self._side(1.0, numbers, case))
            factor = self.factor if case < self.changed else 1.0
            self.after.extend(self._side(factor, numbers, case))

    def _side(self, factor: float, numbers: Sequence[int], case: int) -> list[Record]:
        first, count = numbers[0], len(numbers)
        return launches(self.rng, count, factor, self.noise, first=first, case=case)

    def findings(self) -> list[Finding]:
        return compare_runs(self.before, self.after, CHECK)

    def baseline_launches(self) -> Mapping[str, int] | None:
        quiet = Counter(row.case for row in self.before if not row.noisy)
        return quiet if self.kept else None


def fails(
    rng: np.random.Generator,
    factor: float,
    noise: Noise,
    *,
    cases: int = 1,
    changed: int = 1,
    count: int = 5,
    is_stored: bool = False,
) -> bool:
    """Whether ``spbench check`` would exit 4, after all its looks."""
    bench = Simulated(
        rng=rng,
        noise=noise,
        factor=factor,
        cases=cases,
        changed=changed,
        kept=count if is_stored else 0,
    )
    return bool(in_stages(bench, count, CHECK, lambda _: None).of("fail"))


def coverage(rng: np.random.Generator, count: int, trials: int) -> dict[str, float]:
    """How often the interval of a ratio that is 1 holds 1, by method."""
    held = {"Student's t": 0, "percentile bootstrap": 0, "BCa bootstrap": 0}
    for _ in range(trials):
        sides = [[row.step_ms or 0.0 for row in launches(rng, count, 1.0, Noise())] for _ in "ab"]
        logs = np.log(sides[1]) - np.log(sides[0])
        half = quantile(count - 1) * logs.std(ddof=1) / count**0.5
        held["Student's t"] += abs(logs.mean()) <= half
        for method in ("percentile", "BCa"):
            found = stats.bootstrap(
                (logs,), np.mean, n_resamples=999, method=method, rng=rng
            ).confidence_interval
            held[f"{method} bootstrap"] += found.low <= 0 <= found.high
    return {name: count / trials for name, count in held.items()}


def rate(trials: int, once: Callable[[], bool]) -> float:
    return sum(once() for _ in range(trials)) / trials


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    trials = parser.parse_args().trials
    rng = np.random.default_rng(20260101)
    quiet, rough = Noise(), Noise(between=0.015, disturbed=0.2)

    def differs(count: int, noise: Noise, *, is_paired: bool) -> bool:
        sides = [launches(rng, count, 1.0, noise) for _ in "ab"]
        before, after = (
            sides if is_paired else [apart(side, n) for n, side in zip("ab", sides, strict=True)]
        )
        return verdict(before, after) in ("faster", "slower")

    def slower(count: int, factor: float) -> bool:
        before, after = launches(rng, count, 1.0, quiet), launches(rng, count, factor, quiet)
        return verdict(before, after) == "slower"

    rows: list[tuple[str, float, float, bool]] = []

    def at_most(limit: float, name: str, once: Callable[[], bool]) -> None:
        found = rate(trials, once)
        rows.append((name, found, limit, found <= limit))

    def at_least(limit: float, name: str, once: Callable[[], bool]) -> None:
        found = rate(trials, once)
        rows.append((name, found, limit, found >= limit))

    for count in (3, 5):
        for is_paired in (True, False):
            how = "in the same rounds" if is_paired else "run apart"
            name = f"A/A called different, {count} launches, {how}"
            at_most(0.01, name, lambda c=count, p=is_paired: differs(c, quiet, is_paired=p))
    at_most(
        0.05,
        "A/A called different, a neighbour in 1 of 5 launches, 5 launches",
        lambda: differs(5, rough, is_paired=True),
    )
    at_least(0.95, "5 % slower found by compare, 5 launches", lambda: slower(5, 1.05))
    at_least(
        0.95, "5 % slower fails the check, margin 3 %, 5 launches", lambda: fails(rng, 1.05, quiet)
    )
    at_least(0.95, "the same in one of 12 cases", lambda: fails(rng, 1.05, quiet, cases=12))
    at_most(0.01, "2 % slower fails the check, margin 3 %", lambda: fails(rng, 1.02, quiet))
    at_least(
        0.95,
        "5 % slower than a stored baseline fails the check",
        lambda: fails(rng, 1.05, quiet, is_stored=True),
    )
    at_most(
        0.01,
        "2 % slower than a stored baseline fails the check",
        lambda: fails(rng, 1.02, quiet, is_stored=True),
    )
    at_most(0.01, "A/A fails the check", lambda: fails(rng, 1.0, quiet))
    at_most(0.01, "A/A of 12 cases fails the check", lambda: fails(rng, 1.0, quiet, cases=12))
    at_most(
        0.01, "A/A fails the check, a neighbour in 1 of 5 launches", lambda: fails(rng, 1.0, rough)
    )
    at_most(0.035, "3 % slower, just the margin, fails the check", lambda: fails(rng, 1.03, quiet))
    at_most(
        0.035,
        "all of 4 cases 3 % slower, any fails the check",
        lambda: fails(rng, 1.03, quiet, cases=4, changed=4),
    )
    print(f"{trials} trials each\n\n| | rate | limit |\n|---|---|---|")
    for name, found, limit, is_kept in rows:
        sign = "at least" if limit > 0.5 else "at most"
        print(f"| {name} | {found:.4f} | {sign} {limit}{'' if is_kept else ' MISSED'} |")
    methods = " | ".join(coverage(rng, LEAST_LAUNCHES, 1))
    print(f"\n| interval of 95 % holds the truth | {methods} |")
    print("|---|---|---|---|")
    for count in (3, 5, 10):
        found = coverage(rng, count, max(trials // 4, 50))
        print(
            f"| {count} launches | " + " | ".join(f"{share:.3f}" for share in found.values()) + " |"
        )
    return 0 if all(is_kept for *_, is_kept in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
