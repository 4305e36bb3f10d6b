"""What passes through torch in one step, seen by a dispatch mode: outside the clock, backward too.

A witness beside ``comm/``'s own count: collectives that did not come from inside a transport, and
bytes that operations wrote, by copying or by arithmetic that comes to the same.

Of another package's code, whose transfers do not pass ``comm/``, it is the count itself: by the
same formulas, phase by phase.
"""

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Self, final

from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from spbench.comm.torch_collectives import collective_named, op_of, sent_bytes
from spbench.comm.transport import Transports
from spbench.layers.dispatch_modes import WatchingMode, is_foreign, is_python
from spbench.text import counted
from spbench.workload.traffic import Count, Kind, Op

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
    """Sees every operation of one step, also in operators that a package has added to torch."""

    def __init__(self, transports: Transports, *, counts_as: str | None = None) -> None:
        """``counts_as``: the axis as which collectives that pass ``comm/`` by are counted here, in
        ``sent`` and ``calls``, where they are the strategy's own; None: they are wrong."""
        super().__init__()
        self._transports = (transports.strategy, transports.gradients)
        self._counts_as = counts_as
        self.sent: Count = {}
        self.calls: Counter[Kind] = Counter()
        self.bypassing: Counter[str] = Counter()
        """Calls of collectives that ``comm/`` did not count, by operation and what it is inside."""
        self.bypassing_bytes: int | Fraction | None = 0
        """What they sent; None where it is not known of one of them."""
        self.unseen: Counter[str] = Counter()
        """Calls of operators that nothing can look into, by operator."""
        self.written_bytes = 0
        self.computed_bytes = 0
        """Those of ``written_bytes`` that no copy and no transport wrote: a real step and a silent
        one compute the same. Whether autograd copies a gradient depends on who else holds it."""
        self._noticed = 0
        """Operations so far that move or write something."""
        self._inside: list[str] = []
        """Operators that packages have added, inside which the next one is, outermost first."""
        self._kinds: dict[Any, tuple[str, bool, bool]] = {}

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
        if is_foreign(func):
            return self._foreign(func, args, kwargs or {})
        out = self.call(func, args, kwargs)
        if self.is_to_be_parted(func):
            return out
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _kind(func)
        collective, writes, copies = kind
        is_moving = any(transport.is_moving for transport in self._transports)
        if collective:
            self._noticed += 1
            if not is_moving:
                self._pass_by(collective, op_of(func), sent_bytes(func, args, kwargs or {}))
        if writes:
            self._write(out, is_computed=not is_moving and not copies)
        return out

    def _foreign(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """An operator whose kernel runs in this mode. Of one in which nothing is noticed the result
        counts as written; neither it nor compiled code has been looked into."""
        before = self._noticed
        self._inside.append(func.name())
        try:
            out = self.call(func, args, kwargs)
        finally:
            self._inside.pop()
        # Its kernel called nothing that moves or writes: it is compiled, and what it does stays
        # unseen.
        is_blank = self._noticed == before
        if is_blank:
            self._write(out, is_computed=True)
        if is_blank or not is_python(func, args, kwargs):
            self.unseen[func.name()] += 1
        return out

    def _write(self, out: Any, *, is_computed: bool) -> None:
        leaves = (out,) if isinstance(out, Tensor) else tree_leaves(out)
        written = sum(x.nbytes for x in leaves if isinstance(x, Tensor))
        self.written_bytes += written
        if is_computed:
            self.computed_bytes += written
        self._noticed += 1

    def _pass_by(self, collective: str, op: Op | None, sent: int | Fraction | None) -> None:
        if self._counts_as is not None and op is not None and sent is not None:
            if sent:  # over one rank, or by a receive, nothing is
                kind = (self._transports[0].phase_now, op, self._counts_as)
                self.sent[kind] = self.sent.get(kind, 0) + sent
                self.calls[kind] += 1
            return
        self.bypassing[" inside ".join([collective, *reversed(self._inside)])] += 1
        before = self.bypassing_bytes
        self.bypassing_bytes = None if sent is None or before is None else before + sent

    def differs(self, other: "Witness") -> str | None:
        """A sentence on another step that sent else than this one, where that is counted here."""
        if (self.sent, self.calls) == (other.sent, other.calls):
            return None
        steps = ((sum(one.calls.values()), float(sum(one.sent.values()))) for one in (self, other))
        first, later = (f"{counted(calls, 'call')} and {sent:,.0f} bytes" for calls, sent in steps)
        return f"a later step sends by {later}, the first one by {first}"

    def why_wrong(self) -> str | None:
        """A sentence that names what passed ``comm/`` by; None if nothing did."""
        if not self.bypassing:
            return None
        calls = counted_calls(self.bypassing)
        sent = self.bypassing_bytes
        how_much = "" if sent is None else f", which sent {round(sent):,} bytes"
        if self._counts_as is not None:
            return f"a collective whose bytes have no formula here: {calls}"
        return f"a collective that comm/ does not count: {calls}{how_much}"


def counted_calls(by_operation: Mapping[str, int]) -> str:
    """Operations and how often each was called: mine::gather (4 calls)."""
    return ", ".join(f"{name} ({counted(n, 'call')})" for name, n in by_operation.items())


def _kind(func: Any) -> tuple[str, bool, bool]:
    """The name of an operation that is a collective, else blank; whether it writes; and whether
    what it writes is a copy."""
    if not isinstance(func, OpOverload):  # one of torch's higher order, as attention by a function
        return "", True, False
    # "aten.copy_.default" is aten and copy_
    namespace, name, *_ = str(func).split(".")
    if collective := collective_named(namespace, name):
        return collective, False, False
    writes = not func.is_view and not any(part in name for part in WRITE_NOTHING)
    return "", writes, name in COPIES


def why_silent_differs(
    more_bytes: float, unsent_bytes: float, less_bytes: float = 0.0, beyond_bytes: float = 0.0
) -> str:
    """The reason why a silent step is not the same work as a real one; blank if it is.

    Parameters
    ----------
    more_bytes
        What it writes beyond a real step, with all copies.
    unsent_bytes
        What it does not send.
    less_bytes, beyond_bytes
        What it computes less, or more, than a real step.

    Returns
    -------
    str
        A sentence; blank if the step is the same work.
    """
    for of_bytes, word in ((less_bytes, "less"), (beyond_bytes, "more")):
        if of_bytes > NUMBERS_BYTES:
            return f"a silent step computes {of_bytes:,.0f} bytes {word} than a real one"
    stand_in = STAND_IN * unsent_bytes
    if more_bytes <= stand_in + NUMBERS_BYTES:
        return ""
    where = f"where {stand_in:,.0f} would stand in for what arrives"
    return f"a silent step writes {more_bytes:,.0f} bytes more than a real one, {where}"
