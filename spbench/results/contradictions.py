"""Good rows of runs.csv with figures that contradict each other: such a row was changed after
spbench wrote it, and none of its figures is used.

A row says most things more than once: a step's time is in its rates too, bytes are counted and
predicted. A blank cell contradicts nothing.
"""

import re
from typing import Any

import numpy as np
import pandas
from numpy.typing import NDArray

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
