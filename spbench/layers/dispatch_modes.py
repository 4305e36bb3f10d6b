"""Dispatch modes, which look on while operations run, inside what packages add to torch as well.

A mode is handed the call of an operator that a package has added, and nothing that its kernel calls
in turn: a gather in there would pass unseen. Here the kernel is called with the mode switched on
again. By then autograd is over, and so is what an operator does to the versions of tensors that it
changes, as they are for the mode itself; which kernel serves a device, and what torch checks of its
result, is as without a mode.

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
from typing import Any, final

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from spbench.comm.compiler import never_compiled
from spbench.comm.torch_collectives import NAMESPACES

KNOWN = {
    *("aten", "prim", "prims", "rngprims", "debugprims", "_native", "profiler", "streams"),
    *("inductor", "inductor_prims", "mkl", "mkldnn", "mkldnn_prepacked", "onednn", "sparse"),
    *("quantized", "_quantized", "quantization", "quantized_decomposed"),
    *NAMESPACES,
}
"""Namespaces of operators that are torch's own: it is known what they do inside."""
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
    # The union of the tensors' sets: a key, as CUDA's or autograd's, stands for a kernel.
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


OPERATIONS = {
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_flash_attention_for_cpu": "flash",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_safe_softmax": "math",
}
"""Names of kernels by the operations that they begin with; math consists of plain products."""


class WatchingMode(TorchDispatchMode):
    """Sees every operation that runs inside. Not for timed steps.

    Of code that ``torch.compile`` has compiled it sees what the graph calls by torch's dispatcher:
    collectives and attention, and nothing that the compiler has fused.
    """

    supports_higher_order_operators = True
    _depth = 0
    """How many operators that packages have added the next operation is inside."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__torch_dispatch__" in cls.__dict__:
            never_compiled(cls.__torch_dispatch__)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch would load its compiler to keep it out of here, in a second of each rank's time."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Under another mode torch compiles nothing, and never again what was called there once:
        the timed steps would not be the compiled ones."""
        return True

    def call(self, func: Any, args: Any, kwargs: dict[str, Any] | None) -> Any:
        """What ``__torch_dispatch__`` is to return. An operator that a package has added to torch
        runs in this mode, which sees what is inside."""
        if is_foreign(func):
            self._depth += 1
            try:
                return call_inside(func, self, args, kwargs or {})
            finally:
                self._depth -= 1
        if self.is_to_be_parted(func):
            with self:
                return func.decompose(*args, **(kwargs or {}))
        return func(*args, **kwargs) if kwargs else func(*args)

    def is_to_be_parted(self, func: Any) -> bool:
        """Whether an operation is made of others, which this mode is to see in its place. Autograd
        takes such operations apart; inside an operator it is over."""
        return self._depth > 0 and is_composite(func)


@final
class KernelsSeen(WatchingMode):
    """Notes which kernels of torch serve the attention that runs inside. Not for timed steps."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._seen.add(getattr(func, "__name__", "").partition(".")[0])
        return self.call(func, args, kwargs)

    @property
    def names(self) -> list[str]:
        """The kernels, fastest first; empty where all attention is a strategy's own products."""
        return list(dict.fromkeys(OPERATIONS[name] for name in OPERATIONS if name in self._seen))
