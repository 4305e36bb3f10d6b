"""What dry runs say of work, made up: steps without data would take most of a test's time."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from spbench.projection.dryrun import rank_work
from spbench.workload.predicted import RankWork

PARTS = ("parameters", "gradients", "optimizer", "activations", "temporaries")


@pytest.fixture
def work_is_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells are planned, listed and refused as ever; tests/unit/projection/test_rank_work.py proves
    the figures."""

    def made_up(ranks: int) -> RankWork:
        flops = {"gemm": 10**9 * ranks, "attention": 10**8}
        peak_bytes = {part: 2**20 * size for size, part in enumerate(PARTS, ranks)}
        return RankWork(flops=flops, kernels=1234, peak_bytes=peak_bytes)

    monkeypatch.setattr(rank_work, "forked", lambda work_of, _: nullcontext(work_of))
    monkeypatch.setattr(rank_work, "work", lambda _, __, ranks, **how: ranks)
    monkeypatch.setattr(rank_work, "_rank_work", made_up)
