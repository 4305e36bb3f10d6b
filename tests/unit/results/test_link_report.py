"""Reports of ``doctor --links``: which runs they fit, and what time a size takes by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.example_rows import row

from spbench.results.link_report import LinkReport, LinkRow, keep, reports_in


def link_row(sent_bytes: float, ms: float, op: Any = "all_to_all") -> LinkRow:
    rate = sent_bytes / ms * 1e3
    return LinkRow(
        **{"op": op, "gradients": False, "strategies": ["dsp"], "sent_bytes": sent_bytes},
        **{"ms": ms, "ms_low": ms, "ms_high": ms, "repeats": 3, "bytes_per_s": rate},
        **{"slowest_rank": 0, "slowest_bytes_per_s": rate},
    )


def report(**more: Any) -> LinkReport:
    """1 MB in 10 ms, 3 MB in 20 ms."""
    known: dict[str, Any] = {
        **{"measured_utc": "2030-01-02T03:04:05Z", "workload": "w", "device": "cpu"},
        **{"backend": "gloo", "ranks": 2, "placement": "", "hosts": ["here"], "torch": "2"},
        **{"hardware": "a cpu x2", "link": "", "nominal_bytes_per_s": None},
        "rows": [link_row(3e6, 20), link_row(1e6, 10)],
    }
    return LinkReport(**known | more)


@pytest.mark.parametrize(
    ("columns", "does"),
    [
        ({}, True),
        ({"backend": "gloo", "hardware": "a cpu x2"}, True),
        ({"hardware": "a cpu x4"}, False),
        ({"backend": "nccl"}, False),
        ({"placement": "node0 0, node1 1"}, False),
        ({"world_size": 4}, False),
        ({"device": "cuda"}, False),
    ],
)
def test_which_launches_it_fits(columns: dict[str, Any], does: bool) -> None:
    """The same device, ranks and placement, and hardware where it is known."""
    assert report().fits(row(**columns)) is does


@pytest.mark.parametrize(
    ("sent_bytes", "ms"), [(1e6, 10), (3e6, 20), (2e6, 15), (30e6, 200), (0.5e6, 5), (0.4e6, None)]
)
def test_the_time_of_a_size(sent_bytes: float, ms: float | None) -> None:
    """On the line between two sizes; beyond at the rate of the nearest; far below not known."""
    found = report().typical_ms("all_to_all", sent_bytes)
    assert found == (None if ms is None else pytest.approx(ms))
    assert report().typical_ms("p2p", sent_bytes) is None


def test_two_groups_of_one_size() -> None:
    """The strategy's group and that of the gradients give one time, their mean."""
    rows = [link_row(1e6, 10), link_row(1e6, 14)]
    assert report(rows=rows).typical_ms("all_to_all", 1e6) == 12


def test_reports_are_kept_and_found(tmp_path: Path) -> None:
    """The latest first, each once; a damaged file is passed over."""
    old, new = report(), report(measured_utc="2031-01-02T03:04:05Z")
    paths = [keep(one, tmp_path) for one in (new, old)]
    assert paths[1].name == "20300102-030405-2-ranks.json"
    (tmp_path / "links" / "damaged.json").write_text('{"ranks": ')
    (tmp_path / "links" / "other.json").write_text("[1]")
    assert reports_in([tmp_path, tmp_path / ".", tmp_path / "nowhere"]) == [new, old]
