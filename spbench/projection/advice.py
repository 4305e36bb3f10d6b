"""A recommendation in sentences, a table, and as data."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from spbench.analysis.compare_strategies import SURE
from spbench.projection.candidates import decisive_command, what_would_decide
from spbench.projection.interval import COMPUTE, HOST
from spbench.projection.project import Projection
from spbench.projection.recommend import Recommendation
from spbench.projection.scaled import WHATS
from spbench.report import tables, units
from spbench.report.fit_width import Grid, fewer
from spbench.report.projection_table import memory, span
from spbench.text import counted, listed

COLUMNS = ("strategy", "step ms", "90 % interval", "slower", "exposed ms", "host ms", "memory GB")
SPARE = ("host ms", "memory GB", "exposed ms")
"""Columns left out where not all fit, in this order."""
SHOWN = 10
"""Rows of the table, or more where more are not told apart."""


def show_advice(advice: Recommendation, asked: Sequence[str] | None) -> None:
    """Prints the answer, the fastest strategies, and what the answer hinges on. ``asked``: the
    words that name the workload to ``spbench run``; None: the models are compiled."""
    out = tables.console()
    tables.say(out, answer(advice), advice.best.title)
    rows = [_row(each, advice.best) for each in (advice.best, *advice.others)]
    alike = (row for row, each in enumerate(advice.others, 2) if each.strategy in advice.alike)
    shown = max([SHOWN, *alike])
    tables.show_fitting(out, fewer(Grid(columns=COLUMNS, rows=rows[:shown]), SPARE))
    if len(rows) > shown:
        tables.say(out, f"{counted(len(rows) - shown, 'slower one')} left out: --json has all")
    tables.say(out, *remarks(advice, asked))


def answer(advice: Recommendation) -> str:
    """One sentence: which strategy, how much faster than the next, and how sure that is. Where
    others are not told apart from it, it begins with that."""
    best = advice.best
    where = f"{best.workload.name} on {counted(best.ranks, 'rank')} of {best.cluster.name}"
    took = f"{units.milliseconds(1e3 * best.took.step_s)} ms a step, projected"
    if not advice.others:
        names = [best.strategy, *advice.same.get(best.strategy, [])]
        only = "is the only strategy" if len(names) == 1 else "do the same work, the only ones"
        within = ", and fits into its memory" if advice.too_large else ""
        return f"{listed(names)} {only} that can run {where}{within}: {took}"
    fastest = f"{best.strategy} is the fastest for {where}: {took}"
    if advice.alike:
        fastest = (
            f"no strategy is shown to be the fastest for {where}: {best.strategy} has the lowest "
            f"time, {took}, and {counted(len(advice.alike), 'other')} may be as fast"
        )
    return (
        f"{fastest}; {advice.others[0].strategy} takes {advice.ratio:.2f}x as long "
        f"({advice.ratio_low:.2f} to {advice.ratio_high:.2f}); {best.strategy} is the fastest in "
        f"{units.percent(advice.sure)} of draws of what the cluster's constants may be"
    )


def remarks(advice: Recommendation, asked: Sequence[str] | None) -> Iterator[str]:
    """What is not told apart, where the answer flips, and what would decide."""
    if advice.alike:
        yield (
            f"not told apart from {advice.best.strategy} (slower in fewer than "
            f"{units.percent(SURE)} of draws): {', '.join(advice.alike)}"
        )
    for flip in advice.flips:
        yield f"{flip.strategy} would be the fastest at {flip.factor:.2g}x {WHATS[flip.what]}"
    terms_s = advice.best.took.terms
    busy_s = sum(terms_s[term] for term in terms_s if term in COMPUTE or term.endswith(" exposed"))
    if advice.best.cluster.device.kind == "gpu" and terms_s.get(HOST, 0.0) > busy_s:
        yield (
            f"the host decides: to issue the operations of {advice.best.strategy} takes it longer "
            f"than a GPU needs for them; a larger batch{' or --compiled' * (asked is not None)} "
            "would change that"
        )
    for kept, same in advice.same.items():
        yield f"{listed([kept, *same])} do the same work, which counts once"
    for each in advice.too_large:
        is_faster = each.took.step_s < advice.best.took.step_s
        yield (
            f"{each.strategy} {'would be faster, and ' * is_faster}does not fit: it holds "
            f"{(each.peak_bytes or 0) / 1e9:.1f} of {each.limit_bytes / 1e9:.0f} GB a rank"
        )
    for each in advice.cannot:
        yield f"{each.strategy} cannot run: {each.why_not}"
    if advice.alike:
        best, names, open_ = advice.best, rivals(advice), 1 + len(advice.alike)
        decides = what_would_decide(names, best.ranks, best.cluster, asked)
        yield decides + (len(names) < open_) * f"; these are {len(names)} of the {open_}"


def as_data(advice: Recommendation, asked: Sequence[str] | None) -> dict[str, Any]:
    """The recommendation for ``--json``; times in seconds. ``asked``: as ``show_advice`` has it."""
    best = advice.best
    command = decisive_command(rivals(advice), best.ranks, best.cluster, asked)
    return {
        "kind": "projected",
        "workload": best.workload.name,
        "cluster": best.cluster.name,
        "ranks": best.ranks,
        "answer": answer(advice),
        "best": best.strategy,
        **{name: getattr(advice, name) for name in ("sure", "ratio", "ratio_low", "ratio_high")},
        "alike": list(advice.alike),
        "decides": command if advice.alike else None,
        "flips": [asdict(each) for each in advice.flips],
        "projected": [_data(each) for each in (best, *advice.others)],
        "same_work": {kept: list(same) for kept, same in advice.same.items()},
        "too_large": [_data(each) for each in advice.too_large],
        "cannot": {each.strategy: each.why_not for each in advice.cannot},
    }


def _data(each: Projection) -> dict[str, Any]:
    times = {name: getattr(each.took, name) for name in ("step_s", "low_s", "high_s")}
    more = {"terms_s": dict(each.took.terms), "peak_bytes": each.peak_bytes}
    return {"strategy": each.strategy, **times, **more}


def _row(each: Projection, best: Projection) -> list[str]:
    row = each.data
    exposed_ms = sum(ms for term, ms in row["terms_ms"].items() if term.endswith(" exposed"))
    return [
        each.strategy,
        units.milliseconds(row["step_ms"]),
        span(row["step_ms_low"], row["step_ms_high"]),
        units.ratio(each.took.step_s / best.took.step_s),
        units.milliseconds(exposed_ms),
        units.milliseconds(row["terms_ms"]["host"]),
        memory(row),
    ]


def rivals(advice: Recommendation, most: int = 3) -> Sequence[str]:
    """The fastest and those that are not told apart from it: first the next, then those that would
    be the fastest at the least change of a constant, then the faster ones."""
    flips = sorted(advice.flips, key=lambda flip: abs(math.log(flip.factor)))
    near = (flip.strategy for flip in flips if flip.strategy in advice.alike)
    return [*dict.fromkeys([advice.best.strategy, *advice.alike[:1], *near, *advice.alike])][:most]
