"""samples.csv.gz: every iteration of every rank, in order of time.

Each launch is a gzip member of its own. A run that is killed while it writes leaves a torn one;
the next is written behind it, and both are read: of the torn one what came before the tear,
unless an earlier attempt at the launch is known. A member whose checksum is wrong is left out as a
whole, as any of its figures may be.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pandas

from spbench.results.record import Record
from spbench.results.sample import Sample

SAMPLE_COLUMNS = ("case", "launch", "pass", "rank", "iteration", "ms")
MEMBER = re.compile(rb"\x1f\x8b\x08(?=[\x00-\x1f].{4}[\x00\x02\x04][\x00-\x0d\xff])", re.DOTALL)
"""How a gzip member begins: method, flags, any time, level, system (RFC 1952). What was torn may
end like one, directly before the next."""

Launch = tuple[str, int]
"""Case and launch."""
Times = dict[Launch, dict[tuple[str, int], list[float]]]
"""By launch, then by pass and rank: each iteration."""


def append_samples(folder: Path, record: Record, samples: Sequence[Sample]) -> None:
    """The launch's iterations as one more member, also behind a torn one; none without any."""
    rows = [
        (record.case, record.launch, name, sample.rank, i, f"{ms:.6g}")
        for sample in samples
        for name, times in (("timed", sample.step_ms), ("silent", sample.compute_ms))
        for i, ms in enumerate(times or [])
    ]
    if not rows:
        return
    path = folder / "samples.csv.gz"
    is_new = not path.exists() or path.stat().st_size == 0
    text = io.StringIO()
    writer = csv.writer(text)
    if is_new:
        writer.writerow(SAMPLE_COLUMNS)
    writer.writerows(rows)
    with path.open("ab") as file:
        # Without name and time: behind a header that is torn, these are read as one of its fields.
        file.write(gzip.compress(text.getvalue().encode(), mtime=0))


LEAST_MS, MOST_MS = 1e-6, 1e12
"""A nanosecond and thirty years: what is outside was no step, and its ratios are no numbers."""


@dataclass(frozen=True, kw_only=True)
class Traces:
    """What samples.csv.gz holds of some cases, and what of it is lost."""

    ms: Times = field(default_factory=dict)
    """Of a repeated launch, the last attempt that is whole."""
    torn: int = 0
    """Launches that are cut short or damaged, of all cases: their own name may be lost."""
    damaged: int = 0
    """Lines that are no sample."""

    def steps(self, record: Record) -> list[float]:
        """Milliseconds of a launch's iterations; none if it has no time, or samples of a rank are
        lost. A share runs one rank."""
        if not record.compared_ms:
            return []
        is_share = record.kind == "one_gpu_share"
        name, ranks = ("silent", 1) if is_share else ("timed", record.world_size)
        return self.slowest((record.case, record.launch), name, ranks)

    def slowest(self, launch: Launch, name: str, ranks: int) -> list[float]:
        """An iteration takes as long as its slowest rank.

        None if a rank of ``ranks`` is lost, or an iteration of one.
        """
        by_rank = [
            times for (this, _), times in self.ms.get(launch, {}).items() if this == name and times
        ]
        if len(by_rank) != ranks or len(set(map(len, by_rank))) != 1:
            return []
        return [max(at) for at in zip(*by_rank, strict=True)]


def read_samples_csv(folder: Path, cases: Collection[str] | None = None) -> Traces:
    """The iterations of ``cases``, or of all. Never raises; what is lost is counted."""
    try:
        data = (folder / "samples.csv.gz").read_bytes()
    except OSError:
        return Traces()
    ms: Times = {}
    torn = damaged = 0
    for text, whole in members(data):
        found, strange = _times(cases, text, whole=whole)
        # What is left of a torn attempt takes no place of an earlier one.
        ms |= found if whole else {key: found[key] for key in found if key not in ms}
        torn += not whole
        damaged += strange
    return Traces(ms=ms, torn=torn, damaged=damaged)


def _times(cases: Collection[str] | None, text: str, *, whole: bool) -> tuple[Times, int]:
    """What one member holds of ``cases``, and how many of its lines are no sample."""
    ms: Times = {}
    damaged = 0
    for line in _lines_with(cases, text, whole=whole):
        found = _sample(line)
        if found is None:
            damaged += 1
            continue
        launch, at, iteration, value = found
        if cases is not None and launch[0] not in cases:
            continue
        times = ms.setdefault(launch, {})
        if iteration == 0 and at in times:
            times.clear()  # measured again
        if iteration != len(times.setdefault(at, [])):
            damaged += 1
            continue
        times[at].append(value)
    return ms, damaged


def members(data: bytes) -> Iterator[tuple[str, bool]]:
    """The text of each gzip member, and whether it is whole; of a torn one its beginning."""
    starts = [found.start() for found in MEMBER.finditer(data)]
    if data and (not starts or starts[0] > 0):
        yield "", False
    bounds = [*starts, len(data)]
    i = 0
    while i < len(starts):
        text, ends, rest = _member(data, bounds[i:])
        yield text.decode("utf-8", errors="replace"), ends > 0
        if rest.strip(b"\0"):
            yield "", False  # behind a whole one stands what is none
        i += max(ends, 1)


def _member(data: bytes, bounds: Sequence[int]) -> tuple[bytes, int, bytes]:
    """What begins at the first of ``bounds``: its text, at which bound it has ended, what is over.

    It may well hold what looks like another beginning. 0: it is torn, before the next beginning,
    as what follows it would be read as its own.
    """
    inflate = zlib.decompressobj(wbits=31)
    text = beginning = b""
    for ends, (start, end) in enumerate(pairwise(bounds), 1):
        try:
            text += inflate.decompress(data[start:end])
        except zlib.error:
            break
        if inflate.eof:
            return text, ends, inflate.unused_data
        if ends == 1:
            beginning = text
    return beginning, 0, b""


def _lines_with(cases: Collection[str] | None, text: str, *, whole: bool) -> list[str]:
    """The lines that end, of a member that may hold one of ``cases``."""
    first, _, _ = text.partition(",")
    if cases is not None and first not in cases and text.count(first) == text.count("\n"):
        return []  # all of it is of one other case: most members, so it is worth a shortcut
    ended = text if whole else text[: text.rfind("\n") + 1]  # half a figure reads as another
    header = ",".join(SAMPLE_COLUMNS)
    return [line for line in ended.splitlines() if line and not line.startswith(header)]


def _sample(line: str) -> tuple[Launch, tuple[str, int], int, float] | None:
    cells = line.split(",")
    if len(cells) < len(SAMPLE_COLUMNS):
        return None
    case, launch, name, rank, iteration, ms = cells[: len(SAMPLE_COLUMNS)]  # a newer one has more
    try:
        value = float(ms)
        found = (case, int(launch)), (name, int(rank)), int(iteration), value
    except ValueError:
        return None
    return found if LEAST_MS <= value <= MOST_MS else None


def read_samples(path: str | Path, cases: Collection[str] | None = None) -> pandas.DataFrame:
    raise NotImplementedError
