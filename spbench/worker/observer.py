"""Where one rank's life went: seconds of each phase, and of all those, the ones inside steps.

What a launch costs beyond its steps is what spbench itself costs. The column ``steps_s`` is all
steps, not the timed ones alone: the gate's and its reference's on one device are in, and those of
the memory pass with what watching them costs. What ranks wait for each other between steps is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

import torch


@final
class PhaseTimes:
    """Fills up as the rank goes along."""

    def __init__(
        self,
        now_s: Callable[[], float] = time.perf_counter,
        on_phase: Callable[[str], None] = lambda _: None,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        """``alive`` is called now and then where one step takes long."""
        self.now_s, self._on_phase, self.alive = now_s, on_phase, alive
        self.phases_s: dict[str, float] = {}
        self.steps_s = 0.0
        """Of the gate and its reference on one device, of the memory pass (which watches each
        storage, so that its steps are longer than others), of warm-up, timed and silent blocks."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._on_phase(name)
        start = self.now_s()
        yield
        self.phases_s[name] = self.now_s() - start

    @contextmanager
    def step(self, device: torch.device) -> Iterator[None]:
        """One step, until the device is done. Not for steps under a ``Stopwatch``."""
        start = self.now_s()
        yield
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self.steps_s += self.now_s() - start
