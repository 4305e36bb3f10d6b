"""Whether a launch makes progress: the parent's view of its ranks' heartbeats."""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

from spbench.results.heartbeat import RankPosition, read_heartbeat
from spbench.text import counted, listed

LOOK_S = 0.2
NAMED = 8
"""Up to so many ranks are named one by one."""
STARTING_S = 60.0
"""How long nodes may take to meet."""


@final
class HangDetector:
    """Reads heartbeats at most every 0.2 s; ``still_s`` counts from the last change it saw."""

    def __init__(
        self,
        folder: Path,
        ranks: Sequence[int],
        now_s: Callable[[], float] = time.monotonic,
        *,
        from_start: bool = False,
    ) -> None:
        """``from_start``: a launch without any heartbeat stands still after a minute. Else it is
        taken to make progress: the ranks of another commit may write none."""
        self._folder, self._ranks, self._now_s = folder, ranks, now_s
        self._starting_s = STARTING_S if from_start else math.inf
        self._looked_s = self._changed_s = now_s()
        self._positions: dict[int, RankPosition | None] = dict.fromkeys(ranks)

    def still_s(self) -> float:
        """Seconds since any rank was seen to make progress."""
        now_s = self._now_s()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            positions = {rank: read_heartbeat(self._folder, rank) for rank in self._ranks}
            if positions != self._positions:
                self._positions, self._changed_s = positions, now_s
        still_s = now_s - self._changed_s
        return still_s if any(self._positions.values()) else max(0.0, still_s - self._starting_s)


def least_far(positions: dict[int, RankPosition | None]) -> tuple[list[int], str]:
    """The ranks that got least far, and where they and the others stand, in a sentence.

    A rank that has ended hangs no longer; ranks that have not begun are the least far of all.
    """
    left = {rank: at for rank, at in positions.items() if at is None or not at.ended}
    if not left:
        return [], "every rank had ended"
    least = min(map(_progress, left.values()))
    behind = [rank for rank, at in left.items() if _progress(at) == least]
    where = left[behind[0]]
    sentence = f"{_names(behind)} stopped in {where or 'its start'}"
    if len(behind) < len(left):
        sentence += f", the others in {max(left.values(), key=_progress)}"
    elif len(behind) > 1 and where is not None and where.transfers:
        sentence += ": their collectives do not match, or what one sends does not arrive"
    return behind, sentence


def _progress(position: RankPosition | None) -> tuple[int, int, int]:
    return (-1, 0, 0) if position is None else position.progress


def _names(ranks: Sequence[int]) -> str:
    if len(ranks) > NAMED:
        return counted(len(ranks), "rank")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listed([*map(str, ranks)])}"
