"""What stands in for a CUDA graph where there is no GPU: capturing runs the step as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from spbench.model.inputs import Inputs
from spbench.worker.step import Step


@final
class Nothing:
    """Forgets what was captured: a replay does nothing."""

    def __init__(self, aside: int = 0) -> None:
        """``aside``: steps before the one that is captured."""
        self.aside, self.replays, self.is_reset = aside, 0, False

    def capture(self, step: Callable[[], Tensor]) -> Tensor:
        for _ in range(self.aside):
            step()
        return step()

    def replay(self) -> None:
        self.replays += 1

    def reset(self) -> None:
        self.is_reset = True


@final
class Rerun:
    """A replay runs the step again, uncounted, and writes where the captured one wrote."""

    def __init__(self, step: Step, mine: Inputs) -> None:
        self._leaves = [*mine.leaves, *step.model.parameters()]
        self._both = (step.transports.strategy, step.transports.gradients)

    def capture(self, step: Callable[[], Tensor]) -> Tensor:
        self._step, self._output = step, step()
        self._gradients = [leaf.grad for leaf in self._leaves]
        return self._output

    def replay(self) -> None:
        counted = [({**each.sent}, {**each.calls}) for each in self._both]
        with torch.no_grad():
            self._output.copy_(self._again())
            for leaf, gradient in zip(self._leaves, self._gradients, strict=True):
                if gradient is not None and leaf.grad is not None:
                    gradient.copy_(leaf.grad)
                leaf.grad = gradient
        for each, (sent, calls) in zip(self._both, counted, strict=True):
            each.sent, each.calls = sent, calls

    def _again(self) -> Tensor:
        with torch.enable_grad():
            return self._step()

    def reset(self) -> None:
        """Nothing is held."""
