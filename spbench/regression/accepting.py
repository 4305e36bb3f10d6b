"""Applies accepted changes to a check, and writes new ones."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from spbench.analysis.acceptance import entry_of, outdated, with_accepted
from spbench.analysis.findings import Margins
from spbench.errors import UNFIT, Failure
from spbench.regression.checked import Checked
from spbench.results.accepted import NAME, Accepted, accepted_in, read_accepted, write_accepted
from spbench.workload.yaml_lines import WorkloadError


def apply_accepted(
    checked: Checked, baseline: str, revision: str, folder: Path, margins: Margins, reason: str
) -> Checked:
    """The check with what is accepted of it; a ``reason`` accepts all that would fail it.

    An entry of a baseline is about the run that it holds. One of a commit is over as soon as the
    commit that is checked against has it, too: then the base is as slow.
    """
    run = checked.origins()[0].run if baseline else ""
    every = read_accepted(folder)
    own = [entry for entry in every if entry.baseline == baseline]
    measured = {finding.case for finding in checked.judgement.findings}
    over = _over(own, run, [] if baseline else _of_base(revision, folder))
    remarks = [outdated(entry, why) for entry, why in over if entry.case in measured]
    entries = [entry for entry in own if entry not in [old for old, _ in over]]
    judgement = replace(checked.judgement, remarks=tuple(remarks))
    judged = with_accepted(judgement, entries)
    failing = judged.of("fail")
    if not reason or not failing:
        return replace(checked, judgement=judged)
    commit, date = checked.origins()[1].commit, f"{datetime.now(UTC):%Y-%m-%d}"
    more = {"baseline": baseline, "run": run, "commit": commit, "date": date, "reason": reason}
    new = [entry_of(finding, margins.memory, **more) for finding in failing]
    try:
        write_accepted(folder, [*every, *new])
    except OSError as error:
        raise Failure(f"cannot write to {folder / NAME}: {error.strerror}", UNFIT) from None
    return replace(checked, judgement=with_accepted(judgement, [*entries, *new]))


def _over(entries: list[Accepted], run: str, of_base: list[Accepted]) -> list[tuple[Accepted, str]]:
    """Entries that are about another base, and why."""
    return [
        (entry, f"the baseline holds another run than {entry.run}" if run else "the base has it")
        for entry in entries
        if entry.run != run or entry in of_base
    ]


def _of_base(revision: str, folder: Path) -> list[Accepted]:
    """The entries that the commit has in its own file; none where it has none that can be read."""
    words = ["git", "show", f"{revision}:./{os.path.relpath(folder / NAME)}"]
    done = subprocess.run(
        words, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    try:
        return accepted_in(done.stdout, f"{revision}:{NAME}") if done.returncode == 0 else []
    except WorkloadError:
        return []
