"""Messages are packed in words of eight bytes where a GPU gains by it, and say the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from spbench.comm.packing import Cut, in_words, joined, pack
from spbench.workload.sharding import Shard


class OnGpu(Tensor):
    """A tensor that says a GPU holds it."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


def on_gpu(x: Tensor) -> Tensor:
    return x.as_subclass(OnGpu)


def bits(x: Tensor) -> Tensor:
    return x.as_subclass(Tensor).view(torch.int16)


def test_words_carry_the_same_bytes() -> None:
    """Views that are no single run of memory, of which ranks get a part of the heads each."""
    plain = [x.bfloat16() for x in torch.randn(3, 6, 2, 5, 4, 12)]
    cuts = [
        [Cut(make(x), 2, Shard.even(2, 5, 5)) for x in plain] for make in (on_gpu, Tensor.clone)
    ]
    wide, narrow = map(pack, cuts)
    assert wide.dtype == torch.bfloat16
    assert torch.equal(bits(wide), bits(narrow))
    both = joined([on_gpu(x) for x in plain], 2)
    assert torch.equal(bits(both), bits(torch.cat(plain, 2)))


@pytest.mark.parametrize(
    ("of", "is_wide"),
    [
        (lambda x: x, True),
        (lambda x: x[..., :8], True),
        (lambda x: x[..., :6], False),
        (lambda x: x[..., 2:10], False),
        (lambda x: x.transpose(-1, -2), False),
        (lambda x: x.as_subclass(Tensor), False),
    ],
)
def test_only_rows_of_whole_words_are_seen_as_such(
    of: Callable[[Tensor], Tensor], is_wide: bool
) -> None:
    """Neither rows of another length, nor rows that begin within a word, nor a CPU's."""
    (found,) = in_words([of(on_gpu(torch.zeros(4, 3, 12, dtype=torch.bfloat16)))])
    assert (found.dtype == torch.int64) == is_wide
    assert in_words([]) == []
