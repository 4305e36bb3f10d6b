"""Which part of each tensor of a step each rank holds: positions, samples, heads, blocks.

    dp=2 pp=2, 8 ranks      0 1    2 3    4 5    6 7
    samples                 half   half   other  other
    blocks                  first  last   first  last

A rank without a block has nothing of its weights: a part of no rows. So what compares tensors with
one device's, or takes their fingerprints, needs to know of cuts alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import final

from torch import nn

from spbench.layers.linear import part_of
from spbench.model.inputs import GRADIENT_OF_TEXT, gradient_name, gradient_of_stream
from spbench.strategies.base import Plan
from spbench.workload.mesh import PP
from spbench.workload.sharding import Run, Shard, Shards

NONE: tuple[Run, ...] = ((0, 0),)
"""The runs of a rank that holds no position."""


@final
class HeldParts:
    """The parts of all ranks of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.stages = plan, plan.stages
        self.group = plan.group
        self.first, self.last = (self.group.shards[plan.layout[end]] for end in (0, -1))
        """How the input and the output are cut."""
        places = [plan.mesh.place(rank) for rank in range(plan.ranks)]
        self.stage_of = [place.get(PP, 0) for place in places]
        """The stage of each rank; 0 where there is one alone."""
        # 8 ranks of dp=2: 0 1 2 3 0 1 2 3, the place of each among those that share its samples.
        self.inside = [rank % self.group.ranks for rank in range(plan.ranks)]
        around = {axis: size for axis, size in self._around if axis != PP}
        # 8 ranks of dp=2: 0 0 0 0 1 1 1 1, and each four share the samples of their group.
        of_rank = []
        for place in places:
            group = 0
            for axis, size in around.items():
                group = group * size + place[axis]
            of_rank.append(group)
        self.samples = Shard.even(0, plan.workload.samples, max(of_rank) + 1).among(of_rank)
        """Which samples each rank computes."""

    @property
    def _around(self) -> Sequence[tuple[str, int]]:
        axes = self.plan.mesh.axes
        return axes[: len(axes) - len(self.group.mesh.axes)]

    @cached_property
    def entering(self) -> Shard:
        """Which samples each rank is given: those of a first stage."""
        return self._of_stage(self.samples, 0)

    @cached_property
    def leaving(self) -> Shard:
        """The samples whose output each rank has: those of a last stage."""
        return self._of_stage(self.samples, 0 if self.stages is None else self.stages.count - 1)

    def _of_stage(self, cut: Shard, stage: int) -> Shard:
        """``cut`` where that is the stage, and nothing on other ranks."""
        if self.stages is None:
            return cut
        runs = zip(cut.runs, self.stage_of, strict=True)
        return replace(cut, runs=tuple(own if at == stage else NONE for own, at in runs))

    def cuts(self, pairs: Mapping[str, Shard]) -> dict[str, Shards]:
        """How the output and the inputs' gradients are cut; ``pairs``: how each of these is."""
        given = {gradient_name(axis): cut for axis, cut in pairs.items()}
        given |= {"gradient of the input": self.first, GRADIENT_OF_TEXT: self.group.text}
        streams = self.group.of_streams.items()
        given |= {gradient_of_stream(name): plan.shards[name] for name, plan in streams}
        found = {name: (*self._among(cut), self.entering) for name, cut in given.items()}
        return found | {"output": (*self._among(self.last), self.leaving)}

    def cut_of_weight(self, name: str, weight: nn.Parameter) -> Shards:
        """What each rank has of a weight that strategies have cut, or not."""
        part = part_of(weight)
        cut = () if part is None else self._among(part)
        stage = self._stage_of_weight(name)
        if stage is None:
            return cut
        if cut and cut[0].dim == 0:
            return (self._of_stage(cut[0], stage),)
        rows = Shard(0, (((0, weight.shape[0]),),) * self.plan.ranks)
        return (*cut, self._of_stage(rows, stage))

    def _among(self, cut: Shard) -> Shards:
        return cut.among(self.inside).cuts

    def _stage_of_weight(self, name: str) -> int | None:
        """The stage that has it; None: each."""
        if self.stages is None:
            return None
        module, _, rest = name.partition(".")
        if module == "blocks":
            number = int(rest.partition(".")[0])
            return next(i for i, part in enumerate(self.stages.parts) if number in part.blocks)
        ends = {"positions": 0, "norm": self.stages.count - 1, "final": self.stages.count - 1}
        return ends.get(module)
