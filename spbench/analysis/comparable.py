"""Which rows may be compared: rows of one case, on the same hardware, and in one panel.

- ``matched`` pairs the cases of two runs, by key where both have it, else by what is computed, on
  how many ranks and by which strategy. Device, seed and kind do not count: a case that ran on
  another device, or was projected, cannot be compared, but it is not another case.
- ``mismatch`` says why times cannot be compared: those of different GPUs, or of different versions
  of torch, say nothing about a change of the code. A blank field is not known, and no obstacle.
- ``in_panels`` groups the strategies that stand side by side: all but the ranks is the same.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas

from spbench.analysis.rows import LaunchRow, rows_of
from spbench.results.variables import ASKED, compared, read_column
from spbench.text import grouped

SHAPE = ("axes", "batch", "dtype", "mode", "checkpointing", "optimizer", "guidance")
COMPUTES = ("workload", *SHAPE, "execution", "world_size", "strategy")
"""Columns in which rows of one case agree, whatever their device and seed."""
PANEL = ("workload", "workload_key", *SHAPE, "execution", "kind", "device", "cluster")
"""Columns in which rows of one panel agree, besides the measurement budget."""
LIBRARIES = ("kind", "device", "backend", "gpu", "torch", "cuda", "nccl")
"""What the memory of a step depends on, besides the code."""
VARIABLES = "compared_variables"
HARDWARE = (
    *(*LIBRARIES, "hardware", "ranks_by_node", "effort", "statistic"),
    *("numa_binding", VARIABLES),
)
"""What its time depends on: links between machines, too, and a quick launch warms up for less."""
IN_FRAME = (
    *(*LIBRARIES, "hardware", "placement", "world_size", "effort", "schema_version"),
    *("variables", "environment", "numa"),
)
"""The columns that ``HARDWARE`` is computed from."""
Setup = tuple[str, ...]
"""Values of ``HARDWARE``."""


def matched(
    before: pandas.DataFrame, after: pandas.DataFrame
) -> Iterator[tuple[str | None, str | None]]:
    """The key of each case in both runs, in the order of the second; one may be None.

    An interrupted launch says nothing about the code. A case that the baseline skipped, because
    its strategy declined it, is never missing.
    """
    old = _cases(before[~before["status"].isin(["interrupted", "skipped"])])
    tried = after[after["status"] != "interrupted"]
    new = _cases(tried)
    ran = set(tried.loc[tried["status"] != "skipped", "case"])
    # A case whose key both runs have is matched with no other, whichever comes first.
    spare = grouped([case for case in old if case not in new], lambda case: old[case][2:])
    for case, (workload_key, kind, *computes) in new.items():
        alike = [
            other
            for other in spare.get(tuple(computes), [])
            # In rows from before workloads had keys, the workload's name decides.
            if other in old and len({old[other][0], workload_key} - {""}) < 2
        ]
        nearest = min(alike, key=lambda other: old[other][1] != kind, default=None)
        same = case if case in old else nearest
        if same is not None:
            del old[same]
        if same is not None or case in ran:
            yield same, case
    for case in old:
        yield case, None


def _cases(frame: pandas.DataFrame) -> dict[str, tuple[object, ...]]:
    """By the key of each case: the key of its workload, its kind, and what it computes."""
    columns = (frame[name] for name in ("workload_key", "kind", *COMPUTES))
    return dict(zip(frame["case"], zip(*columns, strict=True), strict=True))


def setups_of(frame: pandas.DataFrame) -> list[Setup]:
    """The values of ``HARDWARE``, row by row."""
    alike = frame.groupby(list(IN_FRAME), sort=False, dropna=False).ngroup()
    setups = [_setup(row) for row in rows_of(frame[~alike.duplicated()])]
    return [setups[number] for number in alike]


def _setup(row: LaunchRow) -> Setup:
    """The values of ``HARDWARE`` in a row; what an older version did not write is blank."""
    # Until version 4 of the columns, a launch had the median of its iterations.
    statistic = "median" if row["schema_version"] < 4 else "trimmed mean"
    # Which of the NUMA nodes ranks were bound to makes no difference.
    binding = "" if not row["numa"] else "none" if "any " in row["numa"] else "bound"
    return (
        *(row[name] for name in (*LIBRARIES, "hardware")),
        ranks_by_node(row["placement"], row["world_size"]),
        row["effort"],
        statistic,
        binding,
        compared(row["variables"], row["environment"]),
    )


def ranks_by_node(placement: str, ranks: int) -> str:
    """Number of ranks on each machine, as 4+4; ``placement`` is as the column has it."""
    runs = [part.rpartition(" ")[2].partition("-") for part in placement.split(", ")]
    if not all(first.isdecimal() for first, _, _ in runs):
        return str(ranks)
    counts = [int(last) - int(first) + 1 if last.isdecimal() else 1 for first, _, last in runs]
    return "+".join(map(str, counts))


def mismatch(
    before: Collection[Setup], after: Collection[Setup], fields: Sequence[str] = HARDWARE
) -> str:
    """What differs, in words; blank if the two may be compared.

    A case whose own launches differ cannot be compared with anything.
    """
    if len({*before, *after}) <= 1:
        return ""  # nearly always, and much faster
    reasons: list[str] = []
    for i, name in enumerate(fields):
        old, new = ({setup[i] for setup in run if setup[i]} for run in (before, after))
        if name == "kind" and old and new and old != new:
            return between_kinds(old, new)
        if name == VARIABLES:
            reasons += _differing_variables(old, new)
            continue
        word = name.replace("_", " ")
        mixed = next((values for values in (new, old) if len(values) > 1), None)
        if mixed:
            reasons.append(f"launches with {word} {' and '.join(sorted(mixed))} in one case")
        elif old and new and old != new:
            reasons.append(f"{word} {new.pop()}, was {old.pop()}")
    return "; ".join(reasons)


def between_kinds(before: Iterable[str], after: Iterable[str]) -> str:
    """Why figures of different kinds have no verdict."""
    old, new = (" and ".join(sorted(kinds)).replace("_", " ") for kinds in (before, after))
    return f"{new} against {old}: no verdict between kinds"


def _differing_variables(before: Collection[str], after: Collection[str]) -> Iterator[str]:
    """A phrase for each variable whose value differs, by launches with other values of all."""
    runs = [[read_column(text) for text in run] for run in (before, after)]
    for name in sorted({name for run in runs for variables in run for name in variables}):
        old, new = ({variables.get(name) for variables in run} for run in runs)
        if ASKED in old | new:
            continue
        mixed = next((values for values in (new, old) if len(values) > 1), None)
        if mixed:
            values = " and ".join(sorted(_assigned(name, value) for value in mixed))
            yield f"launches with {values} in one case"
        elif old and new and old != new:
            (value,) = new
            after_it = "unset" if value is None else value
            yield f"{_assigned(name, old.pop())} before, {after_it} after"


def _assigned(name: str, value: str | None) -> str:
    return f"{name} unset" if value is None else f"{name}={value}"


def in_panels(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The frame with the columns ``panel``, a title, and ``panel_number``, in the run's order.

    Where titles would be equal, they also name what differs.
    """
    effort = frame["effort"].replace("", "full")
    number = frame.groupby([*(frame[name] for name in PANEL), effort], sort=False).ngroup()
    panels = [*rows_of(frame[~number.duplicated()])]
    alike = grouped(panels, panel_title)
    titles = [_title(row, alike[panel_title(row)]) for row in panels]
    return frame.assign(panel=[titles[i] for i in number], panel_number=number)


def panel_title(row: LaunchRow | Mapping[str, Any]) -> str:
    """Workload, shape and mode in words."""
    axes = re.sub(r"(?<=\d)x", " x ", row["axes"]).replace("=", " ")
    words = [axes, f"batch {row['batch']}", row["dtype"], row["mode"]]
    if row["checkpointing"] != "none":
        again = {"full": "checkpointed", "selective": "attention recomputed"}
        words.append(again.get(row["checkpointing"], row["checkpointing"]))
    if row["guidance"]:
        words.append(f"{row['guidance']} branches")
    if row["optimizer"]:
        words.append(row["optimizer"])
    if row["execution"]:
        words.append(row["execution"])
    if row["kind"] != "measured":
        on = f" on {row['cluster']}" if row["cluster"] else ""
        words.append(row["kind"].replace("_", " ") + on)
    return f"{row['workload']} ({', '.join(words)})"


def _further_words(row: LaunchRow) -> Setup:
    """What panels with equal titles may differ in, in words."""
    key = f"workload {row['workload_key']}" if row["workload_key"] else ""
    return key, row["device"], "" if row["effort"] in ("", "full") else row["effort"]


def _title(row: LaunchRow, alike: Sequence[LaunchRow]) -> str:
    columns = zip(_further_words(row), *map(_further_words, alike), strict=True)
    words = [word for word, *every in columns if word and len(set(every)) > 1]
    return " ".join([panel_title(row), ", ".join(words)]).rstrip()
