"""Which GPU is a rank's, by LOCAL_RANK and by how many GPUs it sees."""

from __future__ import annotations

import pytest
import torch
from helpers.golden import Golden

from spbench.errors import USAGE, Failure
from spbench.worker import rank_process
from spbench.worker.rank_process import connect
from spbench.workload.case import Job


class NoGroup:
    """In place of a process group: it only notes the device."""

    def __init__(self, device: torch.device, *_: object) -> None:
        self.device = device

    def warm(self) -> None:
        """There is nothing to warm."""


def device_of(monkeypatch: pytest.MonkeyPatch, local_rank: int, visible: int) -> torch.device:
    """The device on which a rank joins the others."""
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(rank_process, "ProcessGroup", NoGroup)
    return connect(Job(ranks=8, device="cuda")).device


@pytest.mark.parametrize(
    ("local_rank", "visible", "index"), [(0, 1, 0), (3, 1, 0), (0, 8, 0), (7, 8, 7), (1, 8, 1)]
)
def test_a_gpu_for_each_rank(
    monkeypatch: pytest.MonkeyPatch, local_rank: int, visible: int, index: int
) -> None:
    """LOCAL_RANK counts where all are seen; a rank that sees one GPU has it to itself."""
    assert device_of(monkeypatch, local_rank, visible) == torch.device("cuda", index)


@pytest.mark.parametrize(("local_rank", "visible"), [(2, 2), (7, 4), (0, 0)])
def test_a_rank_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, local_rank: int, visible: int, golden: Golden
) -> None:
    """The message has the variable, how many GPUs there are, and what works."""
    with pytest.raises(Failure) as refused:
        device_of(monkeypatch, local_rank, visible)
    assert refused.value.code == USAGE
    golden(refused.value)
