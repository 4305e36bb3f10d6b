"""What looks on costs a rank no import; a GPU's RMS norm is one kernel in a dry run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.in_process import inside

from spbench.errors import USAGE
from spbench.layers.dispatch_modes import KernelsSeen, WatchingMode
from spbench.layers.kernels import AS_ON, FUSES_NORMS, norms_of_single_operations, rms_norm
from spbench.worker.memory import LiveStorages
from spbench.worker.witness import Witness


@pytest.mark.parametrize("mode", [KernelsSeen, LiveStorages, Witness])
def test_torch_does_not_load_its_compiler(mode: type[WatchingMode]) -> None:
    """torch wraps what it keeps its compiler out of, and loads it in the first call."""
    assert not hasattr(mode.__torch_dispatch__, "__wrapped__")


def test_norms_are_whole_again_behind_published_figures(tmp_path: Path) -> None:
    """A process that scores published measurements and then projects anything else, as a notebook
    does, has a GPU's norms there; also where the score fails."""
    with norms_of_single_operations():
        assert not FUSES_NORMS.get()
    assert FUSES_NORMS.get()
    (tmp_path / "one.yaml").write_text("version: 1\nname: none\n")
    assert inside("project", "--against", str(tmp_path / "one.yaml")).code == USAGE
    assert FUSES_NORMS.get()
    with pytest.raises(KeyError), norms_of_single_operations():
        raise KeyError
    assert FUSES_NORMS.get()


class Named(WatchingMode):
    """Notes the operations that run."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        names.append(func.__name__)
        return func(*args, **(kwargs or {}))


names: list[str] = []


@pytest.mark.parametrize(("device", "is_one"), [("cuda", True), ("cpu", False)])
def test_an_rms_norm_is_what_the_device_runs(device: str, is_one: bool) -> None:
    names.clear()
    x, weight = torch.empty(4, 8, device="meta"), torch.empty(8, device="meta")
    before = AS_ON.set(device)
    try:
        with Named():
            out = rms_norm(x, [8], weight, 1e-6)
    finally:
        AS_ON.reset(before)
    assert out.shape == x.shape
    assert (len(names) == 1) == is_one, names
