"""Rows as a run would write them, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spbench.results.record import Record
from spbench.workload.case import Case
from spbench.workload.catalogue import find

CASE = Case(workload=find("axes-2d", "verify"), strategy="dsp", ranks=2, device="cpu")


def row(strategy: str = "dsp", **more: Any) -> Record:
    """A good launch on a quiet machine, in a round of its number; without figures."""
    known = {"run_id": "a run", "started_utc": "now", "status": "ok", "tolerance": 1e-4}
    known |= {"round": f"s.{more.get('launch', 0)}", "launch": 0, "case": strategy}
    blank = Record.of_case(CASE, run_id="", started_utc="", status="ok")
    return replace(blank, strategy=strategy, **known | more)


def rows(strategy: str, steps_ms: Sequence[float], session: str = "s", **more: Any) -> list[Record]:
    """A launch for each time, in the rounds of ``session``."""
    return [
        row(strategy, launch=i, round=f"{session}.{i}", step_ms=ms, **more)
        for i, ms in enumerate(steps_ms)
    ]
