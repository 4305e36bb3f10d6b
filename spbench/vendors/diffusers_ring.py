"""diffusers' own ring: its context parallel with ``ring_degree=N``.

    out            all K and V by one all-gather, merged block by block    2 f K sent
    dQ, dK, dV     gathered once more; gradients by N permutations         2 f K and 2 w K

f = (N - 1) / N, K the bytes of all keys, w = 4 bytes over those of the dtype. As shipped (0.42.1)
gradients go one rank on where the next block comes from there: from 3 ranks on dK and dV are
wrong. ``patched`` sends them one rank back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from spbench.vendors.diffusers_rings import OfDiffusers


@final
@dataclass(frozen=True, kw_only=True)
class DiffusersRing(OfDiffusers):
    """``patched``: with gradients that go where the blocks go."""
