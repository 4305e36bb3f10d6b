"""Work of backward that nothing waits for: it runs while a transfer is under way.

A weight's gradient is such work: only the optimizer and the sum over the ranks want it, while the
gradient of the input is what the next exchange sends. So a linear layer computes the latter at
once, and leaves the former here (``layers/linear.py``). The next exchange posts its messages, does
what was left, and waits only then.

Private parts of torch (2.11 to 2.15), in no other file: what autograd calls as backward ends, and
whether backward is running. Should they change, tests/unit/comm/test_overlap.py finds it out.
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd import Variable

Work = Callable[[], None]
MOST = 3
"""Pieces of work that are left at most: each keeps an input and a gradient alive."""

_engine: Any = Variable._execution_engine


@final
class Deferred:
    """What one rank has left to do."""

    def __init__(self) -> None:
        self.saves_first = False
        """Whether forward runs again in backward, where what is saved early ends it early."""
        self.on_gradient: Callable[[Tensor], object] = lambda _: None
        """Is told of each parameter whose gradient is there: what hooks of autograd do for those
        that it computes itself."""
        self.is_off = False
        """Whether gradients of weights are computed with those of inputs."""
        self.restart()

    def restart(self) -> None:
        """Be ready for a step, also where the last one was given up."""
        self._works: deque[Work] = deque()
        self._backward = -1
        self._expected: Counter[Tensor] = Counter()

    def expect(self, *parameters: Tensor) -> None:
        """Forward uses them: a gradient of this use will come."""
        # A block that is recomputed runs forward again, in backward, whose gradients do not count.
        if torch._C._current_graph_task_id() < 0:
            self._expected.update(parameters)

    def add(self, work: Work) -> None:
        """Leaves ``work``; the oldest is done where there is too much. In backward alone, at whose
        end all is done."""
        backward = torch._C._current_graph_task_id()
        if backward != self._backward:  # what one has left that raised is no other's
            self._works.clear()
            self._backward = backward
            _engine.queue_callback(self.finish)
        self._works.append(work)
        if len(self._works) > MOST:
            self._works.popleft()()

    def take_gradient(self, parameter: Tensor, gradient: Tensor) -> None:
        """``parameter.grad`` becomes this gradient, or has it added."""
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad += gradient
        self._expected[parameter] -= 1
        if not self._expected[parameter]:
            self.on_gradient(parameter)

    def finish(self) -> None:
        """Does all that is left: under a transfer, or as backward ends."""
        while self._works:
            self._works.popleft()()
