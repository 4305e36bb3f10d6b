"""Statistical power and false alarms of the verdict: simulated launches, fixed seeds, no clock.

    python benchmarks/judge_power.py [--trials 2000]

Each launch is drawn: 0.5 % between launches, 1 % between the 50 iterations of a launch, whose
trimmed mean is the launch's time. Base and head of a round ran next to each other. Exit 1 if a
limit does not hold.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from spbench.analysis.compare import MARGIN, Comparison, compare_times
from spbench.analysis.findings import Finding, Margins
from spbench.analysis.intervals import LEAST_LAUNCHES, quantile
from spbench.analysis.launches import Launches
from spbench.regression.base_and_head import in_stages
from spbench.worker.sampling import typical

BETWEEN, WITHIN, ITERATIONS = 0.005, 0.01, 50
CHECK = Margins(time=0.03)
Times = dict[str, float]
"""Milliseconds of launches, by round."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The noise of launches."""

    between: float = BETWEEN
    """Standard deviation of the logarithms of launches."""
    disturbed: float = 0.0
    """Share of launches that a neighbour lengthens, by a fifth to two fifths."""


def launches(
    rng: np.random.Generator, count: int, factor: float, noise: Noise, *, first: int = 0
) -> Times:
    """The launches of one run of one case."""
    centre = 100.0 * factor * np.exp(rng.normal(0, noise.between, count))
    hit = rng.random(count) < noise.disturbed
    centre *= np.where(hit, 1 + rng.uniform(0.2, 0.4, count), 1.0)
    steps = centre[:, None] * np.exp(rng.normal(0, WITHIN, (count, ITERATIONS)))
    return {f"{first + i}": typical(ms) for i, ms in enumerate(steps.tolist())}


def apart(times: Times, name: str) -> Times:
    """The launches as a run that was measured apart, without common rounds."""
    return {f"{name}{round}": ms for round, ms in times.items()}


def compared(before: Times, after: Times, margin: float = MARGIN) -> Comparison:
    """The comparison of two runs of a case."""
    comparison = compare_times(*map(quiet, (before, after)), margin)
    assert comparison is not None
    return comparison


def quiet(times: Times) -> Launches:
    """Launches that are not marked noisy, all on one machine."""
    every = dict.fromkeys(times, True)
    return Launches(
        ms=times, noise={}, setups=dict.fromkeys(times, ()), counting=every, gflop_per_s={}
    )


@dataclass(kw_only=True)
class Simulated:
    """Base and head of some cases, the first ``changed`` of which differ by ``factor``.

    A stored baseline has ``kept`` launches of another hour, and gets no more.
    """

    rng: np.random.Generator
    noise: Noise
    factor: float
    cases: int
    changed: int
    kept: int
    before: dict[str, Times] = field(default_factory=dict)
    after: dict[str, Times] = field(default_factory=dict)
    """Launches of the head, by the number of the case."""

    def __post_init__(self) -> None:
        if self.kept:
            for case in range(self.cases):
                self.before[f"{case}"] = apart(self._launches(1.0, range(self.kept)), "stored ")

    def measure(self, numbers: Iterable[int], only: Iterable[str] | None = None) -> None:
        numbers = list(numbers)
        for case in range(self.cases) if only is None else map(int, only):
            if not self.kept:
                self.before.setdefault(f"{case}", {}).update(self._launches(1.0, numbers))
            factor = self.factor if case < self.changed else 1.0
            self.after.setdefault(f"{case}", {}).update(self._launches(factor, numbers))

    def _launches(self, factor: float, numbers: Sequence[int]) -> Times:
        return launches(self.rng, len(numbers), factor, self.noise, first=numbers[0])

    def findings(self) -> list[Finding]:
        times = {
            case: compared(self.before[case], after, CHECK.time)
            for case, after in self.after.items()
        }
        return [
            Finding(case=case, metric="time", verdict=time.verdict, comparison=time)
            for case, time in times.items()
        ]

    def baseline_launches(self) -> Mapping[str, int] | None:
        return {case: len(times) for case, times in self.before.items()} if self.kept else None


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
    return bool(in_stages(bench, count, CHECK).of("fail"))


def coverage(rng: np.random.Generator, count: int, trials: int) -> dict[str, float]:
    """How often the interval of a ratio that is 1 holds 1, by method."""
    held = {"Student's t": 0, "percentile bootstrap": 0, "BCa bootstrap": 0}
    for _ in range(trials):
        runs = [[*launches(rng, count, 1.0, Noise()).values()] for _ in "ab"]
        logs = np.log(runs[1]) - np.log(runs[0])
        half = quantile(count - 1) * logs.std(ddof=1) / count**0.5
        held["Student's t"] += abs(logs.mean()) <= half
        for method in ("percentile", "BCa"):
            interval = stats.bootstrap(
                (logs,), np.mean, n_resamples=999, method=method, rng=rng
            ).confidence_interval
            held[f"{method} bootstrap"] += interval.low <= 0 <= interval.high
    return {name: count / trials for name, count in held.items()}


def rate(trials: int, once: Callable[[], bool]) -> float:
    return sum(once() for _ in range(trials)) / trials


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    trials = parser.parse_args().trials
    rng = np.random.default_rng(20260101)
    calm, rough = Noise(), Noise(between=0.015, disturbed=0.2)

    def differs(count: int, noise: Noise, *, is_paired: bool) -> bool:
        runs = [launches(rng, count, 1.0, noise) for _ in "ab"]
        before, after = (
            runs if is_paired else [apart(run, n) for n, run in zip("ab", runs, strict=True)]
        )
        return compared(before, after).verdict in ("faster", "slower")

    def slower(count: int, factor: float) -> bool:
        before, after = launches(rng, count, 1.0, calm), launches(rng, count, factor, calm)
        return compared(before, after).verdict == "slower"

    rows: list[tuple[str, float, float, bool]] = []

    def at_most(limit: float, name: str, once: Callable[[], bool]) -> None:
        share = rate(trials, once)
        rows.append((name, share, limit, share <= limit))

    def at_least(limit: float, name: str, once: Callable[[], bool]) -> None:
        share = rate(trials, once)
        rows.append((name, share, limit, share >= limit))

    for count in (3, 5):
        for is_paired in (True, False):
            how = "in the same rounds" if is_paired else "run apart"
            name = f"A/A called different, {count} launches, {how}"
            at_most(0.01, name, lambda c=count, p=is_paired: differs(c, calm, is_paired=p))
    at_most(
        0.05,
        "A/A called different, a neighbour in 1 of 5 launches, 5 launches",
        lambda: differs(5, rough, is_paired=True),
    )
    at_least(0.95, "5 % slower detected by compare, 5 launches", lambda: slower(5, 1.05))
    at_least(
        0.95, "5 % slower fails the check, margin 3 %, 5 launches", lambda: fails(rng, 1.05, calm)
    )
    at_least(
        0.95,
        "5 % slower in one of 12 cases fails the check",
        lambda: fails(rng, 1.05, calm, cases=12),
    )
    at_most(0.01, "2 % slower fails the check, margin 3 %", lambda: fails(rng, 1.02, calm))
    at_least(
        0.95,
        "5 % slower than a stored baseline fails the check",
        lambda: fails(rng, 1.05, calm, is_stored=True),
    )
    at_most(
        0.01,
        "2 % slower than a stored baseline fails the check",
        lambda: fails(rng, 1.02, calm, is_stored=True),
    )
    at_most(0.01, "A/A fails the check", lambda: fails(rng, 1.0, calm))
    at_most(0.01, "A/A of 12 cases fails the check", lambda: fails(rng, 1.0, calm, cases=12))
    at_most(
        0.01, "A/A fails the check, a neighbour in 1 of 5 launches", lambda: fails(rng, 1.0, rough)
    )
    at_most(0.035, "3 % slower, just the margin, fails the check", lambda: fails(rng, 1.03, calm))
    at_most(
        0.035,
        "all of 4 cases 3 % slower, any fails the check",
        lambda: fails(rng, 1.03, calm, cases=4, changed=4),
    )
    print(f"{trials} trials each\n\n| | rate | limit |\n|---|---|---|")
    for name, share, limit, is_kept in rows:
        sign = "at least" if limit > 0.5 else "at most"
        print(f"| {name} | {share:.4f} | {sign} {limit}{'' if is_kept else ' MISSED'} |")
    methods = " | ".join(coverage(rng, LEAST_LAUNCHES, 1))
    print(f"\n| interval of 95 % holds the truth | {methods} |")
    print("|---|---|---|---|")
    for count in (3, 5, 10):
        shares = coverage(rng, count, max(trials // 4, 50)).values()
        print(f"| {count} launches | " + " | ".join(f"{share:.3f}" for share in shares) + " |")
    return 0 if all(is_kept for *_, is_kept in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
