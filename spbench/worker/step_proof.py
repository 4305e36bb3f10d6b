"""Proves that what is timed is what was proved: the same step at its full size, from end to end.

    first step      sends nothing past comm/; its numbers are one device's, where that could run
                    all
    the same again  in 16 bits alone: says how far two steps are apart by the order of sums
    second step     the same on other inputs, in the memory pass; its bytes and calls are counted
    each block      runs on the other inputs than the block before; sends and calls as often as
                    the counted step, and the optimizer counts as many updates as there were
                    steps; its last step gives the first numbers on these inputs, and gradients
                    that are finite
    one step before the first block, on inputs that were never there
                    says how much a step computes
    one step after the last block, on its inputs
                    gives its numbers, sends nothing past comm/, computes as much
    silent steps    send, call and update as real ones, and compute as much; write no more, but for
                    what stands in for what arrives. If they do less or more, only the time of
                    computation is blank: nothing else depends on it

Of a captured step (``worker/step_graph.py``) blocks are replays, and all other steps run as they
are written. Numbers, gradients and updates are those of the replays. Their bytes and calls are what
was counted as the step was captured: no code that would count runs in a replay, and what no
transport was asked for is seen in the steps before and after alone, as is how much is computed.

So what is kept from an earlier step, or done in some steps alone, shows. Numbers are compared by
their fingerprints. Nothing of this is under the clock or in the memory pass. What is wrong is
noted, and told when all ranks can agree on it: a rank that left alone would leave the others
waiting.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, final

import torch
from torch import Tensor

from spbench.comm.compiler import graphs_run
from spbench.comm.group import Group, ShareOfGroup
from spbench.comm.transport import Transports
from spbench.model.inputs import Inputs
from spbench.results.agreement import (
    FIXED_TOLERANCE,
    OWN_ERROR_FACTOR,
    TOLERANCE,
    Difference,
    Fingerprint,
    Repeats,
    farthest,
    noise_floor,
)
from spbench.text import counted
from spbench.worker.fingerprint import fingerprint, whole_fingerprint
from spbench.worker.observer import Observer
from spbench.worker.reference import Reference
from spbench.worker.step import Step, updates_taken
from spbench.worker.tensor_errors import FLIPPED, UPDATED, relative_error
from spbench.worker.witness import NUMBERS_BYTES, Witness, counted_calls, why_silent_differs
from spbench.workload.mesh import ALL
from spbench.workload.traffic import Count, Kind

ESTIMATE = 2.0
"""How much further a fingerprint may be than the gate's error, of which it is an estimate."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """One device's steps of the whole workload on both inputs: their fingerprints, and how far
    others may be."""

    fingerprint: Fingerprint
    flipped: Fingerprint
    tolerances: dict[str, float]
    floor: float

    def farthest(self, got: Fingerprint, *, is_flipped: bool = False) -> Difference:
        right = self.flipped if is_flipped else self.fingerprint
        return farthest(got, right, self.tolerances, self.floor)

    @classmethod
    def of(cls, reference: Reference) -> "Expected":
        own, dtype = reference.own, reference.workload.dtype
        # Of one step on the first inputs: what comes of others has a fingerprint of its own.
        exact = {n: x for n, x in reference.exact.items() if not n.endswith((UPDATED, FLIPPED))}
        whole = whole_fingerprint(exact, reference.grids)
        both = {"fingerprint": whole, "flipped": reference.flipped}
        if own is None:
            fixed = dict.fromkeys(exact, TOLERANCE[dtype])
            return cls(tolerances=fixed, floor=noise_floor(whole, dtype), **both)
        errors = {name: relative_error(own[name], exact[name], exact[name]) for name in exact}
        typical = statistics.median(errors.values())
        rounding = {
            name: ESTIMATE * OWN_ERROR_FACTOR * max(typical, error)
            for name, error in errors.items()
        }
        return cls(tolerances=rounding, floor=0.0, **both)


@final
class StepProof:
    """What one rank sees of the timed step outside the clock."""

    def __init__(
        self,
        step: Step,
        inputs: Inputs,
        cotangent: Tensor,
        group: Group,
        observer: Observer,
        expected: Expected | None,
    ) -> None:
        self._step, self._inputs, self._cotangent = step, inputs, cotangent
        self.group, self._observer, self._expected = group, observer, expected
        self._is_share = isinstance(group, ShareOfGroup)
        self._is_flipped = False
        self._output: Tensor | None = None
        self._firsts: dict[bool, Fingerprint] = {}
        """The first numbers, by whether they are those of the flipped inputs."""
        self._repeats: Repeats | None = None
        """How near steps on the same inputs are, where a fixed tolerance would be a wide one."""
        self._farthest: dict[str, Difference] = {}
        """By column of the row."""
        self._looked_into: dict[str, Any] = {}
        """Further columns: operators that nothing can look into, and graphs that a step runs."""
        self._written_bytes = self._computed_bytes = 0
        self._silent_differs = (0.0, 0.0)
        self._counts = StepCounts(step)
        self.first_witness: Witness | None = None
        """What saw the first step: all others send as it counted, where it counts."""
        self._wrong: list[str] = []

    def forget(self) -> None:
        """A step begins: it is not to hold the output of the one before."""
        self._output = None

    def see(self, output: Tensor) -> None:
        """Takes each step's output."""
        self._output = output

    def flip(self) -> None:
        """The steps that follow run on the other inputs."""
        self._step.flip(self._inputs, self._cotangent)
        self._is_flipped = not self._is_flipped

    def first(self, step: Callable[[], object]) -> dict[str, Any] | None:
        """Runs the first step. Fields of a wrong rank's Sample, or None; all ranks must call."""
        self._counts.begin(self._step.transports)
        witness = self._witnessed(step)
        self.first_witness = witness
        self._looked_into |= {"unseen_operators": counted_calls(witness.unseen)}
        return self._first_numbers() or self._repeat()

    def second(self) -> dict[str, Any] | None:
        """Behind the second step, which was counted, on the other inputs: as ``first``."""
        self._counts.learn()
        return self._first_numbers()

    def _first_numbers(self) -> dict[str, Any] | None:
        """Notes what is wrong with the first numbers on these inputs."""
        if self._is_share:
            return self._if_any_wrong()  # what other ranks would have sent is random
        first = self._firsts[self._is_flipped] = self._fingerprint()
        if self._expected is not None:
            far = self._expected.farthest(first, is_flipped=self._is_flipped)
            self._hold("agreement_error", far, "in the first step differs from one device")
        return self._if_any_wrong()

    def _repeat(self) -> dict[str, Any] | None:
        """In 16 bits, where a step may be far from one device's by rounding alone: takes the first
        one once more, so as to know how far steps of the same rounding are apart. As ``first``."""
        dtype = self._step.workload.dtype
        if self._is_share or dtype in FIXED_TOLERANCE:
            return None
        self.forget()
        self._observer.heartbeat.working()
        with self._observer.times.step(self.group.device):  # it has no number: planted faults
            self.see(self._step.uncounted(self._inputs, self._cotangent))  # do not strike in it
        again, first = self._fingerprint(), self._firsts[self._is_flipped]
        if self._expected is not None:
            far = self._expected.farthest(again)
            self._hold("agreement_error", far, "in a repeated first step differs from one device")
        self._hold_repeat(again, "in a repetition")
        self._repeats = Repeats.of(first, again, dtype)
        return self._if_any_wrong()

    def settle(self, step: Callable[[], object]) -> None:
        """Runs a step as the timed ones are, on inputs that were never there: whatever a step may
        set up is there by now, and nothing can be looked up. So much work every step has."""
        self._negate_inputs()
        witness = self._witnessed(step)
        self._negate_inputs()
        self._written_bytes = witness.written_bytes
        self._computed_bytes = witness.computed_bytes

    @contextmanager
    def silent_step(self) -> Iterator[None]:
        """Sees what a silent step inside writes."""
        with Witness(self._step.silent) as witness:
            yield
        more = witness.written_bytes - self._written_bytes
        less = self._computed_bytes - witness.computed_bytes
        self._silent_differs = float(more), float(less)

    def why_silent_differs(self) -> str:
        """The reason why a silent step is not the same work as a real one; blank if it is."""
        more, less = self._silent_differs
        unsent = float(sum(self._step.silent.sent().values()))
        return why_silent_differs(*self.group.largest([more, unsent, less, -less]))

    def begin(self) -> None:
        """A block of timed steps is about to begin: on the other inputs, and counted."""
        self.flip()
        self._counts.begin(self._step.transports)

    def look(self, steps: int) -> None:
        """Looks at what a block of ``steps`` timed steps has left behind."""
        self._note(self._counts.why_differs(self._step.transports, steps, "timed step"))
        self._look_at_gradients()
        self._compare_with_first("in timed steps")

    def begin_silent(self) -> None:
        """A block of silent steps is about to begin."""
        self._counts.begin(self._step.silent)

    def why_silent_block_differs(self, steps: int) -> str:
        """What a block of silent steps did else than real ones do; blank if nothing."""
        return self._counts.why_differs(self._step.silent, steps, "silent step") or ""

    def _look_at_gradients(self) -> None:
        """Notes a gradient that is not finite: NaN changes what products cost, and steps that give
        it are not those that were proved."""
        gradients = self._step.tensors(self._inputs, None)
        norms = [
            torch.linalg.vector_norm(x, dtype=torch.promote_types(x.dtype, torch.float32))
            for x in gradients.values()
        ]
        # One transfer from the device for all tensors, and the name is looked for only if it is bad
        # news.
        if not norms or (finite := torch.stack(norms).isfinite()).all():
            return
        name = next(n for n, good in zip(gradients, finite.tolist(), strict=True) if not good)
        self._note(f"{name} is not finite in the timed steps")

    def last(self, step: Callable[[], object]) -> dict[str, Any]:
        """Runs one more step as the timed ones were. Fields of the rank's Sample."""
        self.group.barrier()
        with graphs_run() as compiled:
            witness = self._witnessed(step)
        self._looked_into |= {"compiled": compiled.graphs}
        self._compare_with_first("after the last timed step")
        # A step that looks something up computes less than one on inputs that were never there.
        if self._computed_bytes - witness.computed_bytes > NUMBERS_BYTES:
            self._note(
                f"a step after the last timed one computes {witness.computed_bytes:,} bytes, and "
                f"{self._computed_bytes:,} on new inputs: something is kept from earlier steps"
            )
        if (wrong := self._if_any_wrong()) is not None:
            return wrong
        firsts = [
            {_on(is_flipped, name): numbers for name, numbers in first.items()}
            for is_flipped, first in self._firsts.items()
        ]
        both = {name: numbers for first in firsts for name, numbers in first.items()}
        return self._fields | ({"fingerprint": both} if both and self.group.rank == 0 else {})

    @torch.no_grad()
    def _negate_inputs(self) -> None:
        for x in self._inputs.tensors:
            x.neg_()

    def _compare_with_first(self, when: str) -> None:
        """Notes numbers that are not the first ones on these inputs."""
        if self._is_share:
            return
        self._hold_repeat(self._fingerprint(), when)

    def _hold_repeat(self, got: Fingerprint, when: str) -> None:
        """Holds a step's numbers against the first ones on these inputs."""
        first, dtype = self._firsts[self._is_flipped], self._step.workload.dtype
        tolerances = dict.fromkeys(first, TOLERANCE[dtype])
        far = farthest(got, first, tolerances, noise_floor(first, dtype))
        if self._repeats is not None:
            near = self._repeats.farthest(got, first)
            far = max(far, near, key=lambda difference: difference.excess)
        self._hold("repeat_error", far, f"{when} differs from the first step")

    def _hold(self, column: str, far: Difference, differs: str) -> None:
        """Keeps the farthest difference of each column, and notes one that is too far."""
        far = replace(far, name=_on(self._is_flipped, far.name))
        before = self._farthest.get(column)
        if before is None or far.excess > before.excess:
            self._farthest[column] = far
        self._note(why_too_far(far, differs))

    def _witnessed(self, step: Callable[[], object]) -> Witness:
        """Runs a step; nothing in it may pass comm/ by."""
        taken = self._observer.times.step(self.group.device)
        with self._step.witness() as witness, taken:
            step()
        self._note(witness.why_wrong())
        if self.first_witness is not None:
            self._note(self.first_witness.differs(witness))
        return witness

    def _fingerprint(self) -> Fingerprint:
        tensors = self._step.tensors(self._inputs, self._output)
        self._output = None
        step, group = self._step, self.group
        return fingerprint(tensors, step.cuts, group.rank, group.gather, step.grids)

    def _note(self, wrong: str | None) -> None:
        if wrong is not None:
            self._wrong.append(wrong)

    @property
    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {name: far.relative for name, far in self._farthest.items()}
        fields |= self._looked_into
        return fields | ({"agreed_with": "one device"} if "agreement_error" in fields else {})

    def _if_any_wrong(self) -> dict[str, Any] | None:
        (any_wrong,) = self.group.largest([float(bool(self._wrong))])
        if not any_wrong:
            return None
        reason, *_ = [*self._wrong, "another rank's result is wrong"]
        failed_at_s = time.time() if self._wrong else None
        wrong = {"status": "wrong_result", "reason": reason, "failed_at_s": failed_at_s}
        return self._fields | wrong


def _on(is_flipped: bool, name: str) -> str:
    """What a tensor of a step on these inputs is called."""
    return f"{name} {FLIPPED}" if is_flipped else name


def why_too_far(far: Difference, differs: str) -> str | None:
    """A sentence that names the tensor; None if it is near enough."""
    return None if far.excess <= 1 else far.in_words(differs)


@final
class StepCounts:
    """One counted step of a rank, and how blocks of steps compare with it.

    What steps do without being looked at: the bytes and calls of each collective, and the updates
    of the optimizer. A transport counts always, so blocks of steps are held against one counted
    step without any instrument in them.
    """

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
        # The weight that had another number of updates: the one of fewest, or the one of most.
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
