"""How a run was measured, and where: what its rows and its run.json say, in words."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas

from spbench.analysis.compare import MARGIN
from spbench.report import units
from spbench.results.provenance import UNKNOWN, Provenance
from spbench.text import counted
from spbench.workload.traffic import PHASES

Facts = list[tuple[str, str]]
"""Terms, and what is known of them."""
CLOCKWORK = (
    "A step takes as long as its slowest rank. The time of a launch is the trimmed mean of its "
    "steps, that of a case the geometric mean of its launches, with their 95 % interval. Times "
    f"that differ by less than {MARGIN:.0%} count as the same, and a difference counts only where "
    "its whole interval says so."
)
EXPOSED = (
    "Exposed communication is the step less the same step with silent collectives, timed in turn "
    "with it; what is hidden behind computation costs nothing and is not shown."
)
SHARES = (
    "One GPU computed what one rank of many does, with collectives that send nothing. Their times "
    "are computation without messages, not steps, and no strategy is ranked by them; bytes are "
    "those of the formula."
)
PROJECTED = (
    "These times come from a cost model of the cluster, with its own 90 % interval; nothing was "
    "run. They are never judged against measured ones."
)


def method_of(frame: pandas.DataFrame, origin: Provenance) -> Facts:
    """Proof, counts, launches, times and noise."""
    ran = frame[~frame["status"].isin(["skipped", "interrupted"]) & (frame["kind"] != "projected")]
    facts = dict(_measured(ran, origin)) if len(ran) else {}
    if (ran["kind"] == "one_gpu_share").any():
        facts["Shares of one GPU"] = SHARES
    projected = frame[frame["kind"] == "projected"]
    clusters = " and ".join(filter(None, projected["cluster"].unique()))
    if len(projected):
        facts["Projected"] = f"{f'On {clusters}. ' if clusters else ''}{PROJECTED}"
    return [*facts.items()]


def _measured(ran: pandas.DataFrame, origin: Provenance) -> Iterator[tuple[str, str]]:
    gated = ran[ran["tolerance"].notna()]
    errors = gated[["output_error", "gradient_error"]].max(axis=1)
    passed = errors[errors <= gated["tolerance"]]
    worst = units.error(passed.max()), units.error(gated["tolerance"].max())
    largest = "; the largest relative error is {}, the tolerance {}".format(*worst)
    yield (
        "Proved",
        "Before they were timed, the output and the gradients of "
        f"{_share(len(passed), ran)} were found equal to one device's"
        f"{largest if len(passed) else ''}.",
    )
    sent, predicted = (
        ran[[f"{what}_bytes_{phase}" for phase in PHASES]].to_numpy("float64", na_value=np.nan)
        for what in ("sent", "predicted")
    )
    is_counted = ~np.isnan(sent).any(axis=1)
    equal = int((sent == predicted)[is_counted].all(axis=1).sum())
    yield (
        "Counted",
        "Bytes are counted where they are sent, of the rank that sends most; they equal the "
        f"formula exactly in {_share(equal, ran[is_counted])} in which they were counted.",
    )
    rounds = ran["round"][ran["round"] != ""].nunique()
    take_turns = " in which strategies take turns" if ran["strategy"].nunique() > 1 else ""
    in_turn = f", in {counted(rounds, 'round')}{take_turns}" if rounds else ""
    yield "Launches", f"{origin.launches}{in_turn}. A launch is what counts as one measurement."
    steps = [
        f"{_range(ran[column])} {what}"
        for column, what in (("iterations", "timed steps"), ("warmup", "steps of warm-up before"))
        if ran[column].notna().any()
    ]
    efforts = ran["effort"].replace("", "full").unique()
    quick = " Quick: with a small budget of time." if "quick" in efforts else ""
    yield "Steps", f"A launch has {' and '.join(steps) or 'no timed step'}.{quick}"
    yield "Times", CLOCKWORK
    yield "Exposed time", EXPOSED
    noise = [f"{_share(int((ran['noisy'] != '').sum()), ran)} were noisy"]
    if ran["others_cores"].notna().any():
        noise.append(f"others used {_range(ran['others_cores'])} cores beside the ranks")
    if ran["load_average"].notna().any():
        noise.append(f"the load average was {_range(ran['load_average'])}")
    yield "Noise", f"{'; '.join(noise)}."


def _share(count: int, ran: pandas.DataFrame) -> str:
    return f"{count:,} of {counted(len(ran), 'launch')}"


def _range(values: "pandas.Series[Any]") -> str:
    low, high = f"{values.min():.3g}", f"{values.max():.3g}"
    return low if low == high else f"{low} to {high}"


def environment_of(frame: pandas.DataFrame, origin: Provenance, about: Mapping[str, Any]) -> Facts:
    """Commit, machine, libraries and variables; what is not known is left out."""
    named = {"memory_bytes": "memory", "gpus": "GPUs", "cpu": "processor", "cpus": "cores"}
    facts = {
        "commit": origin.commit,
        "started": origin.started,
        "machine": origin.machine,
        "device": origin.facts["device"],
        "libraries": origin.libraries,
    }
    for name in ("cpu", "cpus", "memory_bytes", "gpus", "platform", "python", "versions"):
        facts[named.get(name, name)] = _in_words(name, about.get(name))
    for name in ("placement", "numa", "variables", "environment"):
        facts[name] = " and ".join(value for value in frame[name].unique() if value)
    return [(name, text) for name, text in facts.items() if text and text != UNKNOWN]


def _in_words(name: str, value: Any) -> str:
    """A value of run.json, whatever it is."""
    if name.endswith("_bytes") and isinstance(value, int | float):
        return units.size("GiB", value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_in_words(str(key), of)}" for key, of in value.items() if of)
    if isinstance(value, list):
        return "; ".join(_in_words("", each) for each in value)
    return "" if value is None else str(value)
