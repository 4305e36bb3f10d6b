"""Rows of runs.csv that contradict themselves, run.json, the samples of their launch or other rows.

A digit or a word of such a row was changed after spbench wrote it, and none of its figures is used.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas
from pydantic import ValidationError

from spbench.results.iterations import (
    LAUNCH,
    has_samples,
    read_samples,
    steps_by_row,
    steps_of_pass,
)
from spbench.results.record import Record
from spbench.results.row_relations import (
    FIELDS,
    Reasons,
    between_rows,
    differ,
    prepared,
    relative_limit,
    within_rows,
)
from spbench.results.run_json import read_run
from spbench.results.step_time import outer_deciles, typical
from spbench.workload.case import Case

TIMES = ("step_ms", "step_ms_p10", "step_ms_p90", "compute_ms", "iterations")
TRIMMED_MEAN = 4
"""Version of rows from which on times are trimmed means; before they were medians."""
OF_CASE = (*FIELDS, "workload_key")
OF_SAMPLES = 1e-5
"""Relative difference that rounding explains between a figure and samples, of six digits."""
MOST_LAUNCHES = 200
"""Launches of a file whose samples are opened; those of more would take seconds."""


def contradictions(rows: pandas.DataFrame, why: Sequence[str], folder: Path) -> list[str]:
    """Why each row cannot be believed; ``why`` has what is known already, blank for sound rows.

    ``folder`` is that of run.json and samples. Only rows that no file contradicts are compared
    with each other, so that a damaged row has no vote.
    """
    reasons = pandas.Series(list(why), index=rows.index, dtype=object)
    rows = prepared(rows)
    good = rows[rows["status"] == "ok"]
    last = good.index[~good.duplicated(LAUNCH, keep="last")]
    for witness in (
        within_rows,
        lambda sound: _against_run_json(sound, folder),
        lambda sound: _against_samples(sound.loc[sound.index.isin(last)], folder),
        between_rows,
    ):
        sound = rows[reasons == ""]
        for reason, is_wrong in witness(sound) if len(sound) else ():
            wrong = is_wrong.index[is_wrong]
            reasons[wrong] = reasons[wrong].where(reasons[wrong] != "", reason)
    return reasons.tolist()


def _against_run_json(rows: pandas.DataFrame, folder: Path) -> Reasons:
    """Rows whose case has other fields in run.json, or another key there."""
    entries = {entry["key"]: entry for entry in read_run(folder).get("cases", [])}
    cases = {key: case for key, entry in entries.items() if (case := _case_of(key, entry))}
    if not cases:
        return
    records = [
        Record.of_case(case, run_id="", started_utc="", status="ok") for case in cases.values()
    ]
    fields = {name: [getattr(record, name) for record in records] for name in OF_CASE}
    recorded = pandas.DataFrame(fields, index=list(cases))
    for name in OF_CASE:
        expected = rows["case"].map(recorded[name])
        is_known = expected.notna() & (rows[name].astype(object) != "")
        yield f"{name} contradicts run.json", is_known & (rows[name] != expected)
    is_elsewhere = pandas.MultiIndex.from_frame(rows[list(FIELDS)]).isin(
        pandas.MultiIndex.from_frame(recorded[list(FIELDS)])
    )
    yield "case contradicts run.json", ~rows["case"].isin(entries) & is_elsewhere


def _case_of(key: str, entry: dict[str, Any]) -> Case | None:
    """The case of an entry in run.json; None if that is damaged, as its key does not fit."""
    fields = {name: value for name, value in entry.items() if name not in ("key", "why_not")}
    try:
        case = Case.model_validate(fields)
    except ValidationError:
        return None
    return case if case.key == key else None


def _against_samples(rows: pandas.DataFrame, folder: Path) -> Reasons:
    """Rows with other times than the iterations of their launch have."""
    if len(rows) > MOST_LAUNCHES or not has_samples(folder):
        return
    samples = read_samples(folder, set(rows["case"]))
    steps, silent = steps_by_row(rows, samples), steps_of_pass(rows, samples, "silent_ms")
    expected = [
        _of_samples(
            typical if version >= TRIMMED_MEAN else statistics.median,
            steps.get(row, []),
            silent.get(row, []),
        )
        for row, version in rows["schema_version"].items()
    ]
    columns = pandas.DataFrame(expected, index=rows.index, columns=TIMES)
    # Where nothing is sent, computation is the step and silent steps tell nothing more.
    columns.loc[rows["exposed_comm_ms"] == 0, "compute_ms"] = math.nan
    limit = relative_limit(rows).clip(lower=OF_SAMPLES)
    for name in TIMES:
        limits = 0.0 if name == "iterations" else limit
        wrong = differ(rows[name].astype("float64"), columns[name].astype("float64"), limits)
        yield f"{name} contradicts the samples of its launch", wrong


def _of_samples(
    typical_of: Callable[[Sequence[float]], float], steps: Sequence[float], silent: Sequence[float]
) -> list[float]:
    """The figures in the order of ``TIMES``, not a number where there are no samples."""
    of_steps = [typical_of(steps), *outer_deciles(steps)] if steps else [math.nan] * 3
    return [*of_steps, typical_of(silent) if silent else math.nan, len(steps) or math.nan]
