"""Rows of runs.csv that contradict themselves, or their case: such a row was changed after spbench
wrote it, and none of its figures is used.

A good row says most things more than once: a step's time is in its rates too, bytes are counted and
predicted. A blank cell contradicts nothing. What a case is of, its strategy, dtype and so on, is in
its key too, a hash: run.json says of which, and where it does not, rows of one key are alike.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas
from numpy.typing import NDArray

from spbench.errors import or_none
from spbench.results.case_columns import axes_text
from spbench.results.run_json import case_of
from spbench.workload.traffic import PHASES

EQUAL = (
    ("step_ms * samples_per_s", "1e3 * batch"),
    ("step_ms * tokens_per_s", "1e3 * batch * tokens"),
    ("tokens_per_s", "tokens_per_s_per_rank * world_size"),
    ("step_ms", "compute_ms + exposed_comm_ms"),
    *((f"sent_bytes_{phase}", f"predicted_bytes_{phase}") for phase in PHASES),
    ("world_size", "sp_size * dp_size"),
)
"""Expressions that are equal in each good row."""
AT_MOST = (
    ("step_ms_p10", "step_ms"),
    ("step_ms", "step_ms_p90"),
    ("exposed_comm_ms_low", "step_ms - compute_ms"),
    ("step_ms - compute_ms", "exposed_comm_ms_high"),
    ("output_error", "tolerance"),
    ("gradient_error", "tolerance"),
    ("peak_allocated_bytes", "peak_reserved_bytes"),
    ("steps_s", "launch_s"),
)
"""The first is nowhere larger than the second."""
ROUNDED = 2e-3
"""Relative difference of times and rates that another program saved with four digits."""

OF_WORKLOAD = ("axes", "batch", "dtype", "mode", "checkpointing")
"""Columns that are alike in all rows of a ``workload_key``."""
OF_CASE = ("strategy", "workload", *OF_WORKLOAD, "device", "kind", "world_size", "workload_key")
"""Columns that are alike in all rows of a case's key."""

RELATIONS = tuple(
    (tuple(dict.fromkeys(re.findall(r"\b[a-z]\w+", f"{left} {right}"))), left, right, is_equal)
    for relations, is_equal in ((EQUAL, True), (AT_MOST, False))
    for left, right in relations
)
"""The names in each relation, its two sides, and whether they are equal."""


def contradictions(rows: pandas.DataFrame) -> NDArray[Any]:
    """Why each row cannot be believed; blank where it can."""
    why = np.full(len(rows), "", dtype=object)
    is_good = (rows["status"] == "ok").to_numpy()
    if not is_good.any():
        return why
    figures = {
        name: rows[name] for name in dict.fromkeys(n for names, *_ in RELATIONS for n in names)
    }
    counts = {name for name, column in figures.items() if column.dtype == "Int64"}
    numbers = {
        name: column.to_numpy("float64", na_value=np.nan) for name, column in figures.items()
    }
    for (*names, last), left, right, is_equal in RELATIONS:
        limit = 0.0 if counts.issuperset((*names, last)) else ROUNDED
        with np.errstate(all="ignore"):
            # DataFrame.eval would take as long as all the rest.
            one, other = (eval(side, {}, numbers) for side in (left, right))
            apart = np.abs(one - other) if is_equal else one - other
            is_wrong = is_good & (apart > limit * np.fmax(np.abs(one), np.abs(other)))
        why[is_wrong & (why == "")] = f"{', '.join(names)} and {last} contradict each other"
    return why


def contradict_their_case(
    rows: pandas.DataFrame, cases: Sequence[Mapping[str, Any]]
) -> NDArray[Any]:
    """Why each row cannot be one of its case, whatever its status; blank where it can.

    ``cases``: those of run.json. Rows of a key that is not among them are held against each other:
    the value that most of them have is right, and where as many have another none is believed.
    """
    why = np.full(len(rows), "", dtype=object)
    known = {entry["key"]: dict(_columns_of(entry)) for entry in cases}
    is_known = rows["case"].isin(list(known)).to_numpy()
    for name in OF_CASE if is_known.any() else ():
        of_case = {key: columns[name] for key, columns in known.items() if name in columns}
        wanted = rows["case"].map(of_case)
        is_wrong = wanted.notna() & (rows[name].astype(object) != wanted)
        # run.json may have been changed as well: it is asked for a key that it gives itself.
        doubted = {key for key in rows["case"][is_wrong].unique() if not _is_sound(key, cases)}
        is_wrong &= ~rows["case"].isin(doubted)
        why[is_wrong.to_numpy() & (why == "")] = _in_words(name)
    for key, names in (("case", OF_CASE), ("workload_key", OF_WORKLOAD)):
        left = rows[(why == "") & (rows[key] != "").to_numpy()]
        if len(left.drop_duplicates([key, *names])) > left[key].nunique():
            for name in names:
                why[left.index[_is_of_few(left, key, name)]] = _in_words(name)
    return why


def _is_sound(key: str, cases: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last entry of that key in run.json is of a case that has it."""
    entry = next(entry for entry in reversed(cases) if entry["key"] == key)
    return or_none(lambda: case_of(entry).key) == key


def _columns_of(entry: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What run.json says of the columns of a case; older versions say less."""
    work = entry.get("workload")
    if not isinstance(work, dict):
        return
    named = {"workload": work.get("name")} | {name: work.get(name) for name in OF_WORKLOAD}
    named |= {"device": entry.get("device"), "kind": entry.get("kind")}
    named |= {"world_size": entry.get("ranks"), "strategy": entry.get("strategy")}
    if isinstance(axes := named["axes"], dict):
        named["axes"] = axes_text(axes)
    mesh = entry.get("mesh")
    if isinstance(mesh, dict) and mesh.get("cfg", 1) != 1:
        named["strategy"] = f"{named['strategy']} cfg={mesh['cfg']}"
    yield from ((name, value) for name, value in named.items() if value is not None)


def _is_of_few(rows: pandas.DataFrame, key: str, name: str) -> NDArray[Any]:
    """Which rows have another value than most rows of their key, or than as many of them."""
    count = rows.groupby([key, name], dropna=False, sort=False)[name].transform("size")
    most = count.groupby(rows[key]).transform("max")
    values = rows[count == most].groupby(key)[name].nunique(dropna=False)
    has_no_most = rows[key].map(values) > 1
    return ((count < most) | has_no_most).to_numpy()


def _in_words(name: str) -> str:
    return f"{name} contradicts the key of its case"
