"""What passes through torch in one step, seen by a dispatch mode: outside the clock, backward too.

A witness beside ``comm/``'s own count: collectives that did not come from inside a transport, and
bytes that were written by copying.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, final

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from spbench.comm.transport import Transports
from spbench.text import counted

COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem")
"""Namespaces of torch's operations that move tensors between ranks."""
COPIES = ("copy_", "_to_copy", "clone", "cat", "stack")
"""Operations that write what they read; contiguous and the like are made of them."""


@final
class Witness(TorchDispatchMode):
    """Sees every operation of one step."""

    def __init__(self, transports: Transports) -> None:
        super().__init__()
        self._transports = (transports.strategy, transports.gradients)
        self.bypassing: Counter[str] = Counter()
        """Calls by operation of collectives that ``comm/`` did not count."""
        self.copied_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        namespace, name, *_ = str(func).split(".")
        if namespace in COLLECTIVES and not any(each.is_moving for each in self._transports):
            self.bypassing[f"{namespace}::{name}"] += 1
        if name in COPIES:
            self.copied_bytes += sum(x.nbytes for x in tree_leaves(out) if isinstance(x, Tensor))
        return out

    def why_wrong(self) -> str | None:
        """A sentence that names what passed ``comm/`` by; None if nothing did."""
        if not self.bypassing:
            return None
        calls = ", ".join(f"{name} ({counted(n, 'call')})" for name, n in self.bypassing.items())
        return f"a collective that comm/ does not count: {calls}"
