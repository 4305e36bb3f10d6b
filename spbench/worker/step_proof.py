"""Proves that what is timed is what was proved: the same step at its full size, from end to end.

    first step      sends nothing past comm/; its numbers are one device's, where that could run all
    silent step     writes no more than a real one, but for what stands in for what arrives; if it
                    does more, only the time of computation is blank: nothing else depends on it
    each block      leaves no gradient that is not finite
    one step after the last block, run as the timed ones are
                    gives the first step's numbers

Numbers are compared by their fingerprints. Nothing of this is under the clock or in the memory
pass. What is wrong is noted, and told when all ranks can agree on it: a rank that left alone would
leave the others waiting.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from spbench.comm.compiler import graphs_run
from spbench.comm.group import Group, ShareOfGroup
from spbench.model.inputs import Inputs
from spbench.results.agreement import TOLERANCE, Difference, Fingerprint, farthest, noise_floor
from spbench.worker.comparison import OWN_ERROR_FACTOR, UPDATED, relative_error
from spbench.worker.fingerprint import fingerprint
from spbench.worker.observer import Observer
from spbench.worker.reference import Reference
from spbench.worker.step import Step
from spbench.worker.witness import Witness, counted_calls, why_silent_differs

ESTIMATE = 2.0
"""How much further a fingerprint may be than the gate's error, of which it is an estimate."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """One device's step of the whole workload: its fingerprint, and how far others may be."""

    fingerprint: Fingerprint
    tolerances: dict[str, float]
    floor: float

    def farthest(self, got: Fingerprint) -> Difference:
        return farthest(got, self.fingerprint, self.tolerances, self.floor)

    @classmethod
    def of(cls, reference: Reference) -> "Expected":
        own, dtype = reference.own, reference.workload.dtype
        exact = {n: x for n, x in reference.exact.items() if not n.endswith(UPDATED)}
        whole = fingerprint(exact, dict.fromkeys(exact, ()), 0, lambda numbers: [list(numbers)])
        if own is None:
            fixed = dict.fromkeys(exact, TOLERANCE[dtype])
            return cls(fingerprint=whole, tolerances=fixed, floor=noise_floor(whole, dtype))
        errors = {name: relative_error(own[name], exact[name], exact[name]) for name in exact}
        typical = statistics.median(errors.values())
        rounding = {
            name: ESTIMATE * OWN_ERROR_FACTOR * max(typical, error)
            for name, error in errors.items()
        }
        return cls(fingerprint=whole, tolerances=rounding, floor=0.0)


@final
class StepProof:
    """What one rank sees of the timed step outside the clock."""

    def __init__(
        self,
        step: Step,
        inputs: Inputs,
        group: Group,
        observer: Observer,
        expected: Expected | None,
    ) -> None:
        self._step, self._inputs, self._group = step, inputs, group
        self._observer, self._expected = observer, expected
        self._is_share = isinstance(group, ShareOfGroup)
        self._output: Tensor | None = None
        self._is_looking = False
        self._first: Fingerprint = {}
        self._written_bytes = self._too_many_bytes = 0.0
        self._wrong: list[str] = []
        self._fields: dict[str, Any] = {}

    def see(self, output: Tensor) -> None:
        """Takes each step's output, and keeps that of a step that it looks at."""
        if self._is_looking:
            self._output = output

    def first(self, step: Callable[[], object]) -> dict[str, Any] | None:
        """Runs the first step. Fields of a wrong rank's Sample, or None; all ranks must call."""
        with Witness(self._step.transports) as witness:
            self._run(step)
        self._written_bytes = witness.written_bytes
        self._fields |= {"unseen_operators": counted_calls(witness.unseen)}
        self._note(witness.why_wrong())
        if self._is_share:
            self._output = None  # what other ranks would have sent is random
            return self._if_any_wrong()
        self._first = self._fingerprint()
        if self._expected is not None:
            far = self._expected.farthest(self._first)
            self._fields |= {"agreement_error": far.relative, "agreed_with": "one device"}
            self._note(why_too_far(far, "in the first step differs from one device"))
        return self._if_any_wrong()

    @contextmanager
    def silent_step(self) -> Iterator[None]:
        """Sees what a silent step inside writes."""
        self._step.silent.reset()
        with Witness(self._step.transports) as witness:
            yield
        self._too_many_bytes = witness.written_bytes - self._written_bytes

    def why_silent_differs(self) -> str:
        """The reason why a silent step is not the same work as a real one; blank if it is."""
        sent = float(sum(self._step.silent.sent().values()))
        return why_silent_differs(*self._group.largest([self._too_many_bytes, sent]))

    def look_at_gradients(self) -> None:
        """Notes a gradient that is not finite: NaN changes what products cost, and steps that give
        it are not those that were proved."""
        gradients = self._step.tensors(self._inputs, None)
        norms = [
            torch.linalg.vector_norm(x, dtype=torch.promote_types(x.dtype, torch.float32))
            for x in gradients.values()
        ]
        if not norms or (finite := torch.stack(norms).isfinite()).all():
            return
        name = next(n for n, good in zip(gradients, finite.tolist(), strict=True) if not good)
        self._note(f"{name} is not finite in the timed steps")

    def last(self, step: Callable[[], object]) -> dict[str, Any]:
        """Runs one more step as the timed ones were. Fields of the rank's Sample."""
        if not self._is_share:
            self._group.barrier()
            with graphs_run() as compiled, Witness(self._step.transports) as witness:
                self._run(step)
            self._fields |= {"compiled": compiled.graphs}
            self._note(witness.why_wrong())
            last = self._fingerprint()
            dtype = self._step.workload.dtype
            tolerances = dict.fromkeys(last, TOLERANCE[dtype])
            far = farthest(last, self._first, tolerances, noise_floor(self._first, dtype))
            self._fields |= {"repeat_error": far.relative}
            self._note(why_too_far(far, "after the last timed step differs from the first step"))
        if (wrong := self._if_any_wrong()) is not None:
            return wrong
        return self._fields | ({"fingerprint": self._first} if self._group.rank == 0 else {})

    def _run(self, step: Callable[[], object]) -> None:
        self._is_looking = True
        with self._observer.times.step(self._group.device):
            step()
        self._is_looking = False

    def _fingerprint(self) -> Fingerprint:
        tensors = self._step.tensors(self._inputs, self._output)
        self._output = None
        return fingerprint(tensors, self._step.cuts, self._group.rank, self._group.gather)

    def _note(self, wrong: str | None) -> None:
        if wrong is not None:
            self._wrong.append(wrong)

    def _if_any_wrong(self) -> dict[str, Any] | None:
        (any_wrong,) = self._group.largest([float(bool(self._wrong))])
        if not any_wrong:
            return None
        reason, *_ = [*self._wrong, "another rank's result is wrong"]
        failed_at_s = time.time() if self._wrong else None
        wrong = {"status": "wrong_result", "reason": reason, "failed_at_s": failed_at_s}
        return self._fields | wrong


def why_too_far(far: Difference, differs: str) -> str | None:
    """A sentence that names the tensor; None if it is near enough."""
    return None if far.excess <= 1 else far.in_words(differs)
