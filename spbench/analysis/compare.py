"""Two sides of one case: which launches count, whether they may be compared, what follows.

Faster or slower only where the ratio's interval lies wholly outside the margin, the same only
where it lies wholly inside; else inconclusive, with the launches that it would take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from spbench.analysis.comparable import mismatch
from spbench.analysis.intervals import LEAST_LAUNCHES, Ratio, paired_rounds, ratio
from spbench.analysis.launches import Launches
from spbench.analysis.paired_steps import step_ratios
from spbench.text import counted

MARGIN = 0.02
"""Differences below this are the same to us, unless told otherwise."""

Verdict = Literal["faster", "same", "slower", "inconclusive", "not comparable"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The time of one side as a multiple of the other's: above 1 is slower."""

    verdict: Verdict
    before_ms: float | None = None
    after_ms: float | None = None
    """Medians of the launches that were compared."""
    ratio: float | None = None
    """Mean of the launches' ratios; None where they are not comparable."""
    low: float | None = None
    high: float | None = None
    """The interval; None with fewer than three launches."""
    launches: int = 0
    """That were compared, of the side that has fewer."""
    counts: tuple[int, int] = (0, 0)
    """The same of each side, before and after."""
    paired: bool = False
    """Whether the launches of both sides ran next to each other, in the same rounds."""
    needs: int | None = None
    """Launches that a verdict would take, of each side, if value and spread stay what they are."""
    estimate: Ratio | None = None
    """What interval and verdict are made of."""
    p_slower: float = 1.0
    """One-sided: how probable this is where the truth is just within the margin."""
    is_noisy: bool = False
    """Whether too few launches were quiet, of a side that ran apart or of one side alone: there is
    no verdict."""
    reason: str = ""


def compare_times(
    before: Launches, after: Launches, margin: float = MARGIN, *, allow_mismatch: bool = False
) -> Comparison | None:
    """The times of the launches that count; None where a side has no time at all.

    Launches that took turns are compared step by step, where their iterations are known.
    """
    old, new, noise = _compared(before, after)
    turns = step_ratios(old.steps_ms, new.steps_ms)
    estimate = ratio(old.ms, {**new.ms, **{name: old.ms[name] * r for name, r in turns.items()}})
    if estimate is None:
        return None
    why_not = mismatch(old.setups.values(), new.setups.values())
    if estimate.is_paired:
        shared = paired_rounds(old.ms, new.ms)
        old, new = old.only(shared), new.only(shared)
    if why_not and not allow_mismatch:
        result = Comparison(verdict="not comparable", reason=why_not)
    else:
        result = _judged(estimate, margin, noise, (len(old.ms), len(new.ms)))
        result = replace(result, verdict="not comparable", reason=why_not) if why_not else result
    return replace(result, before_ms=old.median_ms, after_ms=new.median_ms)


def _compared(before: Launches, after: Launches) -> tuple[Launches, Launches, str]:
    """The launches of both that are compared, and the noise that forbids a verdict.

    In rounds the two take turns, in an order that favours neither: noise that meets both widens
    the interval and shifts nothing, so noisy rounds count where too few are quiet. Runs that were
    measured apart may have been disturbed apart, and there only quiet launches give a verdict.
    """
    shared = set(paired_rounds(before.ms, after.ms))
    if not shared:
        old, new = before.that_count(), after.that_count()
        return old, new, next(iter([*old.noise.values(), *new.noise.values()]), "")
    noisy = before.noise.keys() & shared, after.noise.keys() & shared
    quiet = shared - noisy[0] - noisy[1]
    enough = max(LEAST_LAUNCHES, len(shared) / 2)  # a few quiet ones tell less than many
    if len(quiet) >= enough:
        return before.only(quiet), after.only(quiet), ""
    old, new = before.only(shared), after.only(shared)
    is_one_sided = min(map(len, noisy)) == 0 and max(map(len, noisy)) >= LEAST_LAUNCHES
    # Chance does not choose one side three times over.
    noise = next(iter([*old.noise.values(), *new.noise.values()])) if is_one_sided else ""
    return old, new, noise


def launches_in_words(needs: int | None, counts: tuple[int, int], *, is_paired: bool) -> str:
    """What there is, before and after, and how much would be enough."""
    each = "" if is_paired else " of each"
    enough = f"about {needs:,}{each}" if needs else "more than 1,000"
    return f"{_there_are(counts)}; a verdict takes {enough}"


def _there_are(counts: tuple[int, int]) -> str:
    before, after = counts
    against = "of each" if before == after else f"against {before}"
    return f"{counted(after, 'launch')} {against}"


def _judged(found: Ratio, margin: float, noise: str, counts: tuple[int, int]) -> Comparison:
    verdict, needs, reason = verdict_of(found, margin), None, ""
    if noise:
        verdict, reason = "inconclusive", f"too many launches were disturbed: {noise}"
    elif verdict == "inconclusive" and found.launches < LEAST_LAUNCHES:
        needs = LEAST_LAUNCHES
        reason = f"{_there_are(counts)}; an interval takes {LEAST_LAUNCHES} of each"
    elif verdict == "inconclusive":
        needs = _needed(found, margin)
        reason = launches_in_words(needs, counts, is_paired=found.is_paired)
    low, high = found.interval() if found.launches >= LEAST_LAUNCHES else (None, None)
    return Comparison(
        verdict=verdict,
        ratio=found.value,
        low=low,
        high=high,
        launches=found.launches,
        counts=counts,
        paired=found.is_paired,
        needs=needs,
        estimate=found,
        p_slower=1.0 if noise else found.p_above(1 + margin),
        is_noisy=bool(noise),
        reason=reason,
    )


def _needed(found: Ratio, margin: float) -> int | None:
    """Launches until the interval leaves the limit that it straddles; inside, both limits."""
    fast, slow = limits_of(margin)
    limits = [limit for limit in (fast, slow) if fast <= found.value <= slow] or [
        slow if found.value > slow else fast
    ]
    needs = [found.launches_needed(limit) for limit in limits]
    return None if None in needs else max(n for n in needs if n is not None)


def verdict_of(found: Ratio, margin: float) -> Verdict:
    fast, slow = limits_of(margin)
    low, high = found.interval()
    if low > slow:
        return "slower"
    if high < fast:
        return "faster"
    return "same" if fast <= low and high <= slow else "inconclusive"


def limits_of(margin: float) -> tuple[float, float]:
    """A margin of 3 % reaches from 1 / 1.03 to 1.03: the same for both directions."""
    return 1 / (1 + margin), 1 + margin
