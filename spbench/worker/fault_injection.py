"""Faults that are planted on purpose: SPBENCH_FAULT=KIND@rankR:WHERE.

    slow@rank1:5%      each timed step of rank 1 takes 5 % longer
    kill@rank1:step3   rank 1 kills itself when its step 3 begins
    hang@rank0:init    rank 0 stops before it joins the others; teardown: before it leaves them

Step 0 is the gate's, 1 and 2 those of the memory pass, then come warm-up and timed steps; the last
one looks once more at the numbers.
Faults prove that spbench notices what it promises to notice. This file does not load torch, so
that the command line can refuse a fault that it does not understand before anything starts.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self, TypeVar, final

VARIABLE = "SPBENCH_FAULT"
SLOW = "slow"
WRONG = ("corrupt", "nan")
"""Kinds that make numbers wrong: only in step 0, which is compared with one device."""
KINDS = (SLOW, "oom", "raise", "exit", "kill", "abort", "segv", "hang", "deaf", "mismatch", *WRONG)
"""deaf hangs and ignores SIGTERM; mismatch calls a collective that the others do not."""
WORKS = f"{VARIABLE}=slow@rank1:5% or kill@rank1:step3"
EXIT_CODE = 7
PLANTED = "planted by " + VARIABLE

Numbers = TypeVar("Numbers")


@final
@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is planted, and in which rank."""

    text: str
    kind: str
    rank: int
    share: float = 0.0
    """How much longer each timed step of a slow rank takes, as a part of itself."""
    place: str = ""
    """Where the other kinds strike: init, teardown or stepS."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError with the value and what would work."""
        parts = re.fullmatch(r"(\w+)@rank(\d{1,9}):(\S+)", text, re.ASCII)
        if parts is None:
            raise _bad(text, "is not KIND@rankR:WHERE")
        kind, rank, what = parts.groups()
        if kind not in KINDS:
            raise _bad(text, f"has no kind of fault, {kind!r}; there is {', '.join(KINDS)}")
        if kind == SLOW:
            percent = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)%", what, re.ASCII)
            if percent is None:
                raise _bad(text, f"says {what!r}, which is not a percentage")
            return cls(text=text, kind=kind, rank=int(rank), share=float(percent[1]) / 100)
        if not re.fullmatch(r"init|teardown|step\d{1,9}", what, re.ASCII):
            raise _bad(text, f"says {what!r}, which is neither init, teardown nor stepS")
        if kind in WRONG and what != "step0":
            raise _bad(text, f"says {what!r}, but numbers are compared in step0 alone")
        if kind == "mismatch" and not what.startswith("step"):
            raise _bad(text, f"says {what!r}, but collectives are called in steps alone")
        return cls(text=text, kind=kind, rank=int(rank), place=what)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self | None:
        """The fault that the environment asks for, if any."""
        text = environ.get(VARIABLE, "")
        return cls.parse(text) if text else None

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: self.text}

    def strike(self, rank: int, place: str, extra: Callable[[], object] = lambda: None) -> None:
        """Does what is planted in this rank and place. ``extra``: a collective of its own."""
        if (rank, place) != (self.rank, self.place):
            return
        match self.kind:
            case "mismatch":
                extra()
            case "oom":
                import torch

                message = f"CUDA out of memory. Tried to allocate 2.00 GiB. ({PLANTED})"
                raise torch.OutOfMemoryError(message)
            case "raise":
                raise RuntimeError(PLANTED)
            case "exit":
                os._exit(EXIT_CODE)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "abort":
                os.abort()
            case "segv":
                ctypes.string_at(0)
            case "hang" | "deaf":
                if self.kind == "deaf":
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                while True:
                    time.sleep(60)

    def tampered(self, rank: int, output: Numbers) -> Numbers:
        """The rank's output of the compared step: a tensor, or whatever can be multiplied."""
        if rank != self.rank or self.kind not in WRONG:
            return output
        return output * (float("nan") if self.kind == "nan" else 2.0)  # type: ignore[operator,return-value]

    def slowed(
        self,
        rank: int,
        step: Callable[[], None],
        synchronise: Callable[[], None],
        now_s: Callable[[], float] = time.perf_counter,
    ) -> Callable[[], None]:
        """``step`` as the rank runs it under the clock; ``synchronise`` waits for its device.

        The time is spent awake, as slower code would spend it. A rank that slept through it left
        its core to the others: on 2 shared cores their steps became 2.9 % shorter.
        """
        if rank != self.rank or self.kind != SLOW:
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
