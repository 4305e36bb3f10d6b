"""How long things may take before somebody steps in."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """Of each launch, of its silence, and of all launches together."""

    launch_s: float = 600.0
    hang_s: float = 180.0
    """Without a sign of life of any rank."""
    sweep_s: float = math.inf
