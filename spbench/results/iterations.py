"""Every iteration of every rank: a file a launch in samples/, written by rename, so never torn.

Older versions wrote all launches into one samples.csv.gz, which is read as well.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import cast

import pandas

from spbench.results import old_samples
from spbench.results.record import Record
from spbench.results.run_json import folder_of_run
from spbench.results.sample import Sample, write_atomically

FOLDER = "samples"
SAMPLE_COLUMNS = ("case", "launch", "rank", "iteration", "step_ms", "silent_ms")
KEYS = list(SAMPLE_COLUMNS[:4])
LEAST_MS, MOST_MS = 1e-6, 1e12
"""A nanosecond and thirty years: a time outside is not a step's, and its ratios may overflow."""

Launch = tuple[str, int]
"""Case and number."""
Times = dict[Launch, dict[tuple[str, int], list[float]]]
"""Milliseconds of each iteration, by pass and rank."""


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
    new, torn, damaged = _launches(folder, cases)
    cells, old_torn = old_samples.old_cells(folder, cases)
    old, old_damaged = _wide(cells)
    known = pandas.MultiIndex.from_frame(new[["case", "launch"]])
    old = old[~pandas.MultiIndex.from_frame(old[["case", "launch"]]).isin(known)]
    frame = pandas.concat([part for part in (old, new) if len(part)] or [new], ignore_index=True)
    frame.attrs |= {"torn": torn + old_torn, "damaged": damaged + old_damaged}
    return frame


def _launches(folder: Path, cases: Collection[str] | None) -> tuple[pandas.DataFrame, int, int]:
    """The iterations in samples/, and the numbers of damaged files and lines."""
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
    frame = pandas.read_csv(
        io.StringIO("".join(texts)),
        names=list(SAMPLE_COLUMNS),
        dtype={"case": str},
        index_col=False,
        on_bad_lines="skip",
        low_memory=False,
    )
    frame = _numeric(frame, ["step_ms", "silent_ms"])
    sound = _are_numbers(frame) & _is_time(frame["step_ms"]) & _is_time(frame["silent_ms"])
    return _typed(frame[sound]), torn, int((~sound).sum())


def _wide(cells: pandas.DataFrame) -> tuple[pandas.DataFrame, int]:
    """Both passes of the old form side by side, and the number of lines that are not samples."""
    cells = _numeric(cells, ["ms"])
    sound = _are_numbers(cells) & _is_time(cells["ms"]) & cells["ms"].notna()
    good = _last_attempts(cells[sound])
    passes = []
    keys = [*KEYS[:2], "pass", "rank"]
    good = good.sort_values([*keys, "iteration"], kind="stable")
    follows = good["iteration"] == good.groupby(keys).cumcount()
    for name, column in (("timed", "step_ms"), ("silent", "silent_ms")):
        times = good[follows & (good["pass"] == name)]
        passes.append(times[[*KEYS, "ms"]].rename(columns={"ms": column}))
    wide = passes[0].merge(passes[1], on=KEYS, how="outer")
    return _typed(wide), int((~sound).sum() + (~follows).sum())


def _last_attempts(good: pandas.DataFrame) -> pandas.DataFrame:
    """The last attempt at each launch; iteration 0 of a rank for a second time begins another."""
    whole = pandas.MultiIndex.from_frame(good.loc[good["whole"].astype(bool), KEYS[:2]])
    named = pandas.MultiIndex.from_frame(good[KEYS[:2]])
    good = good[good["whole"].astype(bool) | ~named.isin(whole)]
    again = good.groupby([*KEYS, "pass"]).cumcount().where(good["iteration"] == 0, 0)
    launch = [good["case"], good["launch"]]
    attempt = again.groupby(launch).cummax()
    return good[attempt == attempt.groupby(launch).transform("max")]


def _numeric(cells: pandas.DataFrame, times: Sequence[str]) -> pandas.DataFrame:
    """Figures in place of their texts, NaN for what is not a number."""
    names = [*KEYS[1:], *times]
    figures = {name: pandas.to_numeric(cells[name], errors="coerce") for name in names}
    return cells.assign(**{name: column.astype(float) for name, column in figures.items()})


def _are_numbers(cells: pandas.DataFrame) -> pandas.Series[bool]:
    """Lines whose launch, rank and iteration are whole numbers."""
    numbers = cells[KEYS[1:]]
    return ((numbers >= 0) & (numbers % 1 == 0)).all(axis=1)


def _is_time(ms: pandas.Series[float]) -> pandas.Series[bool]:
    return ms.isna() | ms.between(LEAST_MS, MOST_MS)


def _typed(frame: pandas.DataFrame) -> pandas.DataFrame:
    kinds = dict.fromkeys(KEYS[1:], "int64") | dict.fromkeys(("step_ms", "silent_ms"), "float64")
    return frame[list(SAMPLE_COLUMNS)].astype({"case": "str"} | kinds).reset_index(drop=True)


@dataclass(frozen=True, kw_only=True)
class Traces:
    """Iterations of some cases by launch, and how much is lost."""

    ms: Times = field(default_factory=dict)
    torn: int = 0
    """Launches that are cut short or damaged."""
    damaged: int = 0
    """Lines that are not samples."""

    def steps(self, record: Record) -> list[float]:
        """Milliseconds of a launch's iterations; none if it has no time, or samples of a rank are
        lost. A share runs one rank."""
        if not record.compared_ms:
            return []
        is_share = record.kind == "one_gpu_share"
        name, ranks = ("silent", 1) if is_share else ("timed", record.world_size)
        return self.slowest((record.case, record.launch), name, ranks)

    def slowest(self, launch: Launch, name: str, ranks: int) -> list[float]:
        """Each iteration takes as long as its slowest rank; none if samples of a rank are lost."""
        by_rank = [
            times for (this, _), times in self.ms.get(launch, {}).items() if this == name and times
        ]
        if len(by_rank) != ranks or len(set(map(len, by_rank))) != 1:
            return []
        return [max(at) for at in zip(*by_rank, strict=True)]


def read_traces(run: Path, cases: Collection[str] | None = None) -> Traces:
    """The iterations of ``cases``, or of all, by launch."""
    frame = read_samples(run, cases)
    ms: Times = {}
    for name, column in (("timed", "step_ms"), ("silent", "silent_ms")):
        times = frame[frame[column].notna()]
        for key, of_rank in times.groupby(KEYS[:3])[column]:
            case, launch, rank = cast(tuple[str, int, int], key)
            ms.setdefault((case, launch), {})[name, rank] = of_rank.tolist()
    return Traces(ms=ms, torn=frame.attrs["torn"], damaged=frame.attrs["damaged"])
