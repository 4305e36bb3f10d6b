"""``compare`` of a run and the report of ``doctor --links`` that lies beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.command_line import record, spbench

from spbench.results.link_report import LinkReport, LinkRow, keep
from spbench.results.store import Store

ROW = LinkRow(
    **{"op": "all_to_all", "gradients": False, "strategies": ["dsp"], "sent_bytes": 1e6},
    **{"ms": 20.0, "ms_low": 20.0, "ms_high": 20.0, "repeats": 3, "bytes_per_s": 50e6},
    **{"slowest_rank": 0, "slowest_bytes_per_s": 50e6},
)
REPORT = LinkReport(
    **{"measured_utc": "2030-01-02T03:04:05Z", "workload": "w", "device": "cpu", "torch": "2"},
    **{"backend": "gloo", "ranks": 2, "placement": "", "hosts": ["here"], "hardware": ""},
    **{"link": "", "nominal_bytes_per_s": None, "rows": [ROW]},
)
CALLS = {"all_to_all_bytes": 10_000_000, "collectives": "forward.all_to_all=10"}


@pytest.mark.parametrize("place", ["results", "elsewhere"])
def test_a_run_below_its_links(tmp_path: Path, place: str) -> None:
    """The report is found below results/, and beside the run; without one, no rate is named."""
    with Store(tmp_path / place / "run") as store:
        store.append(record("dsp", step_ms=2_000.0, exposed_comm_ms=1_000.0, **CALLS))
    words = ("compare", f"{place}/run")
    done = spbench(tmp_path, *words)
    assert done.code == 0, done.err
    assert "On 2 ranks dsp (1,000 of 2,000 ms) is link-bound" in done.out
    keep(REPORT, tmp_path / place)
    done = spbench(tmp_path, *words)
    assert done.code == 0, done.err
    assert (
        "dsp on 2 ranks sends 10 MB a step and waits 1,000 ms: 0.01 GB/s, 20 % of what doctor "
        "--links achieved on 2030-01-02 (0.05), so the links alone are not why" in done.out
    )
    assert "link-bound" not in done.out


def test_a_run_slower_than_one_rank(tmp_path: Path) -> None:
    """A run of one rank and of two says so where two are slower."""
    with Store(tmp_path / "results" / "run") as store:
        for launch in range(3):
            both = {"launch": launch, "round": f"s.{launch}"}
            one = record("dsp", world_size=1, sp_size=1, step_ms=100.0 + launch, **both)
            store.append(replace(one, case="dsp alone"))
            store.append(record("dsp", step_ms=150.0 - launch, **both))
    done = spbench(tmp_path, "compare")
    assert done.code == 0, done.err
    sentence = "dsp on 2 ranks is slower than one rank: a step takes 1.48x as long"
    assert sentence in done.out
    alone, both = json.loads(spbench(tmp_path, "compare", "--json").out)
    assert (alone["ranks"], alone["waiting"]) == (1, [])
    assert [text[: len(sentence)] for text in both["waiting"]] == [sentence]
