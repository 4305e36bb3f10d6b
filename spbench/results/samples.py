"""Every iteration of every rank: a file a launch in samples/, written by rename, so never torn."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Collection, Hashable, Sequence
from itertools import zip_longest
from pathlib import Path

import pandas

from spbench.results.hand_over import Sample, write_atomically
from spbench.results.record import Record
from spbench.results.run_json import folder_of_run

FOLDER = "samples"
LAUNCH = ["case", "launch"]
KEYS = [*LAUNCH, "rank", "iteration"]
TIMES = ("step_ms", "silent_ms")
SAMPLE_COLUMNS = (*KEYS, *TIMES)
LEAST_MS, MOST_MS = 1e-6, 1e12
"""A nanosecond and thirty years: a time outside is not a step's, and its ratios may overflow."""


def write_samples(folder: Path, record: Record, samples: Sequence[Sample]) -> None:
    """Writes the iterations of one launch, in place of those of an earlier attempt."""
    rows = [
        (record.case, record.launch, sample.rank, i, *(ms and f"{ms:.6g}" for ms in times))
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


def has_samples(run: Path) -> bool:
    return (run / FOLDER).is_dir()


def read_samples(path: str | Path, cases: Collection[str] | None = None) -> pandas.DataFrame:
    """The iterations of a results directory, of all its cases or of those given.

    A row is one iteration of one rank: case (str), launch, rank, iteration (int64), step_ms (timed)
    and silent_ms (the same step with silent collectives), both float64, NaN where that pass did not
    get as far.

    Never raises. ``frame.attrs["torn"]`` counts files that are cut short or damaged,
    ``frame.attrs["damaged"]`` lines that are not samples.
    """
    cells, torn = _cells_of_launches(folder_of_run(Path(path)), cases)
    names = [*KEYS[1:], *TIMES]
    numbers = cells[names].apply(pandas.to_numeric, errors="coerce").astype(float)
    counts, ms = numbers[KEYS[1:]], numbers[list(TIMES)]
    is_sound = ((counts >= 0) & (counts % 1 == 0)).all(axis=1)
    is_sound &= (ms.isna() | ((ms >= LEAST_MS) & (ms <= MOST_MS))).all(axis=1)
    kinds = {"case": "str"} | dict.fromkeys(KEYS[1:], "int64") | dict.fromkeys(TIMES, "float64")
    frame = cells.assign(**{name: numbers[name] for name in names})[is_sound].astype(kinds)
    frame = frame.reset_index(drop=True)
    frame.attrs |= {"torn": torn, "damaged": int((~is_sound).sum())}
    return frame


def _cells_of_launches(folder: Path, cases: Collection[str] | None) -> tuple[pandas.DataFrame, int]:
    """The lines of the files in samples/, and the number of damaged files."""
    texts, torn = [], 0
    files = (folder / FOLDER).glob("*-launch*.csv.gz")
    for file in sorted(files, key=lambda path: path.name):  # comparing paths takes 20 times as long
        if cases is not None and file.name.rpartition("-launch")[0] not in cases:
            continue
        try:
            text = gzip.decompress(file.read_bytes()).decode()
        except (OSError, EOFError, zlib.error, UnicodeDecodeError):
            text = ""
        header, _, rows = text.partition("\n")
        torn += not header
        texts.append(rows)
    return _cells_of("".join(texts)), torn


def _cells_of(text: str) -> pandas.DataFrame:
    """The lines of a CSV file without its header; nothing in it raises."""
    header = ",".join(SAMPLE_COLUMNS)  # ahead of lines that may all be too short
    return pandas.read_csv(
        io.StringIO(f"{header}\n{text}"),
        usecols=range(len(SAMPLE_COLUMNS)),
        dtype={"case": str},
        na_values={name: [""] for name in TIMES},
        keep_default_na=False,
        index_col=False,
        quoting=csv.QUOTE_NONE,
        on_bad_lines="skip",
        low_memory=False,
    )


def steps_by_row(rows: pandas.DataFrame, samples: pandas.DataFrame) -> dict[Hashable, list[float]]:
    """Milliseconds of each iteration of a launch on its slowest rank, by the label of its row.

    A launch that has no time, or lost samples of a rank, is left out. A share runs one rank, and
    silent steps alone.
    """
    is_share = rows["kind"] == "one_gpu_share"
    shares = rows[is_share].assign(world_size=1)
    timed = _steps(rows[~is_share], samples, "step_ms", "step_ms")
    return timed | _steps(shares, samples, "compute_ms", "silent_ms")


def _steps(
    rows: pandas.DataFrame, samples: pandas.DataFrame, figure: str, column: str
) -> dict[Hashable, list[float]]:
    """Steps of the launches with a ``figure`` in which each iteration has the time of all ranks."""
    if not (rows[figure] > 0).any():
        return {}
    of_ranks = samples.groupby([*LAUNCH, "iteration"])[column].agg(["max", "count"])
    of_launch = of_ranks[of_ranks["count"] > 0].groupby(level=LAUNCH)
    steps = of_launch.agg(ms=("max", list), least=("count", "min"), most=("count", "max"))
    known = rows[[*LAUNCH, "world_size", figure]].join(steps, on=LAUNCH)
    ranks = known["world_size"]
    is_whole = (known["least"] == ranks) & (known["most"] == ranks) & (known[figure] > 0)
    return known.loc[is_whole.fillna(False).astype(bool), "ms"].to_dict()
