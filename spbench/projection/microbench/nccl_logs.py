"""One run of one test of nccl-tests: which operation, on which ranks of which hosts, how long."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from spbench.errors import Failure
from spbench.text import counted, listed
from spbench.workload.traffic import Op

NAMES: Mapping[str, Op] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "p2p",
}
"""Operations by a test's name without its ending, as in all_reduce_perf."""
OTHERS = ("alltoallv", "broadcast", "reduce", "gather", "scatter", "hypercube")
"""Tests of what no strategy does."""
# The longest first: reduce_scatter is neither reduce nor scatter. With a letter beside it, it is
# another name: alltoallv is not alltoall.
IN_A_FILE_S_NAME = re.compile(
    f"(?<![a-z])({'|'.join(sorted((*NAMES, *OTHERS), key=len, reverse=True))})(?![a-z])"
)
UNKNOWN = "N/A"
"""What nccl-tests prints of errors where it did not look for them."""


@final
@dataclass(frozen=True, kw_only=True)
class Seat:
    """Where a rank is."""

    host: str
    device: int
    group: int
    """Its number by NCCL_TESTS_SPLIT: ranks of one group send to one another alone."""


@final
@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of one test."""

    path: Path
    place: str
    """File, and the line where its header starts."""
    op: Op
    seats: Sequence[Seat]
    """By rank."""
    points: Sequence[tuple[float, float]]
    """What one rank sends, in bytes, and seconds."""

    @property
    def ranks(self) -> int:
        """How many ranks it is of."""
        return len(self.seats)

    @property
    def hosts(self) -> list[str]:
        """Their hosts, by the first rank on each."""
        return list(dict.fromkeys(seat.host for seat in self.seats))

    @property
    def bus_gb_per_s(self) -> float:
        """busbw of the largest message."""
        sent, seconds = self.largest
        return sent / seconds / 1e9

    @property
    def largest(self) -> tuple[float, float]:
        """Bytes that a rank sends of the largest message, and its seconds."""
        return max(self.points)


def run_of(op: Op, ranks: int, of_host: int, points: Sequence[tuple[float, float]]) -> Run:
    """A run that nobody made, of the first ranks of hosts with ``of_host`` devices each; ``points``
    as those of any run."""
    seats = [
        Seat(host=f"host {rank // of_host}", device=rank % of_host, group=0)
        for rank in range(ranks)
    ]
    return Run(path=Path("no file"), place="no file", op=op, seats=seats, points=points)


def seated(place: str, seats: Mapping[int, Seat]) -> Sequence[Seat]:
    """The seats of all ranks of a run, each on a device of its own. Raises Failure where some are
    not listed, where ranks share a device, and for several groups of them."""
    ranks = len(seats)
    if ranks < 2:
        raise Failure(f"{place}: lists {counted(ranks, 'rank')}; links need 2 or more")
    if set(seats) != set(range(ranks)):
        listed = ", ".join(map(str, sorted(seats)))
        raise Failure(f"{place}: lists ranks {listed}, and not all of the run, from 0 on")
    groups = sorted({seat.group for seat in seats.values()})
    if len(groups) > 1:
        raise Failure(
            f"{place}: its ranks are in groups {', '.join(map(str, groups))} (NCCL_TESTS_SPLIT), "
            f"which send at the same time; a level has times of one group alone: run it without, "
            f"on as many ranks as a group has"
        )
    on_device: dict[tuple[str, int], int] = {}
    for rank, seat in sorted(seats.items()):
        other = on_device.setdefault((seat.host, seat.device), rank)
        if other != rank:
            raise Failure(
                f"{place}: ranks {other} and {rank} are both on device {seat.device} of host "
                f"{seat.host!r}: several hosts of one name (nccl-tests cuts names at the first "
                f"dot), or processes that see one device each; give hosts names of their own, "
                f"and let every process see all devices"
            )
    return tuple(seats[rank] for rank in range(ranks))


def factor(op: Op, ranks: int) -> float:
    """busbw over algbw: what a rank sends of a buffer."""
    return {"all_reduce": 2 * (ranks - 1) / ranks, "p2p": 1.0}.get(op, (ranks - 1) / ranks)


def operation(place: str, test: str) -> Op:
    """The operation of a test by the name that it prints, alltoall_perf for one. Raises Failure."""
    name = test.removesuffix("_perf")
    if name not in NAMES:
        raise Failure(f"{place}: {test} is a test of what no strategy does; {KNOWN}")
    return NAMES[name]


def named(path: Path) -> Op:
    """The operation by which a file is named, where the test prints no name. Raises Failure."""
    found = set(IN_A_FILE_S_NAME.findall(path.name.lower()))
    if len(found) != 1:
        raise Failure(
            f"{path}: which test is it? This output has no name of one; name the file by it, as in "
            f"all_gather_perf.log. {KNOWN}"
        )
    return operation(str(path), *found)


KNOWN = f"Known are {', '.join(NAMES)}"


# What nccl-tests writes with ``-J FILE``: one run as JSON.


def run_of_json(path: Path, text: str) -> Run:
    """The run of a file. Raises Failure for other JSON, and for numbers that arrived wrong."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise Failure(f"{path}:{error.lineno}: not whole JSON of nccl-tests: {error.msg}") from None
    op = _operation(path, data)
    try:
        devices = data["config"]["devices"]
        seats = {int(each["rank"]): _seat(each) for each in devices}
        rows = [
            (int(each["size"]), dict(each["out_of_place"]), dict(each.get("in_place") or {}))
            for each in data["results"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise Failure(
            f"{path} is not JSON of nccl-tests (-J): no config.devices with rank, hostname and "
            f"device, and results with size and out_of_place ({error!r})"
        ) from None
    if len(seats) < len(devices):
        raise Failure(f"{path}: {len(devices)} devices of {len(seats)} ranks: one is listed twice")
    where = seated(str(path), seats)
    points = [
        (size * factor(op, len(seats)), seconds)
        for number, (size, *halves) in enumerate(rows)
        for seconds in _seconds(f"{path}: results[{number}]", *halves)
        if size
    ]
    if not points:
        raise Failure(f"{path}: a test without times: it ended before its first size")
    return Run(path=path, place=str(path), op=op, seats=where, points=points)


def _operation(path: Path, data: Any) -> Op:
    """By the program that its arguments begin with, where they are there, or by the file's name."""
    arguments = data.get("args") if isinstance(data, dict) else None
    if isinstance(arguments, list) and arguments:
        return operation(str(path), Path(str(arguments[0])).name)
    return named(path)


def _seat(device: Mapping[str, Any]) -> Seat:
    return Seat(
        host=str(device["hostname"]), device=int(device["device"]), group=int(device["group"])
    )


def _seconds(
    place: str, out_of_place: Mapping[str, Any], in_place: Mapping[str, Any]
) -> Iterator[float]:
    """The time out of place, if any was taken. Raises Failure for wrong numbers in either half."""
    for half, name in ((out_of_place, "out of place"), (in_place, "in place")):
        wrong = half.get("nwrong")
        # JSON has no N/A: a number, or nothing where errors were not looked for.
        if isinstance(wrong, int | float) and wrong > 0:
            raise Failure(
                f"{place}: nwrong is {wrong:g} {name}: numbers arrived wrong, and such times mean "
                f"nothing"
            )
    us = out_of_place.get("time")
    if not isinstance(us, int | float) or not math.isfinite(us):
        raise Failure(f"{place}: no time out of place, which is what strategies' collectives take")
    if us:
        yield us / 1e6


# Output of nccl-tests: the runs that a file holds, each of one test on so many ranks.
#
# A run prints a header, a line for each rank, and a table. A line of the table has the size S of a
# buffer in bytes and the time t of one collective; algbw is S / t. By nccl-tests'
# doc/PERFORMANCE.md, busbw is algbw times a factor, which makes it what one rank sends, over the
# time; so a rank sends S times the factor:
#
#     all_reduce                               S is a rank's buffer                 2 (n - 1) / n
#     all_gather, reduce_scatter, alltoall     S is the larger of a rank's buffers    (n - 1) / n
#     sendrecv                                 S is what a rank sends               1
#
# Times are those out of place, as strategies have them. A file may hold several runs one after the
# other, as a batch script leaves them, and what a launcher puts before each line. Whatever could
# make one run of two is refused: then it is not known which ranks a time is of.

PREFIX = re.compile(r"\s*(\d+:(?=\s|$)|\[\d+,\d+\](?:<std(?:out|err)>)?:|\[\d+\](?=\s))")
"""What ``srun -l``, ``mpirun --tag-output`` and ``mpiexec -prepend-rank`` put before a line."""
HEADERS = {
    "version": re.compile(r"#\s*nccl-tests version\b"),
    "test": re.compile(r"#\s*Collective test starting:\s*(\S+)"),
    "settings": re.compile(r"#\s*nThread\s+\d"),
    "devices": re.compile(r"#\s*Using devices\b"),
}
"""Lines of a header, each once in a run; older versions print the last two alone."""
RANK = re.compile(
    r"#\s+Rank\s+(?P<rank>\d+)\s+(?:Group\s+(?P<group>\d+)\s+)?"
    r".*?\bon\s+(?P<host>\S+)\s+device\s+(?P<device>\d+)"
)
COLUMNS = re.compile(r"#\s+size\s+count\s+type\b")
END = re.compile(r"#\s*(Out of bounds values|Avg bus bandwidth)")
READABLE = 1.0
"""GB/s from which the two decimals of a rate tell one factor from another."""
OFF = 0.03
"""Relative difference of a factor that rounding explains."""
BEFORE, HALF = 5, 4
"""Columns before the times (size, count, type, redop, root), and those of one half of them (time,
algbw, busbw, #wrong): out of place, then in place."""
COPIES = (
    "two copies side by side, as where nccl-tests was built without MPI (make MPI=1) and a "
    "launcher started it more than once"
)


@final
@dataclass(kw_only=True)
class _Draft:
    """A run as far as it was read."""

    line: int
    seen: set[str] = field(default_factory=set)
    test: str = ""
    seats: dict[int, Seat] = field(default_factory=dict)
    columns: Sequence[str] = ()
    tag: str = ""
    """What a launcher put before the line of the columns."""
    rows: list[tuple[int, Sequence[str]]] = field(default_factory=list)
    has_ended: bool = False


def read_runs(path: Path) -> list[Run]:
    """The runs of a file. Raises Failure for another file, for numbers that arrived wrong, and
    where it is not certain which ranks a time is of."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"cannot read {path}: {error}") from None
    if text.lstrip().startswith("{"):
        return [run_of_json(path, text)]
    drafts = [*_drafts(path, text.splitlines())]
    if not any(draft.columns for draft in drafts):
        raise Failure(
            f"{path} is not output of nccl-tests: it has no line "
            f"'#  size  count  type  redop  root  time  algbw  busbw'"
        )
    if len(drafts) > 1 and (nameless := next((x for x in drafts if not x.test), None)):
        raise Failure(
            f"{path}:{nameless.line}: {len(drafts)} tests, of a version that prints no names: "
            f"which are they? Give one test a file, named by it"
        )
    tags = list(dict.fromkeys(draft.tag for draft in drafts))
    if len(tags) > 1:  # a launcher's ranks each print a whole test, at the same time
        raise Failure(f"{path}: tables of {listed([*map(repr, tags)])}: {COPIES}")
    return [_run(path, draft) for draft in drafts]


def _drafts(path: Path, lines: Sequence[str]) -> Iterator[_Draft]:
    """The file's runs, split where a header starts."""
    draft: _Draft | None = None
    for number, raw in enumerate(lines, start=1):
        prefix = PREFIX.match(raw)
        tag, line = (prefix[0].strip(), raw[prefix.end() :]) if prefix else ("", raw)
        line = line.strip()
        header = next((kind for kind, known in HEADERS.items() if known.match(line)), None)
        if header and draft is not None and draft.columns:
            if not draft.has_ended:
                raise Failure(
                    f"{path}:{number}: a test starts before that of line {draft.line} ended: "
                    f"{COPIES}, or a run that was stopped; take its lines out"
                )
            yield draft
            draft = None
        if draft is None:
            if not header and not RANK.match(line) and not COLUMNS.match(line):
                continue
            draft = _Draft(line=number)
        if header:
            _add_header(f"{path}:{number}", draft, header, line)
        elif (rank := RANK.match(line)) is not None:
            _add_rank(f"{path}:{number}", draft, rank)
        elif COLUMNS.match(line):
            _add_columns(f"{path}:{number}", draft, line, tag)
        elif END.match(line):
            draft.has_ended = True
        elif draft.columns and not draft.has_ended and line:
            _add_row(path, number, draft, line.split(), tag)
    if draft is not None:
        yield draft


def _add_header(place: str, draft: _Draft, kind: str, line: str) -> None:
    if kind in draft.seen:
        raise Failure(
            f"{place}: a second header before the first one's table: {COPIES}, or a run that was "
            f"stopped; take its lines out"
        )
    draft.seen.add(kind)
    if kind == "test" and (name := HEADERS["test"].match(line)) is not None:
        draft.test = name[1]


def _add_rank(place: str, draft: _Draft, found: re.Match[str]) -> None:
    rank = int(found["rank"])
    if rank in draft.seats or draft.columns:
        raise Failure(f"{place}: rank {rank} is listed twice in one run: {COPIES}")
    draft.seats[rank] = Seat(
        host=found["host"], device=int(found["device"]), group=int(found["group"] or 0)
    )


def _add_columns(place: str, draft: _Draft, line: str, tag: str) -> None:
    names = line.lstrip("# ").split()
    if draft.columns:
        raise Failure(f"{place}: a second table in one run: {COPIES}")
    if "redop" not in names or "root" not in names:
        raise Failure(
            f"{place}: output of an old nccl-tests, whose table has the columns {' '.join(names)}; "
            f"run one that prints redop, root and #wrong, of 2022 or later"
        )
    draft.columns, draft.tag = names, tag


def _add_row(path: Path, number: int, draft: _Draft, words: Sequence[str], tag: str) -> None:
    """A line of the table, which begins with a size; other lines, as of NCCL's, are none."""
    if not words[0].isdecimal():
        return
    if tag != draft.tag:
        raise Failure(
            f"{path}:{number}: '{tag}' before a line of the table of '{draft.tag}': {COPIES}"
        )
    draft.rows.append((number, words))


def _run(path: Path, draft: _Draft) -> Run:
    place = f"{path}:{draft.line}"
    op = operation(place, draft.test) if draft.test else named(path)
    if not draft.seats:
        raise Failure(f"{place}: no '# Rank' lines, which say on which hosts ranks are")
    seats = seated(place, draft.seats)
    points = [
        (size * factor(op, len(seats)), seconds)
        for number, words in draft.rows
        for size, seconds in _times(f"{path}:{number}", words, draft, op)
    ]
    if not points:
        raise Failure(f"{place}: a test without times: it ended before its first size")
    return Run(path=path, place=place, op=op, seats=seats, points=points)


def _times(
    place: str, words: Sequence[str], draft: _Draft, op: Op
) -> Iterator[tuple[float, float]]:
    """Size and seconds of a line that sends something. Raises Failure for wrong numbers."""
    if words[3:4] and words[3].lstrip("-").isdecimal():
        words = [*words[:3], "", *words[3:]]  # 2.13.0 to 2.13.3 print an empty redop
    halves = draft.columns.count("time")
    whole = BEFORE + HALF * halves
    # A timestamp behind the times is named in the columns, and is of one word or of two.
    has_more = len(draft.columns) > whole
    if len(words) < whole or (len(words) > whole and not has_more):
        raise Failure(f"{place}: not a whole line of nccl-tests: {' '.join(words)}")
    try:
        size, (us, algbw, busbw) = int(words[0]), map(float, words[BEFORE : BEFORE + 3])
        wrong = [words[BEFORE + HALF * half + 3] for half in range(halves)]
        errors = [0.0 if each == UNKNOWN else float(each) for each in wrong]
        if not all(map(math.isfinite, (us, algbw, busbw))):
            raise ValueError("no number")
    except ValueError:
        raise Failure(f"{place}: not a whole line of nccl-tests: {' '.join(words)}") from None
    for each, count, half in zip(wrong, errors, ("out of place", "in place"), strict=False):
        if count:
            raise Failure(
                f"{place}: #wrong is {each} {half}: numbers arrived wrong, and such times mean "
                f"nothing"
            )
    expected = factor(op, len(draft.seats))
    if algbw >= READABLE and abs(busbw / algbw / expected - 1) > OFF:
        raise Failure(f"{place}: {_why_another_factor(busbw / algbw, expected, draft, op)}")
    if size and us:
        yield size, us / 1e6


def _why_another_factor(got: float, expected: float, draft: _Draft, op: Op) -> str:
    """Which of rank lines and name is wrong: the name alone where the file's is all there is."""
    ranks = counted(len(draft.seats), "rank")
    said = f"busbw is {got:.3g} times algbw, and of {op} on {ranks} {expected:.3g}; "
    if draft.test:
        return said + "the file does not list all ranks of the run"
    return said + "is the file named by its test, and does it list all ranks?"
