"""A step captured once as one CUDA graph, and replayed: what ``run --graph`` times.

    three steps     on a stream aside: what a step sets up once, no graph may hold
    one step        is captured: nothing runs, and every kernel and transfer of it is recorded,
                    forward, backward, the sums of gradients and the optimizer
    each replay     one call of the host, on the same addresses as the captured step

So whatever a step reads and leaves has a place that stays. Inputs and weights are changed in place
(``Step.flip``). Before the capture each ``.grad`` is forgotten, as ever, so that it comes to lie in
the graph's own memory; there it is kept, and each replay overwrites it. The output likewise.

The transports count as the step is captured, and each replay counts the same again. The optimizer
counts its updates on the device. What is proved of replays is what they leave (numbers, gradients,
updates); no instrument sees into one, so what a step computes, and that it sends nothing past
``comm/``, is looked at in steps that run as they are written, before and after (``step_proof.py``).

No GPU has run this file yet: its tests put something else in the graph's place. Nothing in a
captured step may wait on the host, and nothing of spbench's own does: NCCL's transfers are waited
for by streams.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from typing import Protocol, TypeVar, final

import torch
from torch import Tensor

from spbench.model.inputs import Inputs
from spbench.worker.observer import Observer
from spbench.worker.step import Step
from spbench.workload.traffic import Count, Kind

Number = TypeVar("Number", int, int | Fraction)
STEPS_ASIDE = 3
"""Steps before the capture, as torch's notes on CUDA graphs have them."""


class Graph(Protocol):
    """Records what a device is asked to do, and asks for it again."""

    def capture(self, step: Callable[[], Tensor]) -> Tensor:
        """Calls ``step``, the last time to record it; returns what that call returned."""

    def replay(self) -> None:
        """What was recorded is done, to the same addresses."""

    def reset(self) -> None:
        """Lets go what was recorded, and its memory."""


@final
class CudaGraph:
    """torch's."""

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, step: Callable[[], Tensor]) -> Tensor:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(STEPS_ASIDE):
                step()
        torch.cuda.current_stream().wait_stream(aside)
        # "thread_local": NCCL's watchdog and autograd's threads go on asking CUDA for events and
        # memory, which in a capture of all threads would end it.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            return step()

    def replay(self) -> None:
        self._graph.replay()

    def reset(self) -> None:
        self._graph.reset()


@final
class StepGraph:
    """One step of one rank, captured on the inputs that it is replayed on."""

    def __init__(self, step: Step, mine: Inputs, cotangent: Tensor, graph: Graph) -> None:
        self._step, self._mine, self._cotangent = step, mine, cotangent
        self._graph = graph
        self.sent: Count = {}
        self.calls: Mapping[Kind, int] = {}
        with _capturable(step):
            self._output = graph.capture(self._once)
        leaves = [*mine.leaves, *step.model.parameters()]
        self._gradients = [(leaf, leaf.grad) for leaf in leaves]

    def _once(self) -> Tensor:
        """A step, and what the transports count of it: in the end, of the one that is captured."""
        transports = self._step.transports
        sent, calls = transports.sent(), transports.calls()
        out = self._step.uncounted(self._mine, self._cotangent)
        self.sent = _since(sent, transports.sent())
        self.calls = _since(calls, transports.calls())
        return out

    def replay(self, mine: Inputs, cotangent: Tensor) -> Tensor:
        """The output's shard, where the captured step has left it."""
        assert mine is self._mine and cotangent is self._cotangent, "it is replayed on its inputs"
        self._graph.replay()
        # Phases of the gradients' transport are its own, so one of the two can count for both.
        self._step.transports.strategy.count_again(self.sent, self.calls)
        return self._output

    def take_back_gradients(self) -> None:
        """Each ``.grad`` is again the one that a replay writes, where other steps had their own."""
        for leaf, gradient in self._gradients:
            leaf.grad = gradient

    def reset(self) -> None:
        self._graph.reset()


@contextmanager
def replayed(
    step: Step, mine: Inputs, cotangent: Tensor, observer: Observer, graph: Graph | None = None
) -> Iterator[StepGraph]:
    """Captures a step; inside, each step is a replay, but where it is ``uncaptured``.

    Parameters
    ----------
    step
        Has run before, on these inputs: its communicators and its optimizer's state are there.
    mine, cotangent
        What it is captured on; other numbers are written into them.
    observer
        Learns that it is captured.
    graph
        What records; None: a CUDA graph.

    Yields
    ------
    StepGraph
        With what a replay counts.
    """
    with observer.phase("capture"):
        captured = StepGraph(step, mine, cotangent, graph or CudaGraph())
    step.captured = captured
    try:
        yield captured
    finally:
        step.captured = None
        # Before the ranks part: a communicator is not taken down while a graph has transfers of it.
        captured.reset()


@contextmanager
def _capturable(step: Step) -> Iterator[None]:
    """Inside, the optimizer lets itself be captured. Its counts of steps are on the device anyway,
    since it is fused; torch wants to be told."""
    groups = [] if step.optimizer is None else step.optimizer.param_groups
    for group in groups:
        group["capturable"] = True
    try:
        yield
    finally:
        for group in groups:
            group["capturable"] = False


def _since(before: Mapping[Kind, Number], after: Mapping[Kind, Number]) -> dict[Kind, Number]:
    """What was counted in between."""
    return {kind: n - before.get(kind, 0) for kind, n in after.items() if n != before.get(kind, 0)}
