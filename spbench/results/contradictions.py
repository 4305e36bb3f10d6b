"""Rows of runs.csv that contradict themselves, other rows, run.json or the samples of their launch.

A row says most things more than once: the time of a step is also in its rates, bytes are counted
and predicted, the key of a case has one set of fields. Where two places differ, a digit or a word
was changed behind spbench's back, and no figure of the row is used. A blank cell contradicts
nothing, so rows of older versions stay.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
from pydantic import ValidationError

from spbench.results.iterations import LAUNCH, has_samples, read_samples, steps_of_passes
from spbench.results.record import COLUMNS, Record, column_types
from spbench.results.run_json import read_run
from spbench.results.step_time import outer_deciles, typical
from spbench.workload.case import Case
from spbench.workload.traffic import OPS, PHASES

EQUAL = (
    ("step_ms * samples_per_s", "1e3 * batch"),
    ("step_ms * tokens_per_s", "1e3 * batch * tokens"),
    ("tokens_per_s", "tokens_per_s_per_rank * world_size"),
    ("step_ms", "compute_ms + exposed_comm_ms"),
    *((f"sent_bytes_{phase}", f"predicted_bytes_{phase}") for phase in PHASES),
    ("world_size", "sp_size * dp_size"),
    ("world_size", "ranks_placed"),
    ("launch", "launch_of_round"),
)
"""Expressions that are equal in each good row."""
SENT = " + ".join(f"sent_bytes_{phase}" for phase in PHASES)
BY_OP = " + ".join(f"{op}_bytes" for op in OPS)
ROUNDED_BYTES = 4
"""Bytes of phases and of operations are sums of fractions, each rounded by itself."""
AT_MOST = (
    ("step_ms_p10", "step_ms"),
    ("step_ms", "step_ms_p90"),
    ("exposed_comm_ms_low", "step_ms - compute_ms"),
    ("step_ms - compute_ms", "exposed_comm_ms_high"),
    ("output_error", "tolerance"),
    ("gradient_error", "tolerance"),
    ("peak_allocated_bytes", "peak_reserved_bytes"),
    *((f"sent_bytes_{phase}", f"{BY_OP} + {ROUNDED_BYTES}") for phase in PHASES),
    *((f"{op}_bytes", f"{SENT} + {ROUNDED_BYTES}") for op in OPS),
)
"""The first is nowhere larger than the second; the busiest rank may be another in each column."""
DERIVED = {"tokens": "axes", "ranks_placed": "placement", "launch_of_round": "round"}
"""Numbers in texts, by the column of the text."""
SHAPE = ("axes", "batch", "dtype", "mode", "checkpointing", "optimizer")
FIELDS = ("strategy", "workload", *SHAPE, "device", "kind", "world_size", "sp_size")
"""Columns that the key of a case fixes."""
COUNTED = (
    *(f"{kind}_bytes_{phase}" for kind in ("sent", "predicted") for phase in PHASES),
    *(f"{op}_bytes" for op in OPS),
    *("collectives", "optimizer_bytes"),
)
SAME = (
    (("case",), (*FIELDS, "workload_key")),
    (("workload_key",), SHAPE),
    (("session", "workload_key", "workload", "strategy", "device", "kind", "world_size"), ("case",)),
    (("session", "case"), COUNTED),
    (("session",), ("schema_version", "torch", "cuda", "nccl")),
)
"""Rows that agree in the first columns agree in each of the second."""
CONSTANT = (
    (("session", "workload_key"), "tflops_per_rank * step_ms * world_size"),
    (("session", "gpu", "dtype"), "tflops_per_rank / mfu"),
)
"""Expressions that are equal in all rows that agree in the columns before."""
EXACT, SHORTENED, OF_SAMPLES = 1e-12, 1e-2, 1e-5
"""Relative differences that rounding explains: in rows of all digits, in rows that another program
has saved with fewer, and between figures and samples, which have six digits."""
DIGITS = 15
"""Digits that spreadsheets write at most."""
MOST_LAUNCHES = 200
"""Launches of a file whose samples are opened, at most: more would take seconds."""

Reasons = Iterator[tuple[str, "pandas.Series[bool]"]]
"""Why rows cannot be believed, and which; the first reason of a row counts."""


def contradictions(rows: pandas.DataFrame, why: Sequence[str], folder: Path) -> list[str]:
    """Why each row cannot be believed; ``why`` has what is known already, blank for sound rows.

    ``folder``: of run.json and samples. Rows that no file contradicts are compared with each other.
    """
    reasons = pandas.Series(list(why), index=rows.index, dtype=object)
    written = rows[(rows["status"] == "ok") & ~rows["effort"].eq("counted")]
    latest = written.drop_duplicates(LAUNCH, keep="last").index
    for witness in (_within, _run_json, _samples, _among):
        sound = rows[reasons == ""]
        if len(sound):
            for reason, is_wrong in witness(Rows(sound, folder, latest)):
                wrong = is_wrong.index[is_wrong.astype(bool)]
                reasons.loc[wrong] = reasons.loc[wrong].where(reasons.loc[wrong] != "", reason)
    return reasons.tolist()
