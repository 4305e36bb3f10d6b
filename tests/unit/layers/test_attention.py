"""The order of attention kernels on each kind of device."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends

from spbench.layers.attention import FASTEST_FIRST, fastest_kernels


def kernels_in_order() -> list[SDPBackend]:
    return _cur_sdpa_kernel_backends(with_priority=True)


@pytest.mark.parametrize(
    ("capability", "kernels"),
    [
        ((8, 0), FASTEST_FIRST[1:]),
        ((8, 9), FASTEST_FIRST[1:]),
        ((9, 0), FASTEST_FIRST),
        ((10, 0), FASTEST_FIRST),
    ],
)
def test_kernels_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], kernels: list[SDPBackend]
) -> None:
    """cuDNN's kernel comes first from Hopper on, never before; the old order returns afterwards."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    before = kernels_in_order()
    with fastest_kernels(torch.device("cuda", 0)):
        assert kernels_in_order() == kernels
    assert kernels_in_order() == before


def test_kernels_of_a_cpu() -> None:
    """On a CPU torch's own choice stays, and no GPU is queried."""
    before = kernels_in_order()
    with fastest_kernels(torch.device("cpu")):
        assert kernels_in_order() == before
