"""What passes through torch in one step, seen by a dispatch mode: outside the clock, backward too.

A witness beside ``comm/``'s own count: collectives that did not come from inside a transport, and
bytes that operations wrote, by copying or by arithmetic that comes to the same.
"""

from collections import Counter
from typing import Any, Self, final

from torch import Tensor
from torch.utils._pytree import tree_leaves

from spbench.comm.transport import Transports
from spbench.layers.watching import WatchingMode
from spbench.text import counted

COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem")
"""Namespaces of torch's operations that move tensors between ranks."""
WRITE_NOTHING = ("empty", "zeros", "_unsafe_view")
"""Parts of the names of operations whose results are no views and yet hold nothing computed."""
COPIES = ("copy_", "clone", "_to_copy")
"""Names of operations that only copy."""
STAND_IN = 3.0
"""Bytes that a silent step may write for each byte that it does not send: noise in place of what
arrives, and at most a packing and an unpacking that its real transport can do without."""
NUMBERS_BYTES = 64
"""A few numbers, which are no work: on an H200 a silent step of one rank wrote 8 bytes more."""


@final
class Witness(WatchingMode):
    """Sees every operation of one step."""

    def __init__(self, transports: Transports) -> None:
        super().__init__()
        self._transports = (transports.strategy, transports.gradients)
        self.bypassing: Counter[str] = Counter()
        """Calls by operation of collectives that ``comm/`` did not count."""
        self.written_bytes = 0
        self.computed_bytes = 0
        """Those of ``written_bytes`` that no copy and no transport wrote: a real step and a silent
        one compute the same. Whether autograd copies a gradient depends on who else holds it."""
        self._known: dict[Any, tuple[str, bool, bool]] = {}

    def __enter__(self) -> Self:
        for transport in self._transports:
            transport.is_watched = True
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for transport in self._transports:
            transport.is_watched = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **kwargs) if kwargs else func(*args)
        known = self._known.get(func)
        if known is None:
            known = self._known[func] = _kind(func)
        collective, writes, copies = known
        is_moving = any(transport.is_moving for transport in self._transports)
        if collective and not is_moving:
            self.bypassing[collective] += 1
        if writes:
            leaves = (out,) if isinstance(out, Tensor) else tree_leaves(out)
            written = sum(x.nbytes for x in leaves if isinstance(x, Tensor))
            self.written_bytes += written
            if not is_moving and not copies:
                self.computed_bytes += written
        return out

    def why_wrong(self) -> str | None:
        """A sentence that names what passed ``comm/`` by; None if nothing did."""
        if not self.bypassing:
            return None
        calls = ", ".join(f"{name} ({counted(n, 'call')})" for name, n in self.bypassing.items())
        return f"a collective that comm/ does not count: {calls}"


def _kind(func: Any) -> tuple[str, bool, bool]:
    """The name of an operation that is a collective, else blank; whether it writes; and whether
    what it writes is a copy."""
    namespace, name, *_ = str(func).split(".")
    if namespace in COLLECTIVES:
        return f"{namespace}::{name}", False, False
    writes = not func.is_view and not any(part in name for part in WRITE_NOTHING)
    return "", writes, name in COPIES


def why_silent_differs(
    more_bytes: float, unsent_bytes: float, less_bytes: float = 0.0, beyond_bytes: float = 0.0
) -> str:
    """The reason why a silent step is not the same work as a real one; blank if it is.

    ``more_bytes``: what it writes beyond a real step, with all copies; ``unsent_bytes``: what it
    does not send; ``less_bytes`` and ``beyond_bytes``: what it computes less, or more, than that.
    """
    for of_bytes, word in ((less_bytes, "less"), (beyond_bytes, "more")):
        if of_bytes > NUMBERS_BYTES:
            return f"a silent step computes {of_bytes:,.0f} bytes {word} than a real one"
    stand_in = STAND_IN * unsent_bytes
    if more_bytes <= stand_in + NUMBERS_BYTES:
        return ""
    where = f"where {stand_in:,.0f} would stand in for what arrives"
    return f"a silent step writes {more_bytes:,.0f} bytes more than a real one, {where}"
