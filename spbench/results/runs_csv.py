"""runs.csv read as a DataFrame: a row a launch, a column a field of ``record.Record``.

Sound rows are used; other lines are counted, and a sentence says why. Nothing raises but
ResultsError, for a file that cannot be read at all. A figure is a plain decimal number; one that
cannot be, as a negative time, is damage: it would be drawn and divided by.

A good row says most things more than once: a step's time is in its rates too, bytes are counted and
predicted. A row that contradicts itself, or its case, was changed after spbench wrote it, and none
of its figures is used. A blank cell contradicts nothing. What a case is of, its strategy, dtype and
so on, is in its key too, a hash: run.json says of which, and where it does not, rows of one key are
alike.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import numpy as np
import pandas
from numpy.typing import NDArray

from spbench.errors import ResultsError, or_none
from spbench.results.hand_over import STATUSES
from spbench.results.record import COLUMNS, DEFAULTS, REQUIRED, Record, axes_text
from spbench.results.run_json import case_of, folder_of_run, read_run
from spbench.results.store import Lines, lines_of, text_of
from spbench.text import counted
from spbench.workload.case import Device, Execution, Kind
from spbench.workload.fields import Checkpointing, Dtype, Mode, Optimizer
from spbench.workload.traffic import PHASES

ABOVE_0 = frozenset(
    name
    for name in COLUMNS
    if name in ("schema_version", "batch", "compute_ms", "tokens", "hidden", "heads")
    or name.startswith(("step_ms", "samples_per_s", "tokens_per_s"))
    or name.endswith("_size")
)
"""Other figures may be 0."""
MAY_BE_NEGATIVE = frozenset(
    ("exposed_comm_ms", "exposed_comm_ms_low", "exposed_comm_ms_high", "gpu_temperature_c")
)
LARGEST = 1e30
"""Sums and ratios of smaller figures are finite."""
LARGEST_COUNT = 2**63 - 1
WHOLE = re.compile(r"([-+]?[0-9]{1,19})(?:\.0*)?")
"""A program that knows floats alone writes 123 as 123.0; a fraction is not a count."""
NUMBER = re.compile(r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)")
SIGNS = "0123456789.+-eE"
"""Characters that a number is made of."""
NOT_MEASURED = re.compile(r"|[-+]?(nan|inf|infinity)", re.IGNORECASE)
WORDS = {
    name: re.compile("|".join(words))
    for name, words in {
        "status": STATUSES,
        "dtype": get_args(Dtype),
        "mode": get_args(Mode),
        "checkpointing": get_args(Checkpointing),
        "optimizer": get_args(Optimizer),
        "device": get_args(Device),
        "kind": get_args(Kind),
        "backend": ("nccl", "gloo", "fake"),
        "effort": ("full", "quick", "counted", r"[0-9.e+-]+ s(, none silent)?"),
        "axes": (r"[^=]+=[0-9]+(x[^=]+=[0-9]+)*",),
        "guidance": (r"[1-9][0-9]*",),
        "execution": get_args(Execution),
        "stopped_by": ("precision", "seconds", "iterations"),
        "host_bound": ("yes", "no"),
        "steady": ("yes", "no"),
    }.items()
}
"""What the texts of a column look like, where not any text will do."""
TEXT: Final[Any] = pandas.Series([], dtype="str").dtype
"""What this version of pandas keeps texts in."""
NOT_UTF8 = "\ufffd"
"""Stands for bytes that are not UTF-8."""


@cache
def column_types() -> dict[str, type]:
    """The plain type of each column: int, float or str."""
    return {
        name: next((kind for kind in (int, float) if kind in (hint, *get_args(hint))), str)
        for name, hint in get_type_hints(Record).items()
    }


def values_of(name: str, texts: Iterable[str]) -> tuple[list[Any], list[str]]:
    """The values of cells in the column ``name``, None if not measured; why others have none."""
    kind, bare = column_types()[name], [text.strip() for text in texts]
    if kind is str:
        return bare, [_why_not_text(name, text) for text in bare]
    most = LARGEST_COUNT if kind is int else LARGEST
    least = -LARGEST if name in MAY_BE_NEGATIVE else 1 / LARGEST if name in ABOVE_0 else 0.0
    values = [value if least <= value <= most else None for value in _numbers(kind, bare)]
    return values, [
        _why_no_figure(name, text) if value is None else ""
        for value, text in zip(values, bare, strict=True)
    ]


def _numbers(kind: type, texts: Sequence[str]) -> list[float]:
    """The numbers in texts; not a number where there is none. Python reads most columns at once, in
    a third of the time: those of digits and signs alone."""
    if not "".join(texts).strip(SIGNS):
        with contextlib.suppress(ValueError):
            return [kind(text) if text else math.nan for text in texts]
    pattern = WHOLE if kind is int else NUMBER
    return [kind(match[1]) if match else math.nan for match in map(pattern.fullmatch, texts)]


def _why_no_figure(name: str, text: str) -> str:
    if NOT_MEASURED.fullmatch(text):
        return f"{name} is blank" if name in REQUIRED else ""
    return f"{name} is not a valid figure"


def _why_not_text(name: str, text: str) -> str:
    """Texts with a set of words must be one of them; what else names a row must be there."""
    if not text:
        return f"{name} is blank" if name in REQUIRED else ""
    if name in WORDS and not WORDS[name].fullmatch(text):
        return f"{name} {text[:20]!r} is not known to this version"
    return f"{name} is not valid text" if name in REQUIRED and NOT_UTF8 in text else ""


def as_column(name: str, values: Iterable[Any]) -> Any:
    """Values of one column, None for what was not measured, in its dtype. Python and numpy do it in
    a tenth of the time that pandas takes for a few values."""
    kind, values = column_types()[name], [*values]
    if kind is str:
        return pandas.array(values, dtype=TEXT)
    if kind is float:
        return np.array([np.nan if value is None else value for value in values], "float64")
    whole = np.array([0 if value is None else value for value in values])
    if whole.dtype != "int64":  # there are none, or they are of another type, which pandas judges
        return pandas.array(values, dtype="Int64")
    return pandas.arrays.IntegerArray(whole, np.array([value is None for value in values]))


def are_distinct(*columns: pandas.Series[Any]) -> bool:
    """Whether no two rows have the same values in all of these columns."""
    rows = [*zip(*(column.tolist() for column in columns), strict=True)]
    return len(set(rows)) == len(rows)


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
OF_CASE = (
    *("strategy", "workload", *OF_WORKLOAD, "device", "kind", "execution", "world_size"),
    "workload_key",
)
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
    # run.json has an entry a launch: of each case the last is asked.
    known = {
        entry["key"]: dict(_columns_of(entry))
        for entry in {entry["key"]: entry for entry in cases}.values()
    }
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
    execution = entry.get("execution", "eager")  # older versions had no other, and say nothing
    named["execution"] = "" if execution == "eager" else execution
    axes = named["axes"]
    if isinstance(axes, dict):
        named["axes"] = axes_text(axes)
    mesh = entry.get("mesh")
    if isinstance(mesh, dict):
        sizes = [f"{axis}={size}" for axis, size in mesh.items() if size != 1]
        named["strategy"] = " ".join([str(named["strategy"]), *sizes])
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


OLDEST = {"schema_version": 1, "dp_size": 1}
"""Values of rows that were written before there were these columns."""
SHARE_BACKEND = "fake"
"""Backend of a share of one GPU, which sends nothing."""
MOST_SHOWN = 3


def read_runs(path: str | Path) -> pandas.DataFrame:
    """The launches of a results directory, or of one CSV file, in the order they were written.

    A row is a launch, a column is a field of ``Record``; names end in units (``step_ms``,
    ``sent_bytes_forward``, ``samples_per_s``). By dtype:

        str      run_id, case, strategy, workload, status, reason, ...; blank is ""
        Int64    batch, world_size, launch, iterations, ..._bytes; blank is <NA>
        float64  step_ms, compute_ms, samples_per_s, output_error, ...; blank is NaN

    Blank means not measured, never 0. ``frame.attrs["remarks"]`` lists, as sentences, what a reader
    of the figures must know: rows left out and why, rows that repeat others, renamed columns.
    ``frame.attrs["left_out"]`` has the line numbers of the rows left out, by the reason.

    Raises ResultsError for a file that cannot be read.
    """
    path = Path(path)
    file = path / "runs.csv" if path.is_dir() else path
    try:
        lines = lines_of(text_of(file.read_bytes()))
    except OSError as error:
        raise ResultsError(f"cannot read {file}: {error.strerror}") from None
    cases = read_run(folder_of_run(file)).get("cases", [])
    every, left_out = _sound_rows(lines, cases)
    frame = _without_repeats(every)
    remarks = [
        *_renamed_remark(path, lines),
        *_left_out_remark(path, left_out),
        *_superseded_remark(path, frame),
        *_repeats_remark(path, len(every) - len(frame)),
    ]
    frame.attrs |= {"left_out": left_out, "remarks": remarks}
    return frame


def frame_of(records: Iterable[Record]) -> pandas.DataFrame:
    """The frame that ``read_runs`` would return for these records."""
    records = list(records)
    frame = pandas.DataFrame(
        {name: as_column(name, (getattr(record, name) for record in records)) for name in COLUMNS}
    )
    frame.attrs |= {"left_out": {}, "remarks": []}
    return frame


def records_of(frame: pandas.DataFrame) -> list[Record]:
    """The rows of a frame as records, None for what was not measured.

    A column that is blank throughout, as most are, is left to the default of its field; and the
    constructor of frozen data calls a function for each field: four times as long.
    """
    bare = pandas.DataFrame(frame)  # what a frame says beside its cells is copied with each column
    columns: dict[str, Any] = {name: bare[name] for name in COLUMNS}
    cells = {name: x.to_numpy(object, na_value=None).tolist() for name, x in columns.items()}
    filled = [name for name in COLUMNS if cells[name].count(DEFAULTS[name]) < len(frame)]
    records = [object.__new__(Record) for _ in range(len(frame))]
    for record, row in zip(records, zip(*map(cells.get, filled), strict=True), strict=True):
        vars(record).update(zip(filled, row, strict=True))
    return records


def latest(frame: pandas.DataFrame) -> pandas.DataFrame:
    """One row for each case and launch: the last that was written, in the place of the first.

    Launches of a case are of one effort: full if a full one succeeded, else that of its last
    row that was not interrupted. So quick launches never hide a full run.
    """
    effort, case = _effort(frame), frame["case"]
    if effort.nunique() == 1 and are_distinct(case, frame["launch"]):
        return frame.reset_index(drop=True)
    of_case = effort.where(frame["status"] != "interrupted").groupby(case).last()
    of_case = of_case.fillna(effort.groupby(case).first())
    of_case[case[(frame["status"] == "ok") & (effort == "full")].unique()] = "full"
    shown = frame[effort == case.map(of_case)]
    launch = ["case", "launch"]
    place = shown.groupby(launch, sort=False).ngroup()
    last = shown.assign(place=place).drop_duplicates(launch, keep="last")
    return last.sort_values("place", ignore_index=True).drop(columns="place")


def _effort(frame: pandas.DataFrame) -> pandas.Series[str]:
    """Name of each row's measurement budget; rows of older versions have none, and were full."""
    return frame["effort"].where(frame["effort"] != "", "full")


def _sound_rows(
    lines: Lines, cases: Sequence[Mapping[str, Any]]
) -> tuple[pandas.DataFrame, dict[str, list[int]]]:
    """The rows whose cells are valid and agree, with those of ``cases`` too, and the numbers of the
    other lines by the reason. A text that a column has many times, as most have, is converted
    once."""
    cells = np.array([*lines.rows.values()], dtype=object)
    cells = cells.reshape(len(lines.rows), len(lines.columns))
    columns: dict[str, Any] = {}
    why = np.full(len(cells), "", dtype=object)
    for name in COLUMNS:
        is_there = name in lines.columns
        texts = cells[:, lines.columns.index(name)] if is_there else np.full_like(why, "")
        places, distinct = (
            pandas.factorize(texts) if texts.any() else (np.zeros(len(why), int), [""])
        )
        values, faults = values_of(name, distinct)
        values = [OLDEST.get(name) if value is None else value for value in values]
        columns[name] = as_column(name, values).take(places)
        if any(faults):
            why = np.where(why == "", np.array(faults, dtype=object)[places], why)
    frame = _with_kinds(pandas.DataFrame(columns))
    why = np.where(why == "", contradictions(frame), why)
    sound = frame[why == ""].reset_index(drop=True)
    why[why == ""] = contradict_their_case(sound, cases)
    reasons = why.tolist()
    left_out = {reason: list(numbers) for reason, numbers in lines.left_out.items()}
    for number, reason in zip(lines.rows, reasons, strict=True):
        if reason:
            left_out.setdefault(reason, []).append(number)
    if any(reasons):
        frame = frame.loc[[not reason for reason in reasons]].reset_index(drop=True)
    return frame, left_out


def _with_kinds(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The rows with a kind: older files have none, and name the backend of a share."""
    if (frame["kind"] != "").all():
        return frame
    is_share = frame["backend"] == SHARE_BACKEND
    older = pandas.Series("measured", frame.index).mask(is_share, "one_gpu_share")
    return frame.assign(kind=frame["kind"].mask(frame["kind"] == "", older))


def _without_repeats(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The rows without those that are exactly as the one above them of the same launch. As one
    further above they may be: a row may be taken back, and be written once more."""
    names = ["run_id", "case", "launch", "started_utc"]
    if are_distinct(*(frame[name] for name in names)):
        return frame  # nearly always, and much faster
    place = pandas.Series(range(len(frame)), frame.index)
    above = place.groupby([frame["case"], frame["launch"]]).shift().fillna(-1).astype(int)
    again = frame.duplicated().to_numpy() & (above >= 0).to_numpy()
    cells = frame.astype(object)
    ours, theirs = cells[again].reset_index(drop=True), cells.iloc[above[again]]
    is_same = (ours == theirs.reset_index(drop=True)) | (ours.isna() & theirs.isna().to_numpy())
    again[again] = is_same.fillna(False).all(axis=1).to_numpy(bool)
    return frame[~again].reset_index(drop=True)


def _renamed_remark(path: Path, lines: Lines) -> Iterable[str]:
    """Columns that are missing, where others stand there that no version of spbench has: an older
    version lacks columns, and a newer one has more, but none does both."""
    missing = [name for name in COLUMNS if name not in lines.columns]
    unknown = [name for name in lines.columns if name not in COLUMNS]
    if lines.rows and missing and unknown:
        known = ", ".join(map(repr, missing[:MOST_SHOWN]))
        yield f"{path}: no column {known}; not known: {', '.join(map(repr, unknown[:MOST_SHOWN]))}"


def _left_out_remark(path: Path, left_out: Mapping[str, Sequence[int]]) -> Iterable[str]:
    """How many rows cannot be used; the most frequent reasons first, with their lines."""
    if count := sum(map(len, left_out.values())):
        often = sorted(left_out.items(), key=lambda item: -len(item[1]))
        why = [f"{reason} ({_lines(numbers)})" for reason, numbers in often[:MOST_SHOWN]]
        why += ["and more"] if len(often) > MOST_SHOWN else []
        are = "is" if count == 1 else "are"
        yield f"{counted(count, 'row')} of {path} {are} left out: {'; '.join(why)}"


def _lines(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:MOST_SHOWN]))
    more = len(numbers) - MOST_SHOWN
    word = "line" if len(numbers) == 1 else "lines"
    return f"{word} {shown}" + (f" and {more:,} more" if more > 0 else "")


def _superseded_remark(path: Path, frame: pandas.DataFrame) -> Iterable[str]:
    """How many good rows are followed by another invocation's, as where files were joined."""
    good = frame[frame["status"] == "ok"]
    keys = [good["case"], good["launch"], _effort(good)]
    if are_distinct(*keys):
        return
    if count := int((good["round"].groupby(keys).transform("last") != good["round"]).sum()):
        yield (
            f"{counted(count, 'row')} of {path} {'has' if count == 1 else 'have'} the case and "
            "launch of a later one, which counts instead; files of several runs are compared apart"
        )


def _repeats_remark(path: Path, count: int) -> Iterable[str]:
    if count:
        are = "repeats one above it and is" if count == 1 else "repeat others and are"
        yield f"{counted(count, 'row')} of {path} {are} not counted again"
