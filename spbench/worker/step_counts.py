"""What steps do without being looked at: the bytes and calls of each collective, and the updates of
the optimizer. A transport counts always, so blocks of steps are held against one counted step
without any instrument in them.
"""

from fractions import Fraction
from typing import final

from spbench.comm.transport import Transports
from spbench.text import counted
from spbench.worker.optimizer import updates_taken
from spbench.worker.step import Step
from spbench.workload.mesh import ALL
from spbench.workload.traffic import Count, Kind


@final
class StepCounts:
    """One counted step of a rank, and how blocks of steps compare with it."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._once: Count = {}
        self._calls_once: dict[Kind, int] = {}
        self._updates_before = 0

    def learn(self) -> None:
        """Takes what the real transports have counted since their reset for that of one step."""
        transports = self._step.transports
        self._once, self._calls_once = transports.sent(), transports.calls()

    def begin(self, transports: Transports) -> None:
        """A block of steps is about to begin, which send by these transports."""
        transports.reset()
        self._updates_before, _ = self._updates()

    def why_differs(self, transports: Transports, steps: int, kind: str) -> str | None:
        """What ``steps`` steps since ``begin`` did else than the counted one, in a sentence; None
        if nothing. ``kind`` names the steps, as "timed step"."""
        which = counted(steps, kind)
        sent, calls = transports.sent(), transports.calls()
        for key in sorted({*sent, *self._once}):
            got, right = sent.get(key, 0), steps * self._once.get(key, 0)
            if got != right:
                return f"{_where(key, 'sent')} {_bytes(got)} in {which}, not {_bytes(right)}"
        for key in sorted({*calls, *self._calls_once}):
            got, right = calls.get(key, 0), steps * self._calls_once.get(key, 0)
            if got != right:
                return f"{_where(key, 'was called')} {counted(got, 'time')} in {which}, not {right}"
        return self._why_updates_differ(steps, which)

    def _why_updates_differ(self, steps: int, which: str) -> str | None:
        if self._step.optimizer is None:
            return None
        fewest, most = self._updates()
        right = self._updates_before + steps
        if fewest == most == right:
            return None
        other = fewest if fewest != right else most
        took = counted(max(0, other - self._updates_before), "update")
        return f"AdamW took {took} of a weight in {which}, not {steps}"

    def _updates(self) -> tuple[int, int]:
        optimizer = self._step.optimizer
        return (0, 0) if optimizer is None else updates_taken(optimizer)


def _where(kind: Kind, did: str) -> str:
    phase, op, axis = kind
    return f"{op} in {phase}{f' over {axis}' if axis != ALL else ''} {did}"


def _bytes(count: int | Fraction) -> str:
    return f"{float(count):,.0f} bytes"
