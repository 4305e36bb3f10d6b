"""A group of ranks that are threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch

from spbench.comm.group import Group
from spbench.comm.threaded import ThreadRendezvous, ThreadTransport
from spbench.comm.transport import Transports


@final
class ThreadGroup(Group):
    """Ranks that are threads."""

    backend = "threads"

    def __init__(self, rank: int, meetings: Sequence[ThreadRendezvous]) -> None:
        first, second, self.meeting = meetings
        transports = Transports(
            strategy=ThreadTransport(rank, first), gradients=ThreadTransport(rank, second)
        )
        super().__init__(torch.device("cpu"), transports)

    def _largest(self, values: Sequence[float]) -> list[float]:
        def take(shown: list[Any]) -> list[float]:
            return [max(column) for column in zip(*shown, strict=True)]

        return self.meeting.exchange(self.rank, list(values), take)  # type: ignore[arg-type]

    def _gather(self, values: Sequence[float]) -> list[list[float]]:
        def take(shown: list[Any]) -> list[list[float]]:
            return [list(of_rank) for of_rank in shown]

        return self.meeting.exchange(self.rank, list(values), take)  # type: ignore[arg-type]

    def _meet(self) -> None:
        self.meeting.exchange(self.rank, [], lambda _: None)

    def gather_text(self, text: str) -> list[str]:
        raise AssertionError("nobody is to ask for this here")

    def close(self) -> None:
        """Nothing is open."""
