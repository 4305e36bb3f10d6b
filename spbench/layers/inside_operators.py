"""What runs inside an operator that a package has added to torch, seen by a dispatch mode, too.

A mode is handed the call of such an operator, and nothing that its kernel calls in turn: a gather
in there would pass unseen. Here the kernel is called with the mode switched on again. By then
autograd is over, and so is what an operator does to the versions of tensors that it changes, as
they are for the mode itself; which kernel serves a device, and what torch checks of its result, is
as without a mode.

A kernel that is compiled code is run like that, too, and shows what it calls by torch's
dispatcher; what it does beside that nobody sees.

Private parts of torch (2.11 to 2.14), in no other file: ``OpOverload.redispatch``,
``_can_decompose``, the sets of dispatch keys, and which kernels are Python code. Should they
change, tests/unit/layers/test_inside_operators.py finds it out.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, reduce
from operator import or_
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from spbench.comm.torch_collectives import NAMESPACES

KNOWN = {
    *("aten", "prim", "prims", "rngprims", "debugprims", "_native", "profiler", "streams"),
    *("inductor", "inductor_prims", "mkl", "mkldnn", "mkldnn_prepacked", "onednn", "sparse"),
    *("quantized", "_quantized", "quantization", "quantized_decomposed"),
    *("spbench", *NAMESPACES),
}
"""Namespaces of operators that are torch's own or ours: it is known what they do inside."""
BELOW_MODES = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.Python)
"""What torch asks for a kernel once all dispatch modes have seen a call."""
NO_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)
OF_ANY_DEVICE = "CompositeExplicitAutograd"


def is_foreign(func: Any) -> bool:
    """Whether a package has added the operator to torch."""
    return isinstance(func, OpOverload) and func.namespace not in KNOWN


@cache
def is_composite(func: Any) -> bool:
    """Whether an operation of torch is made of others: attention chooses a kernel, a linear layer
    is a product and a sum."""
    return isinstance(func, OpOverload) and func._can_decompose()


def call_inside(
    func: OpOverload,
    mode: AbstractContextManager[Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """The result of an operator whose kernel runs in ``mode``. For ``__torch_dispatch__``."""
    tensors = _tensors(args, kwargs)
    keys = reduce(or_, (torch._C._dispatch_keys(x) for x in tensors), NO_KEYS)
    # Without a tensor torch picks the kernel by an argument that it alone knows how to read, and a
    # tensor of a class with a dispatch of its own holds no numbers that a kernel could read.
    if not tensors or keys.has(torch._C.DispatchKey.Python):
        return func(*args, **kwargs)
    with mode:
        return func.redispatch(keys & BELOW_MODES, *args, **kwargs)


def is_python(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the kernel that serves a call is Python code, so that all it calls is seen."""
    devices = {x.device.type for x in _tensors(args, kwargs)}
    keys = [torch._C._dispatch_key_for_device(device) for device in devices]
    name = func.name().replace("::", "/")  # mine/gather, or mine/gather.out
    return any(f"{name}/{key}" in torch.library._impls for key in (*keys, OF_ANY_DEVICE))


def _tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    return [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
