"""When a stage of a pipeline runs which microbatch: by torch's schedule 1F1B, which sends nothing.

Private parts of torch (2.11 to 2.15), in no other file: what its schedule asks of a stage. Should
they change, tests/conformance/test_pipelines.py finds it out.
"""

from collections.abc import Callable
from typing import Any, final

from torch.distributed.pipelining.schedules import Schedule1F1B

Run = Callable[[int], object]
"""Runs one microbatch, by its number."""


@final
class Schedule:
    """The order of a stage's forwards and backwards."""

    def __init__(self, stage: int, stages: int, microbatches: int) -> None:
        """The place of a stage among all. Raises ValueError for fewer microbatches than stages."""
        self._stage = _Stage(stage, stages)
        asked: Any = self._stage  # for no more than it has
        self._schedule = _Schedule(asked, microbatches, scale_grads=False)

    def run(self, forward: Run, backward: Run) -> None:
        """One step: each microbatch once forward and once backward."""
        self._stage.forward, self._stage.backward = forward, backward
        self._schedule.run()
        del self._stage.forward, self._stage.backward  # which hold the model


class _Stage:
    """What torch asks of a stage."""

    has_backward = True
    forward: Run
    backward: Run

    def __init__(self, stage: int, stages: int) -> None:
        self.stage_index, self.num_stages = stage, stages
        self.group_rank, self.group_size = stage, stages
        self.is_first, self.is_last = stage == 0, stage == stages - 1

    def forward_one_chunk(self, number: int, *_: Any, **__: Any) -> None:
        self.forward(number)

    def backward_one_chunk(self, number: int, *_: Any, **__: Any) -> None:
        self.backward(number)

    def get_fwd_recv_ops(self, _: int) -> list[Any]:
        return []

    get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = get_fwd_recv_ops

    def perform_reduce_grad(self, _: int) -> None:
        """Sums of gradients leave with the last backward."""


class _Schedule(Schedule1F1B):
    def _initialize_stage(self, *_: Any, **__: Any) -> None:
        """Shapes are known without asking the other stages."""

    def run(self) -> None:
        nothing: list[Any] = [()] * self._n_microbatches
        self._step_microbatches(nothing, [{}] * self._n_microbatches, return_outputs=False)
