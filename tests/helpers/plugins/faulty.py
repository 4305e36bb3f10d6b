"""Strategies from outside, through the entry-point group, whose rank 1 goes wrong."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores, attend_whole
from spbench.strategies.base import Layout, Strategy
from spbench.workload.sharding import Shard
from spbench.workload.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Faulty(Strategy):
    """Runs alone; rank 1 has its fault in the first attention."""

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        return None

    def layout(self, workload: Workload, ranks: int) -> Layout:
        return (next(iter(workload.axes)),) * len(workload.stack)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        return self.fault(attend_whole(q, k, v, scores)) if comm.rank == 1 else q

    @abstractmethod
    def fault(self, out: Tensor) -> Tensor: ...


class Raises(Faulty):
    def fault(self, out: Tensor) -> Tensor:
        raise ZeroDivisionError("a fault of rank 1")


class Lies(Faulty):
    def fault(self, out: Tensor) -> Tensor:
        return out / 2
