"""What was read from a runs.csv: its records, and in words what of it could not be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from spbench.results.csv_header import Header
from spbench.results.record import Record
from spbench.text import counted

MOST_SAID = 3


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Records that were read, and what could not be."""

    records: list[Record]
    left_out: dict[str, list[int]]
    """The lines of the rows that could not be used, by why."""
    repeated: int
    """Rows that are exactly as one before them; they count once."""
    notes: list[str]

    @property
    def damaged(self) -> int:
        return sum(map(len, self.left_out.values()))

    def latest(self) -> list[Record]:
        """One record for each case and launch: the last that was written.

        Launches of a case are of one effort: full if one that is full succeeded, else that of
        its last record that was not interrupted. So quick launches never hide a full run.
        """
        efforts: dict[str, str] = {}
        for record in self.records:
            if record.status != "interrupted" or record.case not in efforts:
                efforts[record.case] = record.effort_label
        for record in self.records:
            if record.status == "ok" and record.effort_label == "full":
                efforts[record.case] = "full"
        shown = [one for one in self.records if one.effort_label == efforts[one.case]]
        return list({(record.case, record.launch): record for record in shown}.values())

    def _replaced(self) -> int:
        """Good rows in whose place another invocation's stand, as where files were joined."""
        good = [one for one in self.records if one.status == "ok"]
        last = {(one.case, one.launch, one.effort_label): one.round for one in good}
        return sum(last[one.case, one.launch, one.effort_label] != one.round for one in good)

    def remarks(self, name: object) -> list[str]:
        """What a reader of figures from the file ``name`` must know, a sentence each."""
        said = [f"{name}: {note}" for note in self.notes]
        if self.left_out:
            are = "is" if self.damaged == 1 else "are"
            often = sorted(self.left_out.items(), key=lambda one: -len(one[1]))
            why = [f"{why} ({_lines(numbers)})" for why, numbers in often[:MOST_SAID]]
            why += ["and more"] if len(often) > MOST_SAID else []
            said.append(
                f"{counted(self.damaged, 'row')} of {name} {are} left out: {'; '.join(why)}"
            )
        if replaced := self._replaced():
            are = "has" if replaced == 1 else "have"
            said.append(
                f"{counted(replaced, 'row')} of {name} {are} the case and launch of a later one, "
                f"which counts instead; files of several runs are compared apart"
            )
        if self.repeated:
            are = "repeats one above it and is" if self.repeated == 1 else "repeat others and are"
            said.append(f"{counted(self.repeated, 'row')} of {name} {are} not counted again")
        return said


def _lines(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:MOST_SAID]))
    more = len(numbers) - MOST_SAID
    return f"{'line' if len(numbers) == 1 else 'lines'} {shown}" + (
        f" and {more:,} more" if more > 0 else ""
    )


def notes_on(used: dict[int, Header]) -> list[str]:
    """What to say of the headers that rows were read by, by their lines."""
    said = []
    other = [now for (above, now) in pairwise(used) if used[above] != used[now]]
    if len(other) == 1:
        said = [f"a header again in line {other[0]}; it holds for the rows below it"]
    elif other:
        said = [
            f"another header in {len(other):,} places, first in line {other[0]}; each holds for"
            " the rows below it"
        ]
    return list(dict.fromkeys([*said, *(one.renamed for one in used.values() if one.renamed)]))
