"""Every iteration of every rank: a file a launch in samples/, written by rename, so never torn.

Older versions wrote all launches into one samples.csv.gz, which is read as well.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Collection, Hashable, Sequence
from itertools import zip_longest
from pathlib import Path

import pandas

from spbench.results import old_samples
from spbench.results.record import Record
from spbench.results.run_json import folder_of_run
from spbench.results.sample import Sample, write_atomically

FOLDER = "samples"
LAUNCH = ["case", "launch"]
KEYS = [*LAUNCH, "rank", "iteration"]
TIMES = {"step_ms": "timed", "silent_ms": "silent"}
"""Columns of times, with the name of the pass in the old form."""
SAMPLE_COLUMNS = (*KEYS, *TIMES)
LEAST_MS, MOST_MS = 1e-6, 1e12
"""A nanosecond and thirty years: a time outside is not a step's, and its ratios may overflow."""


def write_samples(folder: Path, record: Record, samples: Sequence[Sample]) -> None:
    """Writes the iterations of one launch, in place of those of an earlier attempt."""
    rows = [
        (record.case, record.launch, sample.rank, i, *(_cell(ms) for ms in times))
        for sample in samples
        for i, times in enumerate(zip_longest(sample.step_ms or [], sample.compute_ms or []))
    ]
    if not rows:
        return
    text = io.StringIO()
    csv.writer(text).writerows([SAMPLE_COLUMNS, *rows])
    (folder / FOLDER).mkdir(exist_ok=True)
    path = folder / FOLDER / f"{record.case}-launch{record.launch}.csv.gz"
    write_atomically(path, gzip.compress(text.getvalue().encode(), mtime=0))


def _cell(ms: float | None) -> str:
    return "" if ms is None else f"{ms:.6g}"


def has_samples(run: Path) -> bool:
    return (run / FOLDER).is_dir() or (run / old_samples.NAME).exists()


def read_samples(path: str | Path, cases: Collection[str] | None = None) -> pandas.DataFrame:
    """The iterations of a results directory, of all its cases or of those given.

    A row is one iteration of one rank: case (str), launch, rank, iteration (int64), step_ms (timed)
    and silent_ms (the same step with silent collectives), both float64, NaN where that pass did not
    get as far. Of a launch that was measured again the last whole attempt is there.

    Never raises. ``frame.attrs["torn"]`` counts launches that are cut short or damaged,
    ``frame.attrs["damaged"]`` lines that are not samples.
    """
    folder = folder_of_run(Path(path))
    cells, torn = _cells_of_launches(folder, cases)
    new, damaged = _sound_lines(cells, TIMES)
    old_cells, old_torn = old_samples.read_cells(folder, cases)
    old_lines, old_damaged = _sound_lines(old_cells, ["ms"])
    old, out_of_order = _side_by_side(old_lines)
    known = pandas.MultiIndex.from_frame(new[LAUNCH])
    old = old[~pandas.MultiIndex.from_frame(old[LAUNCH]).isin(known)]
    frame = pandas.concat([part for part in (old, new) if len(part)] or [new], ignore_index=True)
    kinds = {"case": "str"} | dict.fromkeys(KEYS[1:], "int64") | dict.fromkeys(TIMES, "float64")
    frame = frame[list(SAMPLE_COLUMNS)].astype(kinds)
    frame.attrs |= {"torn": torn + old_torn, "damaged": damaged + old_damaged + out_of_order}
    return frame


def _cells_of_launches(folder: Path, cases: Collection[str] | None) -> tuple[pandas.DataFrame, int]:
    """The lines of the files in samples/, and the number of damaged files."""
    texts, torn = [], 0
    for file in sorted((folder / FOLDER).glob("*-launch*.csv.gz")):
        if cases is not None and file.name.rpartition("-launch")[0] not in cases:
            continue
        try:
            text = gzip.decompress(file.read_bytes()).decode()
        except (OSError, EOFError, zlib.error, UnicodeDecodeError):
            text = ""
        header, _, rows = text.partition("\n")
        torn += not header
        texts.append(rows)
    return old_samples.cells_of("".join(texts), SAMPLE_COLUMNS), torn


def _sound_lines(cells: pandas.DataFrame, times: Collection[str]) -> tuple[pandas.DataFrame, int]:
    """The lines that are samples, with numbers in place of their texts, and how many are not."""
    names = [*KEYS[1:], *times]
    numbers = cells[names].apply(pandas.to_numeric, errors="coerce").astype(float)
    counts, ms = numbers[KEYS[1:]], numbers[list(times)]
    is_sound = ((counts >= 0) & (counts % 1 == 0)).all(axis=1)
    is_sound &= (ms.isna() | ((ms >= LEAST_MS) & (ms <= MOST_MS))).all(axis=1)
    if "ms" in times:
        is_sound &= ms["ms"].notna()
    cells = cells.assign(**{name: numbers[name] for name in names})
    return cells[is_sound], int((~is_sound).sum())


def _side_by_side(lines: pandas.DataFrame) -> tuple[pandas.DataFrame, int]:
    """Both passes of the old form in one row, and the number of lines whose predecessor is lost."""
    lines = _last_attempts(lines)
    one_pass = [*LAUNCH, "pass", "rank"]
    lines = lines.sort_values([*one_pass, "iteration"], kind="stable")
    follows = lines["iteration"] == lines.groupby(one_pass).cumcount()
    wide = lines[follows].set_index([*KEYS, "pass"])["ms"].unstack("pass")
    wide = wide.reindex(columns=list(TIMES.values())).dropna(how="all")
    return wide.set_axis(list(TIMES), axis=1).reset_index(), int((~follows).sum())


def _last_attempts(lines: pandas.DataFrame) -> pandas.DataFrame:
    """The last attempt at each launch; iteration 0 of a rank for a second time begins another."""
    is_whole = lines["whole"].astype(bool)
    elsewhere = is_whole.groupby([lines[name] for name in LAUNCH]).transform("any").astype(bool)
    lines = lines[is_whole | ~elsewhere]
    launch = [lines[name] for name in LAUNCH]
    again = lines.groupby([*KEYS, "pass"]).cumcount().where(lines["iteration"] == 0, 0)
    attempt = again.groupby(launch).cummax()
    return lines[attempt == attempt.groupby(launch).transform("max")]


def steps_by_row(rows: pandas.DataFrame, samples: pandas.DataFrame) -> dict[Hashable, list[float]]:
    """Milliseconds of each iteration of a launch on its slowest rank, by the label of its row.

    A launch that has no time, or lost samples of a rank, is left out. A share runs one rank.
    """
    is_share = rows["kind"] == "one_gpu_share"
    measured = steps_of_pass(rows[~is_share], samples, "step_ms")
    return measured | steps_of_pass(rows[is_share], samples, "silent_ms")


def steps_of_pass(
    rows: pandas.DataFrame, samples: pandas.DataFrame, column: str
) -> dict[Hashable, list[float]]:
    """Milliseconds as ``steps_by_row``, of one pass: ``step_ms`` timed, ``silent_ms`` silent."""
    ranks = rows["world_size"].where(rows["kind"] != "one_gpu_share", 1)
    time_ms = rows["step_ms" if column == "step_ms" else "compute_ms"]
    return _steps(rows.assign(world_size=ranks, step_ms=time_ms), samples, column)


def _steps(
    rows: pandas.DataFrame, samples: pandas.DataFrame, column: str
) -> dict[Hashable, list[float]]:
    """Steps of the launches in which each iteration has the time of all ranks."""
    of_ranks = samples.groupby([*LAUNCH, "iteration"])[column].agg(["max", "count"])
    of_launch = of_ranks[of_ranks["count"] > 0].groupby(level=LAUNCH)
    steps = of_launch.agg(ms=("max", list), least=("count", "min"), most=("count", "max"))
    known = rows[[*LAUNCH, "world_size", "step_ms"]].join(steps, on=LAUNCH)
    ranks = known["world_size"]
    is_whole = (known["least"] == ranks) & (known["most"] == ranks) & (known["step_ms"] > 0)
    return known.loc[is_whole.fillna(False).astype(bool), "ms"].to_dict()
