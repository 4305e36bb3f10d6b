"""The table of projected cases: what it says of memory."""

from __future__ import annotations

import pytest

from spbench.report.projection_table import show_projections

GB = 10**9


@pytest.mark.parametrize(("held", "is_too_large"), [(73, False), (74, True), (81, True)])
def test_too_large_is_what_recommend_leaves_out(
    capsys: pytest.CaptureFixture[str], held: int, is_too_large: bool
) -> None:
    """92 % of a device's memory is for tensors."""
    row = {
        "status": "ok",
        "strategy": "mine",
        "world_size": 8,
        **dict.fromkeys(("step_ms", "step_ms_low", "step_ms_high"), 1.0),
        **dict.fromkeys(("step_ms_without_overlap", "step_ms_full_overlap"), 1.0),
        "samples_per_s": 1.0,
        "sent_bytes": 0,
        "peak_bytes": held * GB,
        "memory_limit_bytes": 80 * GB,
        "terms_ms": {"host": 1.0},
    }
    show_projections([row], "projected")
    out = capsys.readouterr().out
    assert f"{held}.0/80" in out
    assert ("too large" in out) == is_too_large
