"""Calls of a step as data: made again they launch the kernel that they were taken from."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spbench.layers.dispatch_modes import WatchingMode
from spbench.projection.dryrun.meta_ops import kernel_of
from spbench.projection.microbench.timed_calls import timed_calls
from spbench.strategies.registry import load
from spbench.worker.kernel_calls import repeated_call
from spbench.workload.catalogue import find, with_settings
from spbench.workload.timed import TimedKernel

CPU = torch.device("cpu")
WORKLOAD = with_settings(find("wan-2.1-1.3b-small"), ["depth=1"])


class Seen(WatchingMode):
    """Kernels of a call that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[tuple[Any, ...]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        outs = func(*args, **(kwargs or {}))
        flat = outs if isinstance(outs, (tuple, list)) else [outs]
        given = [*args, *(kwargs or {}).values()]
        kernel = kernel_of(
            func.__name__.partition(".")[0], given, [x for x in flat if x is not None]
        )
        assert kernel is not None
        self.kernels.append((kernel.kind, kernel.name, list(kernel.shape), kernel.is_backward))
        return outs


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_calls_launch_the_kernels_that_they_were_taken_from(dtype: str) -> None:
    """Of a strategy with an attention kernel, and of one with products and softmax."""
    names, workload = set(), with_settings(WORKLOAD, [f"dtype={dtype}"])
    for strategy in ("ulysses", "rsa"):
        for call in timed_calls(workload, load(strategy), 2, "cpu"):
            again = TimedKernel.model_validate_json(call.model_dump_json())
            assert again == call
            make = repeated_call(again, CPU)
            with Seen() as seen:
                make()
            shape = call.shape if call.kind != "elementwise" else []
            assert seen.kernels == [(call.kind, call.name, shape, call.is_backward)]
            names.add(call.name or call.kind)
    assert {"gemm", "attention", "softmax", "gelu", "native_layer_norm_backward", "cat"} <= names


def test_each_call_takes_the_next_copy_of_its_arguments() -> None:
    """Results of earlier calls stay, so that the next one writes to new memory."""
    tensor = {"shape": [256], "stride": [1], "dtype": "float32"}
    call = TimedKernel(
        kind="elementwise",
        shape=[256],
        dtype="float32",
        name="neg",
        op="neg.default",
        given=[tensor],
    )
    given: list[int] = []

    class Places(WatchingMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            given.append(args[0].data_ptr())
            return func(*args, **(kwargs or {}))

    make = repeated_call(call, CPU)
    with Places():
        for _ in range(64):
            make()
    assert len(set(given)) == 32
    assert given[:32] == given[32:]
