"""Any strategy in each stage of a pipeline: pipeline parallelism.

    pp=2 on 8 ranks    blocks 0 to 14     ranks 0 1 2 3
                       blocks 15 to 29    ranks 4 5 6 7

The ranks of a stage hold its blocks, and share each microbatch by the strategy. What leaves the
last block of a stage is sent by each of its ranks to the one at the same place in the next stage,
and its gradient comes back: nothing is cut anew. So the plan of a stage knows only a microbatch,
and a stage's ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from math import prod
from typing import final

from spbench.strategies.base import InGroups, PlanOfGroups
from spbench.strategies.refusals import divisors
from spbench.text import counted
from spbench.workload.fields import DTYPE_BYTES
from spbench.workload.mesh import ALL, PP, Mesh
from spbench.workload.stages import Stages
from spbench.workload.traffic import Transfer
from spbench.workload.workload import Workload

NOTHING = Fraction(0)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class PipelinePlan(PlanOfGroups):
    """The plan of a stage, for one microbatch and the whole stack of blocks; and who has which."""

    cut: Stages

    @property
    def stages(self) -> Stages:
        return self.cut

    @cached_property
    def mesh(self) -> Mesh:
        return Mesh(((PP, self.cut.count), *self.inner.mesh.axes))

    @cached_property
    def of_sublayers(self) -> list[Transfer]:
        """What the stages send, microbatch by microbatch."""
        once = [*self._inside_of_stages(), *self._between_stages()]
        return once * self.cut.microbatches

    def _inside_of_stages(self) -> list[Transfer]:
        ranks, stages = self.inner.ranks, self.cut.count
        nothing = (NOTHING,) * ranks
        name = "+".join(self.inner.mesh.names)
        made: dict[tuple[int, int], Transfer] = {}  # a stack repeats a few transfers

        def of_stage(transfer: Transfer, place: int) -> Transfer:
            sent = nothing * place + transfer.sent + nothing * (stages - 1 - place)
            axis = name if transfer.axis == ALL else transfer.axis
            return Transfer(op=transfer.op, sent=sent, phase=transfer.phase, axis=axis)

        blocks, found = self.inner.of_blocks, []
        for place, part in enumerate(self.cut.parts):
            for block in blocks[part.blocks.start : part.blocks.stop]:
                for transfer in block:
                    key = place, id(transfer)
                    if key not in made:
                        made[key] = of_stage(transfer, place)
                    found.append(made[key])
        return found

    def _between_stages(self) -> list[Transfer]:
        """The activation, text and pairs there, and in training their gradients back."""
        there: list[Transfer] = []
        back: list[Transfer] = []
        bytes_by_cut = cache(self._passed_bytes)
        is_train, stages = self.workload.mode == "train", self.cut.count
        for place, part in enumerate(self.cut.parts[:-1]):
            sent = bytes_by_cut(self._cut_behind(part.blocks.stop))
            nothing = (NOTHING,) * len(sent)
            # A stage sends on, and the next one sends back.
            ways = [(there, place)] + [(back, place + 1)] * is_train
            for way, sender in ways:
                by_rank = nothing * sender + sent + nothing * (stages - 1 - sender)
                way.append(Transfer(op="p2p", sent=by_rank, axis=PP))
        return [*there, *(transfer.during("backward") for transfer in back)]

    def _cut_behind(self, blocks: int) -> str:
        """The axis that is sharded behind so many blocks."""
        first = [place.is_first for place in self.workload.places]
        begins = [i for i, is_first in enumerate(first) if is_first]
        behind = begins[blocks] if blocks < len(begins) else len(first)
        return self.layout[max(0, behind - 1)]

    def _passed_bytes(self, axis: str) -> tuple[Fraction, ...]:
        """What each rank of a stage passes on of a microbatch where ``axis`` is sharded."""
        group, work = self.group, self.group.workload
        number_bytes = DTYPE_BYTES[work.dtype]

        def held(rank: int) -> int:
            lengths = {work.dim(each): n for each, n in work.axes.items()}
            lengths |= {cut.dim: cut.sizes[rank] for cut in group.shards[axis].cuts}
            numbers = (prod(lengths.values()) + self._text_of(rank)) * work.hidden
            for each, channels in work.pairs.items():
                numbers += group.shards[each].sizes[rank] * work.axes[each] * channels
            return work.samples * numbers * number_bytes

        every = [Fraction(held(rank)) for rank in range(group.ranks)]
        same = {each: each for each in every}  # equal amounts are one object
        groups = self.inner.ranks // group.ranks
        return tuple(same[each] for each in every) * groups

    def _text_of(self, rank: int) -> int:
        return self.group.text.sizes[rank] if self.group.workload.text else 0


@final
@dataclass(frozen=True, kw_only=True)
class Pipeline(InGroups):
    """``own``: the strategy of the ranks of each stage."""

    pp: int

    def misfit(self, workload: Workload) -> str | None:
        if workload.is_attention_alone:
            return f"{PP}={self.pp} cuts a stack of blocks, and an attention alone is none"
        if workload.zero:
            return f"{PP}={self.pp} goes with zero 0, not with zero {workload.zero}"
        if workload.streams:
            streams = ", ".join(workload.streams)
            return f"{PP}={self.pp} does not pass on streams beside the axes ({streams})"
        if workload.blocks < self.pp:
            blocks = counted(workload.blocks, "block")
            return f"{blocks} cannot make {self.pp} stages; {PP} may be 1 to {workload.blocks}"
        return self._unfilled(workload) or self.own.misfit(self._microbatch(workload))

    def _unfilled(self, workload: Workload) -> str | None:
        samples, parts = workload.samples, self._microbatches(workload)
        fitting = self._fitting(workload)
        if parts in fitting:
            return None
        had = f"{counted(parts, 'microbatch')} of {counted(samples, 'sample')}"
        if not fitting:
            return f"{had} cannot fill {self.pp} stages; use {self.pp} samples or more"
        may_be = " or ".join(map(str, fitting))
        return f"{had} cannot fill {self.pp} stages alike; microbatches may be {may_be}"

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        if ranks % self.pp:
            had = f"{counted(ranks, 'rank')} do not make {self.pp} stages"
            return f"{had}; use a multiple of {self.pp} ranks"
        microbatch, of_a_stage = self._microbatch(workload), ranks // self.pp
        if reason := self.own.why_not(microbatch, of_a_stage):
            return f"in each of {self.pp} stages: {reason}"
        if self.own.on(microbatch, of_a_stage).group.sends_itself:
            return f"another package's code is not run in stages; leave {PP} out"
        return None

    def on(self, workload: Workload, ranks: int) -> PipelinePlan:
        of_a_stage = self.own.on(self._microbatch(workload), ranks // self.pp)
        return PipelinePlan.around(
            of_a_stage,
            strategy=Pipeline(own=of_a_stage.strategy, pp=self.pp),
            workload=workload,
            ranks=ranks,
            cut=Stages.of(workload, self.pp, self._microbatches(workload)),
        )

    def _fitting(self, workload: Workload) -> list[int]:
        """Numbers of equal microbatches that fill the stages, in ascending order."""
        return [each for each in divisors(workload.samples) if each >= self.pp]

    def _microbatches(self, workload: Workload) -> int:
        """Parts in which samples pass through: as many as what is inside of a stage can share."""
        if workload.microbatches:
            return workload.microbatches
        of_most = reversed(self._fitting(workload))
        fit = (n for n in of_most if not self.own.misfit(microbatch(workload, n)))
        return next(fit, workload.samples)

    def _microbatch(self, workload: Workload) -> Workload:
        return microbatch(workload, self._microbatches(workload))


def microbatch(workload: Workload, parts: int) -> Workload:
    """One of so many parts of its samples; where they do not divide, nearly so."""
    samples = max(1, workload.samples // parts)
    # Branches of the guidance stay together where they can.
    guidance = workload.guidance if samples % workload.guidance == 0 else 1
    sizes = {"guidance": guidance, "batch": samples // guidance, "microbatches": 0}
    return workload.model_copy(update=sizes)
