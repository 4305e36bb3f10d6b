"""What the adapters of other packages' attention share: the layout, the limits, and the versions.

An adapter names its package, says in data what the package does not serve, calls its entry point in
``exchange``, and predicts by the published formula what that sends. It is a strategy like others:
in the same model, under the same gate. Its transfers do not pass ``comm/``, so a witness counts
them in steps outside the clock (``worker/witness.py``), and nothing can silence them.

A package is imported when its first attention runs, never by a command that does not name it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import ClassVar, final

from torch import Tensor
from torch import distributed as dist

from spbench.comm.collectives import Collectives
from spbench.comm.nccl_gloo import ProcessGroupTransport
from spbench.layers.attention import Folding, Scores
from spbench.layers.kernels import kernel
from spbench.strategies.fixed_axis import FixedAxis, FixedPlan
from spbench.strategies.refusals import blocks_why_not
from spbench.text import counted
from spbench.workload.block import Attention, Sublayer
from spbench.workload.sharding import Shard, Sizes
from spbench.workload.traffic import Traffic, Transfer
from spbench.workload.workload import Workload


@dataclass(frozen=True, kw_only=True, eq=False)
class VendorPlan(FixedPlan):
    """One axis stays sharded; attention along it is the package's."""

    strategy: Vendor

    @property
    def sends_itself(self) -> bool:
        """Where an attention goes along the axis, and ranks share it: else the package's code does
        not run."""
        along = any(self.axis in attention.attended for attention in self.workload.attentions)
        return along and self.ranks > 1

    @property
    def queries_stay(self) -> bool:
        return not self.strategy.splits_heads

    def sublayer_traffic(self, sublayer: Sublayer, axis: str) -> Traffic:
        alone = self.ranks == 1  # ``attend`` does not call the package, and nothing is sent
        if alone or not isinstance(sublayer, Attention) or axis not in sublayer.attended:
            return super().sublayer_traffic(sublayer, axis)
        return self.strategy.sent(self.workload, self.held(axis))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        if shard.dim not in scores.dims or comm.size == 1:
            return super().attend(q, k, v, scores, shard, comm)
        assert isinstance(comm.transport, ProcessGroupTransport), (
            "a package sends between processes"
        )
        # (B, *axes, Z, D) -> (b, Z, S/N, D), or (b, S/N, Z, D), each in one piece of memory
        folding = Folding.of(q.shape, scores.dims)
        heads_first = self.strategy.order == "b z s d"

        def laid(x: Tensor) -> Tensor:
            return x if heads_first else x.transpose(1, 2)

        queries, keys, values = (laid(folding.fold(x)).contiguous() for x in (q, k, v))
        call = Call(group=comm.transport.group, causal=scores.causal)
        return folding.unfold(laid(self.strategy.exchange(queries, keys, values, call)))


@dataclass(frozen=True, kw_only=True)
class Call:
    """What a package's entry point is told beside q, k and v."""

    group: dist.ProcessGroup
    causal: bool


@dataclass(frozen=True, kw_only=True)
class Vendor(FixedAxis, ABC):
    """A package's attention of sharded sequences; class variables say what it does not serve."""

    plan: ClassVar[type[VendorPlan]] = VendorPlan
    package: ClassVar[str]
    """As pip names it; also the extra that installs it."""
    order: ClassVar[str] = "b s z d"
    """The layout of q, k and v at its entry point: or ``b z s d``."""
    splits_heads: ClassVar[bool] = False
    """Whether heads of queries, and of keys, must divide by the ranks."""
    is_causal_too: ClassVar[bool] = True
    """Whether it serves a causal mask."""
    groups_heads: ClassVar[bool] = True
    """Whether keys may have fewer heads than queries."""
    dtypes: ClassVar[tuple[str, ...]] = ("float64", "float32", "bfloat16", "float16")
    """Those that it computes in."""

    @abstractmethod
    def exchange(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Attention of this rank's part of one sequence, by the package.

        Parameters
        ----------
        q, k, v
            (b, S/N, Z, D) or (b, Z, S/N, D), as ``order`` says; k and v may have fewer heads.
        call
            The ranks that share the sequence, and the mask.

        Returns
        -------
        Tensor
            In the shape of ``q``.
        """

    @abstractmethod
    def sent(self, workload: Workload, sizes: Sizes) -> Traffic:
        """The published formula: the transfers of one attention, forward and backward, of which
        each rank holds so many positions. The gate holds it against the witness's count."""

    @final
    @property
    def only_measured(self) -> str | None:
        return (
            f"{self.package} sends by itself, between processes alone: measure it on all its ranks"
        )

    @final
    def misfit(self, workload: Workload) -> str | None:
        missing = f"{self.package} is not installed; pip install 'spbench[{self.package}]'"
        return super().misfit(workload) or (None if installed(self.package) else missing)

    def why_not_along(self, axis: str, workload: Workload, ranks: int) -> str | None:
        too_short = super().why_not_along(axis, workload, ranks)
        along = [one for one in workload.attentions if axis in one.attended]
        if too_short or not along or ranks == 1:
            return too_short
        return (
            blocks_why_not(axis, workload)
            or self._not_served(axis, workload, along)
            or self._uneven(axis, workload, ranks)
        )

    def _uneven(self, axis: str, workload: Workload, ranks: int) -> str | None:
        length, heads, keys = workload.axes[axis], workload.heads, workload.key_heads
        # A zigzag shard is two runs of positions, one from each end.
        parts = 2 * ranks if self.plan.zigzag and workload.is_causal(axis) else ranks
        if length % parts:
            fit = f"give {axis} a multiple of {parts} positions"
            return f"{length} positions of {axis} do not divide into {parts} even parts; {fit}"
        if self.splits_heads and (heads % ranks or keys % ranks):
            unit = f"{heads} heads" if heads % ranks else f"{keys} key heads"
            fit = ", ".join(str(n) for n in range(1, ranks) if not heads % n and not keys % n)
            return f"{unit} do not divide by {counted(ranks, 'rank')}; ranks may be {fit}"
        return None

    def _not_served(self, axis: str, workload: Workload, along: Sequence[Attention]) -> str | None:
        if workload.dtype not in self.dtypes:
            fit = " or ".join(f"dtype={dtype}" for dtype in self.dtypes)
            return f"its attention does not compute in {workload.dtype} throughout; set {fit}"
        if workload.key_heads != workload.heads and not self.groups_heads:
            return (
                f"its entry point takes as many key heads as heads; set kv_heads={workload.heads}"
            )
        unserved = {
            "causal mask": any(one.causal for one in along) and not self.is_causal_too,
            "projection of keys": any(one.projection for one in along),
            "pair bias": any(one.pair_bias for one in along),
            "joined text": bool(workload.text),
        }
        what = next((name for name, is_there in unserved.items() if is_there), None)
        return what and (
            f"its entry point serves no {what} along {axis}; spbench's own strategies that gather "
            "keys or share heads do"
        )

    @final
    @property
    def origin(self) -> str:
        """The package that is installed; its commit only where it came from a repository."""
        found = installed(self.package)
        if found is None:
            return ""
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        commit = origin.get("vcs_info", {}).get("commit_id", "")
        return f"{self.package} {found.version}{f' ({commit[:12]})' if commit else ''}"


def installed(package: str) -> Distribution | None:
    """What pip has of a package; None: nothing. Imports nothing of it."""
    try:
        return distribution(package)
    except PackageNotFoundError:
        return None


# What several packages send alike


def four_all_to_alls(workload: Workload, sizes: Sizes) -> Traffic:
    """Ulysses as published: q, k, v and the result each by an all-to-all of its own; and back.

    Each rank sends (N - 1) / N of its part of each tensor (Jacobs et al., 2023, section 3.2).
    """
    ranks = len(sizes)
    each = [workload.query_bytes, *[workload.key_bytes] * 2, workload.query_bytes]
    moved = [Transfer.all_to_all(whole, sizes, (1,) * ranks) for whole in each]
    return moved, moved


def plain(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """The local attention that a package is given, in torch's kernel: (b, S, Z, D)."""
    folded = (x.transpose(1, 2) for x in (q, k, v))
    return kernel(*folded, is_causal=causal).transpose(1, 2)
