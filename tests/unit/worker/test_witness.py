"""What passes comm/ by is seen, wherever it hides; what nobody can look into is named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from helpers.golden import Golden
from torch import Tensor
from torch.library import custom_op

from spbench.comm.collectives import Collectives
from spbench.comm.nccl_gloo import GlooTransport
from spbench.comm.transport import Transports
from spbench.layers import dispatch_modes
from spbench.worker.witness import Witness


@pytest.fixture
def transports() -> Iterator[Transports]:
    """A process group of one, so that collectives of torch.distributed can be called here."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    assert isinstance(group, dist.ProcessGroup)
    yield Transports(strategy=GlooTransport(group), gradients=GlooTransport(group))
    dist.destroy_process_group()


@custom_op("witnessed::summed", mutates_args=())
def summed(x: Tensor) -> Tensor:
    total = x.clone()
    dist.all_reduce(total)
    return total


@summed.register_kernel("cuda")
def _(x: Tensor) -> Tensor:
    raise AssertionError("there is no GPU here")


def sum_again(ctx: Any, grad: Tensor) -> Tensor:
    return summed(grad)


summed.register_autograd(sum_again)


@custom_op("witnessed::outer", mutates_args=())
def outer(x: Tensor) -> Tensor:
    return summed(x) + 1


@custom_op("witnessed::by_numpy", mutates_args=())
def by_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(np.sin(x.numpy()))


def test_a_collective_inside_an_operator(transports: Transports, golden: Golden) -> None:
    """Forward and backward, and in an operator that calls another: each is named."""
    x = torch.ones(4, requires_grad=True)
    with Witness(transports) as witness:
        summed(x).sum().backward()
        outer(x)
    assert witness.bypassing == {
        "c10d::allreduce_ inside witnessed::summed": 2,
        "c10d::allreduce_ inside witnessed::summed inside witnessed::outer": 1,
    }
    golden(witness.why_wrong())
    assert witness.unseen == {}


def test_functional_collectives(transports: Transports) -> None:
    """Calls that the compiler writes into its graphs; waiting for them is none."""
    with Witness(transports) as witness:
        functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD) + 1
    assert witness.bypassing == {"_c10d_functional::all_reduce": 1}


def test_an_operator_that_communicates_through_comm(transports: Transports) -> None:
    """It is counted, and nothing is wrong."""
    transport = transports.strategy

    @custom_op("witnessed::counted", mutates_args=())
    def counted(x: Tensor) -> Tensor:
        total = x.clone()
        transport.all_reduce(total).wait()
        return total

    with Witness(transports) as witness:
        counted(torch.ones(4))
    assert witness.why_wrong() is None
    assert witness.unseen == {}
    assert Collectives(transport).size == 1


def test_what_nobody_can_look_into_is_named(
    transports: Transports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled code, whatever it calls (here one of torch's stands for a package's), and Python
    code that computes outside torch."""
    monkeypatch.setattr(dispatch_modes, "KNOWN", dispatch_modes.KNOWN - {"quantization"})
    x = torch.ones(4, 4)
    with Witness(transports) as witness:
        by_numpy(x)
        by_numpy(x)
        torch.ops.quantization._FloatToBfloat16Quantized.default(x)
    compiled = "quantization::_FloatToBfloat16Quantized"
    assert witness.unseen == {"witnessed::by_numpy": 2, compiled: 1}
    assert witness.why_wrong() is None


def test_what_is_written_inside_counts_once(transports: Transports) -> None:
    """Bytes of what an operator computes, not of what it hands out again; where nothing inside is
    seen, those of its result."""
    x = torch.ones(4)
    with Witness(transports) as witness:
        by_numpy(x)
    assert witness.written_bytes == x.nbytes
    with Witness(transports) as plain:
        x.clone()
    with Witness(transports) as inside:
        summed(x)
    assert inside.written_bytes == plain.written_bytes == x.nbytes
