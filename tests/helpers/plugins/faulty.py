"""Strategies from outside, through the entry-point group, whose rank 1 goes wrong."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from abc import abstractmethod
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores, attend_whole
from spbench.strategies.base import Plan, Strategy
from spbench.workload.sharding import Shard
from spbench.workload.workload import Workload


class FaultyPlan(Plan):
    """Rank 1 has the strategy's fault in the first attention."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        assert isinstance(self.strategy, Faulty)
        return self.strategy.fault(attend_whole(q, k, v, scores)) if comm.rank == 1 else q


@dataclass(frozen=True, kw_only=True)
class Faulty(Strategy):
    """Runs alone."""

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        return None

    def on(self, workload: Workload, ranks: int) -> Plan:
        layout = (next(iter(workload.axes)),) * len(workload.stack)
        return FaultyPlan(strategy=self, workload=workload, ranks=ranks, layout=layout)

    @abstractmethod
    def fault(self, out: Tensor) -> Tensor: ...


class Raises(Faulty):
    def fault(self, out: Tensor) -> Tensor:
        raise ZeroDivisionError("a fault of rank 1")


class Lies(Faulty):
    def fault(self, out: Tensor) -> Tensor:
        return out / 2


class Aborts(Faulty):
    def fault(self, out: Tensor) -> Tensor:
        os.abort()


class Segfaults(Faulty):
    def fault(self, out: Tensor) -> Tensor:
        return out + len(ctypes.string_at(0))


class Deaf(Faulty):
    """It stops, and ignores SIGTERM."""

    def fault(self, out: Tensor) -> Tensor:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(60)


class Mismatches(Faulty):
    """It waits for what no other rank sends."""

    def fault(self, out: Tensor) -> Tensor:
        dist.recv(out.detach().contiguous(), src=0)
        return out
