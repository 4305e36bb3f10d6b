"""Faults that are planted on purpose: SPBENCH_FAULT=KIND@rankR:WHERE.

    slow@rank1:5%      each timed step of rank 1 takes 5 % longer
    kill@rank1:step3   rank 1 kills itself when its step 3 begins
    hang@rank0:init    rank 0 stops before it joins the others; teardown: before it leaves them

Step 0 is the gate's, 1 and 2 those of the memory pass, then come warm-up and timed steps; the one
between them and the last one look once more at what steps do.
Faults prove that spbench notices what it promises to notice. One that is not valid, or hits no rank
that is timed, would prove nothing, unnoticed: it is refused before anything starts, without torch.
"""

import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar, final

from spbench.errors import Failure
from spbench.workload.case import Case, Cell

VARIABLE = "SPBENCH_FAULT"
SLOW = "slow"
CORRUPT = "corrupt"
"""Makes numbers wrong: only in step 0, which is compared with one device."""
KINDS = (SLOW, "oom", "raise", "exit", "kill", "hang", CORRUPT)
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
        if kind == CORRUPT and what != "step0":
            raise _bad(text, f"says {what!r}, but numbers are compared in step0 alone")
        return cls(text=text, kind=kind, rank=int(rank), place=what)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self | None:
        """The fault that the environment asks for, if any."""
        text = environ.get(VARIABLE, "")
        return cls.parse(text) if text else None

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: self.text}

    def strike(self, rank: int, place: str) -> None:
        """Does what is planted in this rank and place."""
        if (rank, place) != (self.rank, self.place):
            return
        match self.kind:
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
            case "hang":
                while True:
                    time.sleep(60)

    def tampered(self, rank: int, output: Numbers) -> Numbers:
        """The rank's output of the compared step: a tensor, or whatever can be doubled."""
        if rank != self.rank or self.kind != CORRUPT:
            return output
        return output * 2.0  # type: ignore[operator,return-value]

    def slowed(
        self,
        rank: int,
        step: Callable[[], None],
        synchronise: Callable[[], None],
        now_s: Callable[[], float] = time.perf_counter,
    ) -> Callable[[], None]:
        """The step as the rank runs it under the clock.

        Parameters
        ----------
        rank:
            The rank that asks; another than the planted one gets its step back.
        step:
            One step.
        synchronise:
            Waits for the rank's device.
        now_s:
            The clock, in seconds.

        The time is spent awake, as slower code would spend it. A rank that slept through it left
        its core to the others: on 2 shared cores their steps became 2.9 % shorter.
        """
        if rank != self.rank or self.kind != SLOW:
            return step

        def slow() -> None:
            start = now_s()
            step()
            synchronise()
            # A step of 100 ms at 5 %: awake until 105 ms from its start.
            end = start + (now_s() - start) * (1 + self.share)
            while now_s() < end:
                pass

        return slow


def _bad(text: str, why: str) -> ValueError:
    return ValueError(f"{VARIABLE}={text!r} {why}; {WORKS} would work")


def planted_fault() -> Fault | None:
    """The fault that the environment asks for. Raises Failure if it is not valid."""
    try:
        return Fault.of(os.environ)
    except ValueError as error:
        raise Failure(str(error)) from None


def check_hits(fault: Fault, cases: Sequence[Case]) -> None:
    """Raises Failure for a fault in a rank, or in a step, that none of these cases has."""
    planted = f"{VARIABLE}={fault.text!r}"
    if not cases:
        raise Failure(f"{planted}: no case can run, so it hits nobody; leave it out")
    # A share is rank 0 alone, whatever group it claims.
    most = max(1 if case.kind == "one_gpu_share" else case.ranks for case in cases)
    if fault.rank >= most:
        others = "rank0" if most == 1 else f"rank0 to rank{most - 1}"
        why = f"names rank {fault.rank}, which no case has; {others} would work"
        raise Failure(f"{planted} {why}")
    steps = max(case.budget.max_steps for case in cases)
    # Steps are numbered from 0: of 20 steps step19 is the last.
    if fault.place.startswith("step") and int(fault.place[4:]) >= steps:
        why = f"names {fault.place}, and no case has more than {steps} steps"
        raise Failure(f"{planted} {why}; step0 to step{steps - 1} can be named")


def announce_fault(fault: Fault | None, cells: Iterable[Cell]) -> None:
    """Says on stderr which fault is planted. Raises Failure if no cell that can run has it."""
    if fault is not None:
        import click  # which no rank needs

        check_hits(fault, [cell.case for cell in cells if cell.why_not is None])
        click.echo(f"{VARIABLE}={fault.text}: a fault is planted, and rows say so", err=True)


def refuse_fault(command: str) -> None:
    """Raises Failure for any fault, in a command whose ranks it would strike unseen: only rows of
    run and check say that one is planted."""
    fault = planted_fault()
    if fault is not None:
        raise Failure(
            f"{VARIABLE}={fault.text!r} is planted in what run and check measure, and {command} "
            f"has no row that says so; leave it out, or use run ({WORKS})"
        )
