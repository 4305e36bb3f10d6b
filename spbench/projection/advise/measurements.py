"""Which single measurement would decide between strategies, and at which of its values which wins.

    thresholds     a quantity is varied alone, by its spread and half as much again up and down, and
                   all strategies that may be the fastest are priced again
    chance         without any: the share of draws of the strategy that is the fastest most often
    chance_known   in each draw of all constants the quantity has a value, for which the thresholds
                   name a strategy: the share of draws in which that is the draw's fastest
    what decides   the quantity with the highest chance_known: measured, and taken as the tool takes
                   it, it names the right strategy most often

A measurement is thus judged by the answer that it leads to, with all else as unsure as before, not
by what it tells of other constants that are off together with it: importing it moves none of those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np

from spbench.projection.advise.project import Projection
from spbench.projection.advise.quantities import Quantity, quantities
from spbench.projection.costmodel.hardware import Cluster
from spbench.projection.costmodel.step_time import Mode, Prices, middle_s
from spbench.text import quoted, short
from spbench.workload.traffic import Op

STEPS = 12
"""Steps in which it is looked who wins; between two with other winners the steps are halved."""
NEAR = 1.02
"""Factor between two values of which none lies between: a threshold is known to it."""
MUCH = 0.05
"""Share of draws in which it must name the fastest beyond what is named without, to be called what
decides."""


@final
@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A quantity to measure, and which strategy is the fastest at which of its values."""

    constant: str
    """The constant that bounds it, by its name within the cluster."""
    what: str
    """The quantity in words."""
    op: Op | None
    """The operation of a collective; None: it is none."""
    ranks: int
    mb: float | None
    """Size of a buffer as nccl-tests counts it, in 2 ** 20 bytes; None: it has none."""
    unit: str
    column: str
    """The column of nccl-tests; blank: it does not measure this."""
    assumed: float
    """The value that the cluster has, in the unit."""
    thresholds: Sequence[float]
    """Values at which another strategy becomes the fastest, rising, in the unit."""
    winners: Sequence[str]
    """The strategies that are the fastest below, between and above the thresholds."""
    chance: float
    """Share of draws in which the strategy that is the fastest most often is: named without it."""
    chance_known: float
    """Share of draws in which the strategy that the thresholds name is."""
    spreads_away: float
    """How far the nearest threshold is from what is assumed: 1 at the end of the spread."""
    command: str
    """What measures it; of ``calibrate`` without the workload."""

    def command_for(self, asked: Sequence[str]) -> str:
        """The command; ``asked``: words that name the workload, which ``calibrate`` times."""
        if self.column or asked[:1] != ["-w"]:
            return self.command
        return f"{self.command} {quoted(*asked[:2])}"


def measurements(runs: Sequence[Projection], cluster: Cluster, mode: Mode) -> list[Measurement]:
    """What would make another strategy the fastest: first what names the fastest in most draws.

    Parameters
    ----------
    runs
        The strategies that fit, the fastest first, each with its work and its cost.
    cluster, mode
        What their costs are of.
    """
    best, *_ = runs
    base = cluster.used_by(max(run.ranks for run in runs))
    draws = np.array([run.took.draws for run in runs])
    fastest = draws.argmin(axis=0)
    # What wins no draw of all constants together wins at no likely value of a single one.
    rivals = [run for at, run in enumerate(runs) if run is best or (fastest == at).any()]
    if len(rivals) == 1:
        return []
    names = np.array([run.strategy for run in runs])[fastest]
    prices = Prices()

    def winner(on: Cluster) -> str:
        took = {
            run.strategy: middle_s(run.work, on, mode, run.share, prices)
            for run in rivals
            if run.work
        }
        return min(took, key=lambda name: took[name])

    # What one would name without measuring: of many that are alike not always the one whose time in
    # the middle is the lowest.
    chance = max(float(np.mean(names == run.strategy)) for run in rivals)
    found = []
    for quantity in quantities(rivals, base, mode):
        slower, winners = _thresholds(quantity, winner)
        if not slower:
            continue
        factors = base.drawing.factors(quantity.doubt)
        named = np.array(winners)[np.searchsorted(slower, factors)]
        # Rates fall as times rise: of those the smallest value is the slowest.
        is_rate = quantity.value(2.0) < quantity.value(1.0)
        order = -1 if is_rate else 1
        nearest = min(abs(math.log(each)) for each in slower)
        found.append(
            Measurement(
                constant=quantity.doubt.name,
                what=quantity.what,
                op=quantity.op,
                ranks=quantity.ranks,
                mb=quantity.mb,
                unit=quantity.unit,
                column=quantity.column,
                assumed=quantity.value(1.0),
                thresholds=[quantity.value(each) for each in slower[::order]],
                winners=winners[::order],
                chance=chance,
                chance_known=float(np.mean(named == names)),
                spreads_away=nearest / math.log(quantity.doubt.factor),
                command=quantity.command,
            )
        )
    return sorted(found, key=lambda each: (-each.chance_known, each.spreads_away))


def _thresholds(
    quantity: Quantity, winner: Callable[[Cluster], str]
) -> tuple[list[float], list[str]]:
    """Factors of its time, rising, at which another strategy wins, and the winners between them."""
    known: dict[float, str] = {}

    def wins(slower: float) -> str:
        if slower not in known:
            known[slower] = winner(quantity.cluster(slower))
        return known[slower]

    def between(low: float, high: float) -> Iterator[float]:
        if wins(low) == wins(high):
            return
        middle = math.sqrt(low * high)
        if high / low < NEAR:
            yield middle
        else:
            yield from between(low, middle)
            yield from between(middle, high)

    steps = np.geomspace(1 / quantity.reach, quantity.reach, STEPS + 1)
    thresholds = [at for low, high in pairwise(map(float, steps)) for at in between(low, high)]
    winners = [wins(float(steps[0]))]
    winners += [wins(min(at for at in known if at > threshold)) for threshold in thresholds]
    return thresholds, winners


# As data, and in a sentence.


def measured_data(advised: Sequence[Measurement], asked: Sequence[str]) -> list[dict[str, Any]]:
    """Measurements for ``--json``; ``asked``: as ``command_for`` has it."""
    return [asdict(each) | {"command": each.command_for(asked)} for each in advised]


def thresholds_in_words(measurement: Measurement) -> str:
    """Which strategy is the fastest at which values: 'below 9 GB/s ring is the fastest, above that
    ulysses'."""
    values = [f"{short(each)} {measurement.unit}" for each in measurement.thresholds]
    first, *between, last = measurement.winners
    middle = [f"to {value} {name}" for value, name in zip(values[1:], between, strict=True)]
    return ", ".join([f"below {values[0]} {first} is the fastest", *middle, f"above that {last}"])


def what_decides(advised: Sequence[Measurement], asked: Sequence[str]) -> Iterator[str]:
    """What decides where the fastest is open, and the command; ``advised``: the most telling first.
    Where none names the fastest much more often, that is said."""
    first = next((each for each in advised if each.chance_known > each.chance), None)
    if first is None:
        yield "no single measurement makes it likelier to name the fastest"
        return
    was, now = (f"{100 * each:.0f} %" for each in (first.chance, first.chance_known))
    is_much = first.chance_known >= first.chance + MUCH
    one = "what one measurement would decide"
    head = one if is_much else "no single measurement decides; the most telling"
    yield f"{head}: {_in_words(first)}"
    yield (
        f"that names the fastest in {now} of draws, in place of {was} without it; to measure it: "
        f"{first.command_for(asked)}"
    )


def what_changes(advised: Sequence[Measurement], asked: Sequence[str]) -> Iterator[str]:
    """What would make another the fastest where that is not open, at the least change."""
    if not advised:
        yield (
            "no single measurement would change that: no constant that is off by its spread, or by "
            "half as much again, makes another the fastest"
        )
        return
    first = min(advised, key=lambda each: each.spreads_away)
    yield f"what would change that: {_in_words(first)}"
    yield f"to measure it: {first.command_for(asked)}"


def _in_words(measurement: Measurement) -> str:
    column = f" ({measurement.column})" if measurement.column else ""
    assumed = f"{short(measurement.assumed)} {measurement.unit}"
    return f"{measurement.what}{column}: {thresholds_in_words(measurement)}; assumed now: {assumed}"
