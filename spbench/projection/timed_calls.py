"""Calls of torch's operations in a step, as data that a rank can make again and time.

A dry run knows each call by its signature: shapes, strides and dtypes of tensors, and numbers. Made
again with other tensors of that description, it is the same kernel on the same memory layout.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch

from spbench.projection.dataless import META, Signature
from spbench.projection.prepared import prepared
from spbench.projection.recorder import Recorder
from spbench.projection.work import Kernel
from spbench.strategies.base import Strategy
from spbench.workload.timed import TimedKernel
from spbench.workload.workload import DTYPE_BYTES, Workload


def timed_calls(workload: Workload, strategy: Strategy, ranks: int) -> Iterator[TimedKernel]:
    """Each different call of a step of rank 0 that launches a kernel. Left out are those that take
    what no description holds, such as infinity."""
    recorder = Recorder("cpu")
    with recorder:
        step, given = prepared(workload, strategy, ranks, 0, recorder)
        with recorder.recording():
            step(*given)
    for signature, kernel in recorder.calls():
        timed = _timed(signature, kernel, workload)
        if timed is not None:
            yield timed


def _timed(signature: Signature, kernel: Kernel, workload: Workload) -> TimedKernel | None:
    operation, *given = signature
    named = dict(each for each in given if _is_named(each))
    given = [each for each in given if not _is_named(each)]
    try:
        arguments = [_plain(each) for each in given]
        by_name = {name: _plain(value) for name, value in named.items() if value != META}
        json.dumps([arguments, by_name], allow_nan=False)
    except (TypeError, ValueError):
        return None
    passes = kernel.moved_bytes // (2 * DTYPE_BYTES[workload.dtype])
    return TimedKernel(
        kind=kernel.kind,
        shape=list(kernel.shape) or [max(1, passes)],
        dtype=workload.dtype,
        is_masked=kernel.is_masked,
        is_backward=kernel.is_backward,
        name=kernel.name,
        op=operation.__name__,
        given=arguments,
        named=by_name,
    )


def _is_named(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and len(value) == 3 and isinstance(value[2], torch.dtype):
        shape, stride, dtype = value
        return {"shape": [*shape], "stride": [*stride], "dtype": str(dtype).removeprefix("torch.")}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
