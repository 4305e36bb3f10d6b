"""Output of nccl-tests as the links of a cluster.

A line has the size S of a buffer in bytes and the time t of one collective; algbw is S / t. By
nccl-tests' doc/PERFORMANCE.md, busbw is algbw times a factor, which makes it what one rank sends,
over the time; so a rank sends S times the factor:

    all_reduce                               S is a rank's buffer                 2 (n - 1) / n
    all_gather, reduce_scatter, alltoall     S is the larger of a rank's buffers    (n - 1) / n
    sendrecv                                 S is what a rank sends               1

Times are those out of place, as strategies have them.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from spbench.errors import Failure
from spbench.workload.traffic import Op

NAMES: dict[str, Op] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "p2p",
}
"""Operations by the beginning of a test's name, all_reduce_perf for one."""
COLUMNS = re.compile(r"#\s+size\s+count\s+type\s+redop\s+root\s+time\s+algbw\s+busbw")
RANK = re.compile(r"#\s+Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device")
STARTS = re.compile(r"#\s*Collective test starting:\s*(\S+)")
UNKNOWN = "N/A"
READABLE = 1.0
"""GB/s from which the two decimals of a rate tell one factor from another."""
OFF = 0.03
"""Relative difference of a factor that rounding explains."""


@final
@dataclass(frozen=True, kw_only=True)
class Log:
    """One run of one test."""

    path: Path
    op: Op
    ranks: int
    hosts: int
    points: Sequence[tuple[float, float]]
    """What one rank sends, in bytes, and seconds."""


def read_log(path: Path) -> Log:
    """The log of a file. Raises Failure for another file, and for numbers that arrived wrong."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"cannot read {path}: {error}") from None
    if not any(COLUMNS.match(line.strip()) for line in lines):
        raise Failure(
            f"{path} is not output of nccl-tests: it has no line "
            f"'#  size  count  type  redop  root  time  algbw  busbw'"
        )
    hosts = {int(found[1]): found[2] for line in lines if (found := RANK.match(line.strip()))}
    if len(hosts) < 2:
        raise Failure(f"{path} lists {len(hosts)} ranks in '# Rank' lines; links need 2 or more")
    op = _operation(path, lines)
    sent_of_size = _factor(op, len(hosts))
    rows = [(number, line.split()) for number, line in enumerate(lines, start=1)]
    points = [
        (size * sent_of_size, seconds)
        for number, words in rows
        if words and words[0].isdecimal()
        for size, seconds in _row(f"{path}:{number}", words, op, len(hosts))
    ]
    if not points:
        raise Failure(f"{path} holds no times: the test ended before its first size")
    return Log(path=path, op=op, ranks=len(hosts), hosts=len(set(hosts.values())), points=points)


def _operation(path: Path, lines: Iterable[str]) -> Op:
    """By the test's own line, which older versions do not print, or by the file's name."""
    named = [found[1] for line in lines if (found := STARTS.match(line.strip()))]
    text = named[0] if named else path.name
    for name, op in NAMES.items():
        if name in text:
            return op
    raise Failure(
        f"{path}: which test is it? This version prints no name; name the file by it, as in "
        f"all_gather_perf.log. Known are {', '.join(NAMES)}"
    )


def _factor(op: Op, ranks: int) -> float:
    """busbw over algbw."""
    return {"all_reduce": 2 * (ranks - 1) / ranks, "p2p": 1.0}.get(op, (ranks - 1) / ranks)


def _row(place: str, words: Sequence[str], op: Op, ranks: int) -> Iterable[tuple[float, float]]:
    """Size and seconds of a line with bytes. Raises Failure for wrong numbers."""
    try:
        size, (us, algbw, busbw), wrong = int(words[0]), map(float, words[5:8]), words[8]
        errors = 0.0 if wrong == UNKNOWN else float(wrong)
    except (ValueError, IndexError):
        raise Failure(f"{place}: not a whole line of nccl-tests: {' '.join(words)}") from None
    if errors:
        raise Failure(
            f"{place}: #wrong is {wrong}: numbers arrived wrong, and such times mean nothing"
        )
    expected = _factor(op, ranks)
    if algbw >= READABLE and abs(busbw / algbw / expected - 1) > OFF:
        raise Failure(
            f"{place}: busbw is {busbw / algbw:.3g} times algbw, and of {op} on {ranks} ranks "
            f"{expected:.3g}; is the file named by its test?"
        )
    return [(size, us / 1e6)] if size and us else []
