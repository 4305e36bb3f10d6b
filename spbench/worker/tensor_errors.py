"""How far a rank's tensors are from one device's, and how far they may be.

A tensor that is cut is compared part by part: the root mean square of (got - wanted) on this rank,
relative to that of the whole tensor.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import final

import torch
from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.results.agreement import FIXED_TOLERANCE, OWN_ERROR_FACTOR
from spbench.workload.sharding import Shards

UPDATES = 2
"""Two updates are compared: the second has other gradients, and moments that the first one left."""
UPDATED = f"after {UPDATES} updates"
FLIPPED = "from flipped inputs"
"""What tensors of a step on the other inputs are called (``Step.flip``)."""

Named = dict[str, Tensor]
"""The output, and behind it the input's gradient and every weight's, by name; with an optimizer
also the weights that two of its updates give."""


@final
class Comparison:
    """This rank's parts of one device's tensors, and how far other tensors are from them."""

    def __init__(
        self,
        exact: Named,
        own: Named | None,
        *,
        dtype: str,
        shards: Mapping[str, Shards],
        comm: Collectives,
    ) -> None:
        """A comparison with one device.

        Parameters
        ----------
        exact
            One device's whole tensors; with ``own`` in a finer dtype than ``dtype``.
        own
            The same in ``dtype``, where that is not exact enough.
        dtype
            That of the tensors to compare.
        shards
            Which part of each this rank holds; none: all of it.
        comm
            The ranks that hold the parts.
        """
        self.exact, self.own, self.dtype = exact, own, dtype
        self.shards, self.comm = shards, comm
        self.floor = 0.0 if own is not None else _rounding(exact, dtype)

    def part(self, name: str, whole: Tensor) -> Tensor:
        """This rank's part of a whole tensor."""
        return reduce(self.comm.take, self.shards[name], whole)

    def error(self, name: str, got: Tensor) -> float:
        """How far this rank's tensor of that name is from its part of one device's, relatively."""
        whole = self.exact[name]
        floor = 0.0 if name.endswith(UPDATED) else self.floor
        return relative_error(got, self.part(name, whole), whole, floor)

    def tolerances(self, names: Sequence[str]) -> dict[str, float]:
        """The largest error that each of these tensors may have."""
        fixed = FIXED_TOLERANCE.get(self.dtype)
        own, exact = self.own, self.exact
        if own is None:
            return dict.fromkeys(names, math.nan if fixed is None else fixed)
        overall = {name: relative_error(own[name], exact[name], exact[name]) for name in names}
        # A bias of a few numbers may come out exact by luck: no tensor is held to less than
        # what is typical of all.
        typical = statistics.median(overall.values())
        tolerances = {}
        for name in names:
            on_rank = self.error(name, self.part(name, own[name]))
            own_error = OWN_ERROR_FACTOR * max(typical, on_rank, overall[name])
            tolerances[name] = max(fixed or 0.0, own_error)
        return tolerances


def _rounding(exact: Named, dtype: str) -> float:
    """Below this size a gradient is nothing but rounding, and errors are relative to this size. The
    gradient of a query which only one key answers is zero, whatever its digits say."""
    gradients = [tensor for name, tensor in exact.items() if name.startswith("gradient")]
    sizes = [root_mean_square(gradient) for gradient in gradients]
    if not sizes:
        return 0.0
    # A typical gradient of size 1 in float64 is rounded by 2e-16. Beside a gradient of size 2e-7
    # that is 1e-9, the whole tolerance. Ten times that size, since a sum rounds many times, which
    # is an estimate.
    lost = torch.finfo(exact["output"].dtype).eps / FIXED_TOLERANCE[dtype]
    return 10 * lost * statistics.median(sizes)


def relative_error(got: Tensor, wanted: Tensor, whole: Tensor, floor: float = 0.0) -> float:
    """Root mean square of got - wanted, over that of the whole tensor that ``wanted`` is of.

    Shapes that differ are infinitely wrong, and so is anything but zero where all is zero,
    or, with a ``floor``, what is not small beside that.

    Parameters
    ----------
    got, wanted : Tensor
        What this rank has, and what it should have.
    whole : Tensor
        The tensor that ``wanted`` is a part of.
    floor : float
        A size below which ``whole`` is taken to be nothing but rounding.

    Returns
    -------
    float
        0 or more; infinite as said above.
    """
    if got.shape != wanted.shape:
        return math.inf
    precise = torch.promote_types(wanted.dtype, torch.float32)
    difference = root_mean_square(got.to(precise) - wanted.to(precise))
    # Over the whole tensor: a part of zeros would make any rounding infinitely wrong.
    size = max(floor, root_mean_square(whole.to(precise)))
    if difference == 0.0:
        return 0.0
    return difference / size if size else math.inf


def root_mean_square(x: Tensor) -> float:
    norm: float = torch.linalg.vector_norm(x).item()
    # An empty part, of a rank without positions, has nothing wrong with it: 0.
    return norm / max(1, x.numel()) ** 0.5
