"""When a stage of a pipeline runs which microbatch: by torch's schedule 1F1B, which sends nothing.

Private parts of torch (2.11 to 2.15), in no other file: what its schedule asks of a stage. Should
they change, tests/conformance/test_pipelines.py finds it out.
"""

from collections.abc import Callable
from typing import Any, final

Run = Callable[[int], object]
"""Runs one microbatch, by its number."""


@final
class Schedule:
    """The order of a stage's forwards and backwards."""

    def __init__(self, stage: int, stages: int, microbatches: int) -> None:
        """The place of a stage among all. Raises ValueError for fewer microbatches than stages."""
        # With it comes torch's compiler, which takes a second to load.
        from torch.distributed.pipelining.schedules import Schedule1F1B

        self._stage, self._microbatches = _Stage(stage, stages), microbatches
        asked: Any = self._stage  # for no more than it has
        self._schedule: Any = Schedule1F1B(asked, microbatches, scale_grads=False)
        # Shapes are known without asking the other stages.
        self._schedule._initialize_stage = lambda *_: None  # type: ignore[method-assign]

    def run(self, forward: Run, backward: Run) -> None:
        """One step: each microbatch once forward and once backward."""
        self._stage.forward, self._stage.backward = forward, backward
        nothing: list[Any] = [()] * self._microbatches
        none: list[Any] = [{}] * self._microbatches
        self._schedule._step_microbatches(nothing, none, return_outputs=False)
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
