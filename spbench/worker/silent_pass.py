"""Steps without communication, timed in turn with real ones: what computation alone takes."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import final

from spbench.comm.group import Group
from spbench.worker import memory
from spbench.worker.step import Step
from spbench.worker.step_proof import StepProof
from spbench.worker.timer import Stopwatch


@final
@dataclass(kw_only=True)
class SilentPass:
    """Steps that send nothing. When one runs out of memory on any rank, all give them up.

    Received tensors have a memory pool of their own, which the allocator may not empty for others:
    it may run out where the step itself fits. An allocator that empties its cache for a silent step
    has no room for both passes, and a timed step would be the next to ask for more.
    """

    whole: Step
    one_step: Callable[[], None]
    group: Group
    watch: Stopwatch
    proof: StepProof
    why_none: str = ""
    """Why there are no times, in a sentence; blank while there are."""

    def prove(self) -> None:
        """Runs one silent step, which must be the same work as a real one."""
        self.time(1, around=self.proof.silent_step)
        self.why_none = self.why_none or self.proof.why_silent_differs()

    def unless_given_up(self, silent_ms: list[float]) -> list[float] | None:
        """All silent times, unless the pass was given up."""
        return None if self.why_none else silent_ms or None

    def time(
        self,
        steps: int,
        look: Callable[[], object] = lambda: None,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> list[float]:
        """This rank's milliseconds; none once it was given up. Every rank must call it. ``look`` is
        called right after the steps, before the ranks meet; ``around`` each of them."""
        if self.why_none:
            return []
        failed: list[str] = []

        def step() -> None:
            # A rank that fails goes on meeting the others, which wait for it before each step.
            if not failed:
                try:
                    with around():
                        self.one_step()
                except (RuntimeError, MemoryError) as error:
                    if not memory.is_out_of_memory(error):
                        raise
                    failed.append(str(error).partition("\n")[0][:200])

        before = memory.alloc_retries(self.group.device)
        self.proof.begin_silent()
        with self.whole.silenced():
            times, _ = self.watch.time(step, steps)
        look()
        if memory.alloc_retries(self.group.device) != before:
            failed.append("the allocator emptied its cache for them")
        differs = "" if failed else self.proof.why_silent_block_differs(steps)
        anyone, other = self.group.largest([float(len(failed)), float(bool(differs))])
        if anyone:
            cause = failed[0] if failed else "on another rank"
            self.why_none = f"steps without communication ran out of memory: {cause}"
            self.whole.give_up_silence()
            self.watch.once(self.one_step)  # the next timed step finds its memory in the cache
            return []
        if other:
            self.why_none = differs or "silent steps of another rank are not as real ones"
            return []
        return times
