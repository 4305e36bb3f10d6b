"""A step's transfers, sublayer by sublayer: the switch to its axis, and its own, back and forth."""

from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache

from spbench.workload.block import Place
from spbench.workload.flops import cut_parameters, is_modulated, parameters
from spbench.workload.mesh import ALL, Mesh
from spbench.workload.sharding import Shard, Sizes
from spbench.workload.traffic import Traffic, Transfer
from spbench.workload.workload import DTYPE_BYTES, Workload


@dataclass(frozen=True)
class Move:
    """A sublayer at its place in a block, and the axes that are sharded before and in it."""

    place: Place
    before: str
    axis: str


@dataclass(frozen=True, eq=False)
class Hop:
    """One all-to-all of a switch: ``before`` becomes whole where ``after`` is cut."""

    before: Shard
    after: Shard
    over: str = ALL
    """The axis of the mesh whose groups it goes in."""
    stays: Shard | None = None
    """How another dim stays cut meanwhile."""

    @classmethod
    def between(cls, before: Shard, after: Shard) -> "tuple[Hop, ...]":
        """One over all ranks; none where the shard stays."""
        return () if before == after else (cls(before, after),)

    @cached_property
    def undone(self) -> "Hop":
        """The all-to-all of its backward."""
        return replace(self, before=self.after, after=self.before)

    @lru_cache(maxsize=200)  # noqa: B019 (each takes long on thousands of ranks)
    def transfer(self, whole_bytes: int, mesh: Mesh) -> Transfer:
        """The all-to-alls of all groups at once, of a tensor of ``whole_bytes``."""
        if self.over == ALL:
            return Transfer.all_to_all(whole_bytes, self.before.sizes, self.after.sizes)
        stays = self.stays
        assert stays is not None, "an all-to-all in groups leaves another dim as it is"

        @cache
        def of_group(kept: int, before: Sizes, after: Sizes) -> Transfer:
            return Transfer.all_to_all(whole_bytes * kept // stays.length, before, after)

        groups = mesh.groups(self.over)
        each = [
            of_group(
                stays.sizes[members[0]],
                *(tuple(cut.sizes[at] for at in members) for cut in (self.before, self.after)),
            )
            for members in groups
        ]
        return Transfer.along(self.over, groups, each)


def gradient_sums(
    workload: Workload, mesh: Mesh, cuts_weights: bool, holds_whole: bool
) -> list[Transfer]:
    """The sums of gradients in training: of weights that all ranks hold, over all; of a part of a
    weight over the ranks of other groups that hold it too.

    A group that ``holds_whole`` has whole gradients already, but for weights of each head.
    """
    if workload.mode != "train":
        return []
    total, each = parameters(workload), DTYPE_BYTES[workload.dtype]
    everywhere = total.of_heads if holds_whole else total.replicated
    if not cuts_weights:
        everywhere = total.total
    sums = [Transfer.all_reduce(everywhere * each, mesh.size)] if everywhere else []
    others = mesh.without(mesh.last)
    if cuts_weights and others:
        parts = cut_parameters(workload, mesh.size_of(mesh.last))
        also = total.replicated - total.of_heads if holds_whole else 0
        groups = mesh.groups(*others)
        of_groups = [
            Transfer.all_reduce((parts[group[0] % len(parts)] + also) * each, len(group))
            for group in groups
        ]
        sums.append(Transfer.along("+".join(others), groups, of_groups))
    return [each_sum.during("gradients") for each_sum in sums]


def held_with_text(workload: Workload, axis: str, sizes: Sizes, text: Sizes) -> Sizes:
    """What each rank holds of a self-attention's sequence, with these positions of ``axis``.

    They themselves; where there is ``text``, the tokens of both.
    """
    if not workload.text:
        return sizes
    others = workload.tokens // workload.axes[axis]
    return tuple(others * n + of_text for n, of_text in zip(sizes, text, strict=True))


def shared_length(workload: Workload, axis: str) -> int:
    """What all ranks together hold of a self-attention's sequence."""
    return workload.all_tokens if workload.text else workload.axes[axis]


def in_a_step(
    workload: Workload, place: Place, own: Traffic, switches: Traffic, ends_in_transfer: bool
) -> list[Transfer]:
    """Transfers of a sublayer, which are its ``own``, and of the ``switches`` before it.

    Under checkpointing, backward runs each block's forward again, from the block's input
    to the last tensor that backward needs: the switch into the block is not repeated, nor
    is a transfer at its very end, unless a gate behind it needs the result.
    """
    (forward, backward), (there, back) = own, switches
    if workload.mode != "train":
        return there + forward
    repeated = forward if place.is_first else there + forward
    if place.is_last and ends_in_transfer and not is_modulated(place.sublayer, workload):
        repeated = repeated[:-1]
    again = repeated if workload.recomputes else []
    return there + forward + [each.during("backward") for each in again + backward + back]
