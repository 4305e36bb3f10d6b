"""The times of one case before and after: which launches count, and what follows from them.

Faster or slower only where the ratio's interval lies wholly outside the margin, the same only
where it lies wholly inside; else inconclusive, with the launches that a verdict takes.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from spbench.analysis.comparable import mismatch
from spbench.analysis.intervals import LEAST_LAUNCHES, Ratio, paired_rounds, ratio
from spbench.analysis.launches import (
    Launches,
    counts_in_words,
    launches_in_words,
    on_processors,
    product_ratio,
)

MARGIN = 0.02
"""Default margin: times that differ by less are the same."""
PROJECTED = "projected, without launches: 'spbench recommend' says how sure a difference is"

Verdict = Literal["faster", "same", "slower", "inconclusive", "not comparable"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The time after as a multiple of the time before: above 1 is slower."""

    verdict: Verdict
    before_ms: float | None = None
    """Geometric mean of the launches before that were compared."""
    after_ms: float | None = None
    """``before_ms`` times the ratio: the geometric mean of the launches after."""
    ratio: float | None = None
    """Mean of the launches' ratios; None where they are not comparable."""
    low: float | None = None
    """Lower end of the ratio's interval; None with fewer than three launches."""
    high: float | None = None
    """Upper end of the ratio's interval."""
    launches: int = 0
    """Launches that were compared, before or after, whichever are fewer."""
    counts: tuple[int, int] = (0, 0)
    """Launches that were compared, before and after."""
    paired: bool = False
    """Whether the launches before and after ran next to each other, in the same rounds."""
    needs: int | None = None
    """Launches before and after that a verdict would take, if ratio and spread stay the same."""
    estimate: Ratio | None = None
    """The estimate that interval and verdict are computed from."""
    p_slower: float = 1.0
    """One-sided probability of so high a ratio where the true one is just within the margin."""
    is_noisy: bool = False
    """Whether there is no verdict, as too few launches were quiet: of runs that were measured
    apart, or of one of two whose launches alternated."""
    noise: tuple[str, str] = ("", "")
    """What disturbed launches that count, before and after, unless the two alternated."""
    reason: str = ""
    processors: float | None = None
    """Time of a fixed product on the processors after, over that before; None on GPUs."""

    @property
    def blames_launches(self) -> bool:
        """Whether ``reason`` names what disturbed launches, as that keeps the verdict open."""
        return self.verdict == "inconclusive" and self.is_noisy and any(self.noise)

    @property
    def blames_processors(self) -> bool:
        """Whether ``reason`` names the speed of processors, as that may explain the difference."""
        return self.verdict == "inconclusive" and self.is_noisy and not any(self.noise)


def compare_times(
    before: Launches, after: Launches, margin: float = MARGIN, *, allow_mismatch: bool = False
) -> Comparison | None:
    """Compares the launches that count; None where no time is known before or after."""
    old, new, noise = _compared(before, after)
    estimate = ratio(old.ms, new.ms)
    if estimate is None:
        return None
    why_not = mismatch(old.setups.values(), new.setups.values())
    if estimate.is_paired:
        rounds = paired_rounds(old.ms, new.ms)
        old, new = old.only(rounds), new.only(rounds)
    else:
        noise = noise or _noise_of_processors(old, new, estimate, margin)
    return _comparison(old, new, estimate, margin, noise, why_not, allow_mismatch=allow_mismatch)


def compare_side_by_side(
    before: Launches, after: Launches, margin: float = MARGIN
) -> Comparison | None:
    """Compares two cases of one run by all of their launches that count: their times' ratio. No
    verdict where one of these launches was noisy; None as above."""
    old, new = before.that_count, after.that_count
    estimate = ratio(old.ms, new.ms, of_all=True)
    if estimate is None:
        return None
    why_not = mismatch(old.setups.values(), new.setups.values())
    return _comparison(old, new, estimate, margin, old.first_noise or new.first_noise, why_not)


def _comparison(
    old: Launches,
    new: Launches,
    estimate: Ratio,
    margin: float,
    noise: str,
    why_not: str,
    *,
    allow_mismatch: bool = False,
) -> Comparison:
    """The comparison; ``why_not``: why it gives no verdict, or not even a ratio."""
    alternated = estimate.is_paired and old.ms != new.ms and not noise
    noises = ("", "") if alternated else (old.first_noise, new.first_noise)
    facts: dict[str, Any] = {"before_ms": old.mean_ms, "after_ms": new.mean_ms, "noise": noises}
    if why_not:
        facts |= {"verdict": "not comparable", "reason": why_not}
    if why_not and not allow_mismatch:
        return Comparison(**facts)
    facts["after_ms"] = facts["before_ms"] * estimate.value
    facts["processors"] = product_ratio(old, new)
    if any("projected" in setup for setup in new.setups.values()):
        facts |= {"reason": why_not or PROJECTED, "launches": 0, "needs": None}
    return replace(_judged(estimate, margin, noise, (len(old.ms), len(new.ms))), **facts)


def _compared(before: Launches, after: Launches) -> tuple[Launches, Launches, str]:
    """The launches before and after to compare, and the noise that forbids a verdict.

    In rounds the two alternate, in an order that favours neither: noise that meets both widens
    the interval and shifts nothing, so noisy rounds count where too few are quiet. Runs that were
    measured apart may have been disturbed apart, and there only quiet launches give a verdict.
    """
    shared = set(paired_rounds(before.ms, after.ms))
    if not shared:
        old, new = before.that_count, after.that_count
        return old, new, old.first_noise or new.first_noise
    noisy = before.noise.keys() & shared, after.noise.keys() & shared
    quiet = shared - noisy[0] - noisy[1]
    enough = max(LEAST_LAUNCHES, len(shared) / 2)  # a few quiet launches say less than many
    if len(quiet) >= enough:
        return before.only(quiet), after.only(quiet), ""
    old, new = before.only(shared), after.only(shared)
    is_one_sided = min(map(len, noisy)) == 0 and max(map(len, noisy)) >= LEAST_LAUNCHES
    # Noise that meets only one of the two three times over is not chance.
    return old, new, old.first_noise or new.first_noise if is_one_sided else ""


def _noise_of_processors(old: Launches, new: Launches, estimate: Ratio, margin: float) -> str:
    """What other processors may explain; blank where equal ones would give the same verdict."""
    slower = product_ratio(old, new) or 1.0
    alike = replace(estimate, log=estimate.log - math.log(slower))
    differs = verdict_of(alike, margin) != verdict_of(estimate, margin)
    how = on_processors(slower)
    return f"they ran {how}, which may be why" if differs and how else ""


def _judged(estimate: Ratio, margin: float, noise: str, counts: tuple[int, int]) -> Comparison:
    verdict, needs, reason = verdict_of(estimate, margin), None, ""
    if noise:
        verdict, reason = "inconclusive", f"too many launches were disturbed: {noise}"
    elif verdict == "inconclusive" and estimate.launches < LEAST_LAUNCHES:
        needs = LEAST_LAUNCHES
        reason = f"{counts_in_words(counts)}; an interval takes {LEAST_LAUNCHES} of each"
    elif verdict == "inconclusive":
        needs = _needed(estimate, margin)
        reason = launches_in_words(needs, counts, is_paired=estimate.is_paired)
    low, high = estimate.interval if estimate.launches >= LEAST_LAUNCHES else (None, None)
    return Comparison(
        verdict=verdict,
        ratio=estimate.value,
        low=low,
        high=high,
        launches=estimate.launches,
        counts=counts,
        paired=estimate.is_paired,
        needs=needs,
        estimate=estimate,
        p_slower=1.0 if noise else estimate.p_above(1 + margin),
        is_noisy=bool(noise),
        reason=reason,
    )


def _needed(estimate: Ratio, margin: float) -> int | None:
    """Launches until the interval leaves the limit that it straddles; both, if it lies between."""
    fast, slow = limits_of(margin)
    limits = []
    if estimate.value <= slow:  # then the interval may reach below the margin
        limits.append(fast)
    if estimate.value >= fast:
        limits.append(slow)
    needs = [estimate.launches_needed(limit) for limit in limits]
    return None if None in needs else max(n for n in needs if n is not None)


def verdict_of(estimate: Ratio, margin: float) -> Verdict:
    fast, slow = limits_of(margin)
    low, high = estimate.interval
    if low > slow:
        return "slower"
    if high < fast:
        return "faster"
    return "same" if fast <= low and high <= slow else "inconclusive"


def limits_of(margin: float) -> tuple[float, float]:
    """The ratios that a margin allows: 3 % reaches from 1 / 1.03 to 1.03, equal as factors."""
    return 1 / (1 + margin), 1 + margin
