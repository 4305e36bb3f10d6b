"""diffusers' own USP: its context parallel with ``ulysses_degree`` and ``ring_degree``.

    q, k, v   (b, S/N, Z, D)     --an all-to-all each-->   (b, U S/N, Z/U, D)
    out       its ring across R = N / U groups              2 (R - 1) K / N sent
    dK, dV    the same once more, and gradients             2 (R - 1) K / N and 2 R w K / N
    out       (b, U S/N, Z/U, D) --another-->               (b, S/N, Z, D)

K the bytes of all keys, w = 4 bytes over those of the dtype. Wrong as shipped from 3 groups on, and
right with ``patched``, as ``diffusers-ring`` is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from spbench.vendors.diffusers_rings import OfDiffusers
from spbench.vendors.unified import Unified


@final
@dataclass(frozen=True, kw_only=True)
class DiffusersUSP(Unified, OfDiffusers):
    """``patched``: with gradients that go where the blocks go."""
