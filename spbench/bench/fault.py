"""Faults that are planted on purpose: SPBENCH_FAULT=KIND@rankR:WHAT.

    slow@rank1:5%    each step of rank 1 takes 5 % longer

They prove that what is to be noticed is noticed. No torch here, so that the command line can
refuse a fault that it does not understand before anything starts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self, final

VARIABLE = "SPBENCH_FAULT"
KINDS = ("slow",)
WORKS = f"{VARIABLE}=slow@rank1:5%"


@final
@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is planted, and in which rank."""

    text: str
    kind: str
    rank: int
    share: float
    """How much longer each step takes, as a part of itself."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError with the value and what would work."""
        found = re.fullmatch(r"(\w+)@rank(\d{1,9}):(\S+)", text, re.ASCII)
        if found is None:
            raise _bad(text, "is not KIND@rankR:WHAT")
        kind, rank, what = found.groups()
        if kind not in KINDS:
            raise _bad(text, f"has no kind of fault, {kind!r}; there is {', '.join(KINDS)}")
        percent = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)%", what, re.ASCII)
        if percent is None:
            raise _bad(text, f"says {what!r}, which is no percentage")
        return cls(text=text, kind=kind, rank=int(rank), share=float(percent[1]) / 100)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self | None:
        """What the environment asks for, if anything."""
        text = environ.get(VARIABLE, "")
        return cls.parse(text) if text else None

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: self.text}

    def planted(
        self,
        step: Callable[[], None],
        rank: int,
        synchronise: Callable[[], None],
        now_s: Callable[[], float] = time.perf_counter,
    ) -> Callable[[], None]:
        """``step`` as ``rank`` runs it: longer, if it is the one.

        The time is spent awake, as slower code would spend it. A rank that slept through it left
        its core to the others: on 2 shared cores their steps became 2.9 % shorter.
        """
        if rank != self.rank:
            return step

        def slow() -> None:
            start = now_s()
            step()
            synchronise()
            end = start + (now_s() - start) * (1 + self.share)
            while now_s() < end:
                pass

        return slow


def _bad(text: str, why: str) -> ValueError:
    return ValueError(f"{VARIABLE}={text!r} {why}; {WORKS} would work")
