"""Rows of runs.csv that contradict themselves, run.json, the samples of their launch or other rows.

A digit or a word of such a row was changed after spbench wrote it, and none of its figures is used.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas

from spbench.errors import or_none
from spbench.results.agreement import TOLERANCE
from spbench.results.case_columns import FIELDS, SIZES, columns_of_case
from spbench.results.conditions import OTHERS_SHARE
from spbench.results.iterations import (
    LAUNCH,
    has_samples,
    read_samples,
    steps_by_row,
    steps_of_pass,
)
from spbench.results.row_relations import (
    Reasons,
    Wrong,
    between_rows,
    differ,
    exceeds,
    figures_of,
    prepared,
    relative_limit,
    within_rows,
)
from spbench.results.run_json import case_of, read_run
from spbench.results.step_time import outer_deciles, typical

TIMES = ("step_ms", "step_ms_p10", "step_ms_p90", "compute_ms", "iterations")
TRIMMED_MEAN = 4
"""Version of rows from which on times are trimmed means; before they were medians."""
OF_CASE = (*FIELDS, *SIZES, "workload_key")
OF_SAMPLES = 1e-5
"""Relative difference that rounding explains between a figure and samples, of six digits."""
OTHERS, TENTHS = r"^others used ([\d.]+) of (\d+) core", 0.0501
"""Cores of others and of the machine in ``noisy``, and how far the first is rounded."""
MOST_LAUNCHES = 200
"""Launches of a file whose samples are opened; those of more would take seconds."""


def contradictions(rows: pandas.DataFrame, why: Sequence[str], folder: Path) -> list[str]:
    """Why each row cannot be believed; ``why`` has what is known already, blank for sound rows.

    ``folder`` is that of run.json and samples. Only rows that no file contradicts are compared
    with each other, so that a damaged row has no vote.
    """
    reasons = np.array(why, dtype=object)
    rows = prepared(rows)
    good = rows[rows["status"] == "ok"]
    last = good.index[~good.duplicated(LAUNCH, keep="last")]
    for witness in (
        within_rows,
        _against_limits,
        lambda sound: _against_run_json(sound, folder),
        lambda sound: _against_samples(sound, sound.index.isin(last), folder),
        between_rows,
    ):
        is_sound = reasons == ""
        sound = rows if is_sound.all() else rows[is_sound]
        for reason, is_wrong in witness(sound) if len(sound) else ():
            for row in sound.index[is_wrong]:
                reasons[row] = reasons[row] or reason
    return [*reasons]


def _against_limits(rows: pandas.DataFrame) -> Reasons:
    """Good rows that others' work, or a last step too far from the first, should have marked."""
    names = ("repeat_error", "others_cores", "gpu_neighbours", "alloc_retries")
    figures, limit = figures_of(rows, names), relative_limit(rows, ("others_cores",))
    is_good, noisy = (rows["status"] == "ok").to_numpy(), rows["noisy"]
    most = np.array([TOLERANCE.get(name, np.inf) for name in rows["dtype"].tolist()])
    yield (
        "repeat_error is too large for ok",
        exceeds(figures["repeat_error"], most, limit) & is_good,
    )
    with np.errstate(invalid="ignore"):
        is_known = (figures["gpu_neighbours"] > 0) | (figures["alloc_retries"] > 0)
    places, texts = pandas.factorize(noisy)
    said = pandas.Series(texts).str.extract(OTHERS).astype("float64").to_numpy()[places]
    least = np.fmax(said[:, 0] - TENTHS, OTHERS_SHARE * said[:, 1])
    is_other = exceeds(least, figures["others_cores"], limit)
    is_other |= exceeds(figures["others_cores"], said[:, 0] + TENTHS, limit)
    wrong = is_other | (is_known & (noisy == "").to_numpy())
    yield "noisy contradicts others_cores, gpu_neighbours or alloc_retries", wrong & is_good


def _against_run_json(rows: pandas.DataFrame, folder: Path) -> Reasons:
    """Rows whose case has other fields in run.json, or another key there."""
    entries = {entry["key"]: entry for entry in read_run(folder).get("cases", [])}
    cases = {key: or_none(partial(case_of, entry)) for key, entry in entries.items()}
    columns = {key: columns_of_case(case) for key, case in cases.items() if case}
    sound = [of_case for key, of_case in columns.items() if of_case["case"] == key]
    if not sound:
        return
    recorded = pandas.DataFrame(sound).set_index("case")
    places = recorded.index.get_indexer(pandas.Index(rows["case"]))
    for name in OF_CASE:
        cells = rows[name].to_numpy(object, na_value="")
        expected = recorded[name].to_numpy(object)[places]
        yield f"{name} contradicts run.json", (places >= 0) & (cells != "") & (cells != expected)
    wrong = ~rows["case"].isin(entries).to_numpy()
    fields, known = (frame[[*FIELDS]] for frame in (rows[wrong], recorded))
    wrong[wrong] = pandas.MultiIndex.from_frame(fields).isin(pandas.MultiIndex.from_frame(known))
    yield "case contradicts run.json", wrong


def _against_samples(rows: pandas.DataFrame, is_last: Wrong, folder: Path) -> Reasons:
    """Last rows of a launch with other times than its iterations have."""
    if is_last.sum() > MOST_LAUNCHES or not has_samples(folder):
        return
    samples = read_samples(folder, set(rows["case"]))
    steps, silent = steps_by_row(rows, samples), steps_of_pass(rows, samples, "silent_ms")
    times = [
        _of_samples(
            typical if version >= TRIMMED_MEAN else statistics.median,
            steps.get(row, []),
            silent.get(row, []),
        )
        for row, version in rows["schema_version"].items()
    ]
    of_samples = dict(zip(TIMES, np.array(times).T, strict=True))
    figures = figures_of(rows, (*TIMES, "exposed_comm_ms"))
    # Where nothing is sent, computation is the step and silent steps tell nothing more.
    of_samples["compute_ms"][figures["exposed_comm_ms"] == 0] = math.nan
    for name, expected in of_samples.items():
        limit = 0.0 if name == "iterations" else np.fmax(relative_limit(rows), OF_SAMPLES)
        wrong = differ(figures[name], expected, limit)
        yield f"{name} contradicts the samples of its launch", wrong & is_last


def _of_samples(
    typical_of: Callable[[Sequence[float]], float], steps: Sequence[float], silent: Sequence[float]
) -> list[float]:
    """The figures in the order of ``TIMES``, not a number where there are no samples."""
    of_steps = [typical_of(steps), *outer_deciles(steps)] if steps else [math.nan] * 3
    return [*of_steps, typical_of(silent) if silent else math.nan, len(steps) or math.nan]
