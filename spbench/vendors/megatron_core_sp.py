"""Megatron-core's own Column- and RowParallelLinear with sequence parallelism.

    (S/N, b, H)      --all-gather-->  (S, b, H)  x column-cut  ->  (S, b, columns / N)
    (S, b, rows / N)  x row-cut  ->  partial (S, b, H)  --reduce-scatter-->  (S/N, b, H)

Each collective sends f M: 2 forward, 3 backward, where the saved shard is gathered once more
(Korthikanti et al., MLSys 2023). What is between the two, attention too, is spbench's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from spbench.strategies.fixed_axis import FixedPlan
from spbench.strategies.refusals import cut_why_not, divisors
from spbench.vendors.megatron_core_plan import CorePlan
from spbench.vendors.package import Packaged
from spbench.workload.block import CrossAttention
from spbench.workload.fields import ACROSS_HEADS
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True)
class MegatronCoreSP(Packaged):
    """Its layers as the projections of every sublayer."""

    plan: ClassVar[type[FixedPlan]] = CorePlan
    package: ClassVar[str] = "megatron-core"
    command: ClassVar[str] = (
        "pip install 'spbench[megatron-core]', on Python 3.11 as docs/vendors.md says"
    )

    def environment(self, capability: tuple[int, int]) -> dict[str, str]:
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if capability < (10, 0) else {}

    def why_not_along(self, axis: str, workload: Workload, ranks: int) -> str | None:
        unfit = super().why_not_along(axis, workload, ranks) or cut_why_not(
            workload, ranks, copies=False
        )
        return unfit or (None if ranks == 1 else self._not_served(axis, workload, ranks))

    def _not_served(self, axis: str, work: Workload, ranks: int) -> str | None:
        cross = [one.heads or work.heads for one in work.kinds if isinstance(one, CrossAttention)]
        columns = [work.columns(mlp) for mlp in work.mlps]
        counts = {"positions of " + axis: [work.axes[axis]], "text tokens": [work.text]}
        counts |= {"key heads": [work.key_heads], "columns of an mlp": columns}
        counts |= {"heads of a cross-attention": cross}
        for unit, lengths in counts.items():
            if uneven := next((n for n in lengths if n % ranks), 0):
                fit = ", ".join(map(str, divisors(uneven)))
                return f"{uneven} {unit} do not divide by {ranks} ranks; ranks may be {fit}"
        is_normed_across = work.qk_norm == ACROSS_HEADS
        beyond = "norm across heads" if is_normed_across else "pair bias"
        if is_normed_across or any(attention.pair_bias for attention in work.attentions):
            return f"its adapter serves no {beyond}, which goes over ranks beside its layers"
        return None
