"""What looks on costs a rank no import."""

from __future__ import annotations

import pytest

from spbench.layers.kernels import KernelsSeen
from spbench.layers.watching import WatchingMode
from spbench.worker.memory import LiveStorages
from spbench.worker.witness import Witness


@pytest.mark.parametrize("mode", [KernelsSeen, LiveStorages, Witness])
def test_torch_does_not_load_its_compiler(mode: type[WatchingMode]) -> None:
    """torch wraps what it keeps its compiler out of, and loads it in the first call."""
    assert not hasattr(mode.__torch_dispatch__, "__wrapped__")
