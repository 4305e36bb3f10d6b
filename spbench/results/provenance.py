"""Where the rows of a run come from: commit, machine, libraries, launches and command."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas

from spbench.results.run_json import folder_of_run, had_changes, read_run
from spbench.text import counted

FACTS = ("device", "backend", "gpu", "torch", "cuda", "nccl", "hardware", "environment")
"""Columns that make the environment of a run."""
UNKNOWN = "not known"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Origin of the rows of one run, in words."""

    run: str
    commit: str
    machine: str
    libraries: str
    launches: str
    started: str
    command: str
    """The command that measured the rows; blank where run.json does not hold one."""
    facts: Mapping[str, str]
    """The values of ``FACTS`` that any of its rows has, by column."""


def provenance(run: Path, frame: pandas.DataFrame) -> Provenance:
    """The origin of the rows of ``run``, as its columns and its run.json say."""
    about = read_run(folder_of_run(run))
    ran = frame[~frame["status"].isin(["skipped", "interrupted"])]
    facts = {name: " and ".join(distinct(ran, name)) for name in FACTS}
    libraries = (f"{name} {facts[name]}" for name in ("torch", "cuda", "nccl") if facts[name])
    return Provenance(
        run=" and ".join(distinct(frame, "run_id")) or str(run),
        commit=_commit(frame, about),
        machine=facts["hardware"] or facts["gpu"] or str(about.get("cpu", UNKNOWN)),
        libraries=", ".join(filter(None, [*libraries, facts["backend"]])) or UNKNOWN,
        launches=_launches(ran),
        started=min(filter(None, frame["started_utc"]), default=UNKNOWN),
        command=_command(about),
        facts=facts,
    )


def differences(base: Provenance, head: Provenance) -> list[str]:
    """A phrase for each fact that both know and that differs, as ``torch 2.13, was 2.12``."""
    phrases = []
    for name in FACTS:
        old, new = base.facts[name], head.facts[name]
        # A blank environment is known: nothing was asked for. Any other blank is not known.
        if old != new and (name == "environment" or (old and new)):
            phrases.append(f"{name} {new or 'blank'}, was {old or 'blank'}")
    return phrases


def distinct(frame: pandas.DataFrame, column: str) -> list[str]:
    """The texts of a column, each once, without blanks."""
    return [value for value in frame[column].unique() if value]


def _commit(frame: pandas.DataFrame, about: Mapping[str, Any]) -> str:
    """Commits of the rows, and whether the work tree differed from the last of them."""
    commits = distinct(frame, "git_commit")
    changed = ", with uncommitted changes" if had_changes(about) else ""
    return " and ".join(commit[:12] for commit in commits) + changed if commits else UNKNOWN


def _launches(ran: pandas.DataFrame) -> str:
    """Launches of each case that are ok, and how many failed or were noisy."""
    is_ok = ran["status"] == "ok"
    of_cases = is_ok.groupby(ran["case"]).sum()
    few, many = int(min(of_cases, default=0)), int(max(of_cases, default=0))
    words = [f"{few if few == many else f'{few} to {many}'} of a case"]
    noisy, failed = int((is_ok & (ran["noisy"] != "")).sum()), int((~is_ok).sum())
    words += [f"{counted(noisy, 'launch')} noisy"] if noisy else []
    words += [f"{counted(failed, 'launch')} failed"] if failed else []
    return ", ".join(words)


def _command(about: Mapping[str, Any]) -> str:
    """The command that began the run; ``resume`` only does what others have left."""
    commands = [*about.get("history", []), about.get("argv", [])]
    began: list[str] = next((words for words in commands if words and words[1:2] != ["resume"]), [])
    return shlex.join(["spbench", *began[1:]]) if began else ""
