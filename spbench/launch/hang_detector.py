"""Whether a launch still moves: the parent's view of its ranks' pulses."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

from spbench.results.heartbeat import RankPosition, read_heartbeat
from spbench.text import counted

LOOK_S = 0.2
NAMED = 8
STARTING_S = 60.0


@final
class HangDetector:
    """Looks at most every 0.2 s; ``still_s`` counts from the last change that was seen."""

    def __init__(
        self,
        folder: Path,
        ranks: Sequence[int],
        now_s: Callable[[], float] = time.monotonic,
        *,
        from_start: bool = False,
    ) -> None:
        """``from_start``: no pulse at all is silence too, after a minute in which nodes meet. Else
        it is only known that the ranks do not tell: another checkout's may not."""
        self._folder, self._ranks, self._now_s = folder, ranks, now_s
        self._from_start = from_start
        self._looked_s = self._changed_s = now_s()
        self.places: dict[int, RankPosition | None] = dict.fromkeys(ranks)

    def still_s(self) -> float:
        """Seconds since any rank was seen to move."""
        now = self._now_s()
        if now - self._looked_s >= LOOK_S:
            self._looked_s = now
            places = {rank: read_heartbeat(self._folder, rank) for rank in self._ranks}
            if places != self.places:
                self.places, self._changed_s = places, now
        still_s = now - self._changed_s
        if any(self.places.values()):
            return still_s
        return max(0.0, still_s - STARTING_S) if self._from_start else 0.0


def least_far(places: dict[int, RankPosition | None]) -> tuple[list[int], str]:
    """The ranks that got least far, and where they and the others stand, in a sentence.

    A rank that has ended hangs no longer; ranks that have not begun are the least far of all.
    """
    left = {rank: place for rank, place in places.items() if place is None or not place.ended}
    if not left:
        return [], "every rank had ended"
    least = min(map(_progress, left.values()))
    behind = [rank for rank, place in left.items() if _progress(place) == least]
    where = left[behind[0]]
    said = f"{_ranks(behind)} stopped in {where or 'its start'}"
    ahead = [rank for rank in left if rank not in behind]
    if ahead:
        furthest = max((left[rank] for rank in ahead), key=_progress)
        said += f", the others in {furthest}"
    elif len(behind) > 1 and where is not None and where.transfers:
        said += ": their collectives do not match, or what one sends does not arrive"
    return behind, said


def _progress(place: RankPosition | None) -> tuple[int, int, int]:
    return (-1, 0, 0) if place is None else place.progress


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1 or len(ranks) > NAMED:
        return f"rank {ranks[0]}" if len(ranks) == 1 else counted(len(ranks), "rank")
    *first, last = map(str, ranks)
    return f"ranks {', '.join(first)} and {last}"
