"""One device's output and gradients of a workload: the truth that the gate compares with.

The same model code on a group of one, from the same seeded weights and inputs. Where rounding
alone leads far off there are two answers: one in the next finer arithmetic on the same rounded
weights, which is taken for exact, and one device's own, which says how far. This is so in 16 bits,
and in float32 where rows of scores are sharp.

A workload that one device could not run whole, in time and memory beside everything else, is
compared as the least reduced workload that it could (``workload/reduced.py``).

One device and every rank take the same seeded steps: one from the seeded inputs, one from others,
and with an optimizer two that update weights.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from spbench.comm.fake import silent_transports
from spbench.comm.group import Group, ShareOfGroup
from spbench.results.agreement import Fingerprint
from spbench.results.machine import free_memory_bytes
from spbench.strategies.base import Plan, Strategy
from spbench.worker.fingerprint import Grids, whole_fingerprint
from spbench.worker.observer import Observer
from spbench.worker.step import Step, take_updates, typical_size
from spbench.worker.tensor_errors import FLIPPED, UPDATED, UPDATES, Named
from spbench.workload.block import Attention
from spbench.workload.fields import DTYPE_BYTES
from spbench.workload.flops import forward_flops, parameters
from spbench.workload.reduced import reductions
from spbench.workload.workload import Workload

GATE_FLOPS = {"cpu": 5e10, "cuda": 5e13}
"""Forward operations up to which a workload is compared whole, not reduced."""
REDUCED_FLOPS = {"cpu": 1e9, "cuda": 5e13}
"""Forward operations up to which a reduced workload may come near the whole one."""
REDUCED_PARAMETERS = {"cpu": 4e6, "cuda": 2e9}
"""Weights that it may have: on the CPU they take longer to make than to use."""
GATE_MEMORY_SHARE = {"cpu": 0.5, "cuda": 0.3}
"""Part of the free memory that the comparison may take."""
LIVE_ACTIVATIONS = 16
"""Most activations that autograd keeps of one sublayer; scores come on top."""
FINER = {"bfloat16": "float32", "float16": "float32"}
FINER_WHERE_SHARP = FINER | {"float32": "float64"}


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One device's whole tensors, and what a strategy needs to repeat them."""

    workload: Workload
    seed: int
    sharpness: float
    exact: Named
    flipped: Fingerprint
    """What one device gives in the dtype of ``exact`` on the other inputs (``Step.flip``)."""
    grids: Mapping[str, Grids]
    """The dims of these that are axes, for their fingerprints (``Step.grids``)."""
    own: Named | None
    """One device in the workload's own dtype, where that is not the exact one."""
    rounded_to: torch.dtype
    """The dtype that weights and inputs are rounded to."""

    @property
    def float32_twin(self) -> "Reference | None":
        """What the step gives in float32 from the same rounded weights and inputs; None where the
        workload is not in 16 bits, or float32 is not exact.

        It costs no further step of one device: what 16 bits are compared with is in float32.
        """
        if self.workload.dtype not in FINER or self.sharpness > 1.0:
            return None
        work = self.workload.model_copy(update={"dtype": FINER[self.workload.dtype]})
        return replace(self, workload=work, own=None)


@final
@dataclass(frozen=True, kw_only=True)
class OneDevice(Strategy):
    """The reference: every rank's group is itself, and nothing is sent."""

    @property
    def beside_axes(self) -> Strategy:
        return self

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        return None if ranks == 1 else "one device is one rank"

    def on(self, workload: Workload, ranks: int) -> Plan:
        layout = (next(iter(workload.axes)),) * len(workload.stack)
        return Plan(strategy=self, workload=workload, ranks=ranks, layout=layout)


def one_device(
    workload: Workload,
    device: torch.device,
    *,
    seed: int = 0,
    sharpness: float = 1.0,
    observer: Observer | None = None,
) -> Reference:
    """Runs the whole workload on ``device`` alone, a second time where finer is exact.

    Parameters
    ----------
    workload
        What is computed, whole.
    device
        Where.
    seed
        Of weights and inputs: ranks take the same.
    sharpness
        Factor on the projections to q, k and v.
    observer
        Learns of the steps; None: nobody does.

    Returns
    -------
    Reference
        With every tensor whole, on ``device``.
    """
    observer = observer or Observer()
    # 16 bits are held against float32, sharp float32 against float64; all else against itself.
    finer = (FINER_WHERE_SHARP if sharpness > 1.0 else FINER).get(workload.dtype)

    rounded_to: torch.dtype = getattr(torch, workload.dtype)

    def step_in(dtype: str) -> Step:
        alone = silent_transports(0, 1)
        same = workload.model_copy(update={"dtype": dtype})
        step = Step(OneDevice().on(same, 1), alone, device, seed=seed, sharpness=sharpness)
        _show_progress(step, observer.heartbeat.working)
        return step

    def run_exact() -> tuple[Named, Fingerprint, Mapping[str, Grids]]:
        step = step_in(finer or workload.dtype)
        tensors = run_seeded(step, rounded_to, observer)
        other = run_flipped(step, rounded_to, observer)
        print_of_other = whole_fingerprint(other, step.grids)
        tensors |= without_weights(step, other)
        del other  # each weight's second gradient
        tensors |= updated_weights(step, rounded_to, tensors, observer)
        return tensors, print_of_other, step.grids

    def run_own(exact: Named) -> Named:
        step = step_in(workload.dtype)
        tensors = run_seeded(step, rounded_to, observer)
        tensors |= without_weights(step, run_flipped(step, rounded_to, observer))
        return tensors | updated_weights(step, rounded_to, exact, observer)

    exact, print_of_other, grids = run_exact()
    return Reference(
        workload=workload,
        seed=seed,
        sharpness=sharpness,
        exact=exact,
        flipped=print_of_other,
        grids=grids,
        own=run_own(exact) if finer else None,
        rounded_to=rounded_to,
    )


def _show_progress(step: Step, alive: Callable[[], None]) -> None:
    """Calls ``alive`` behind each module forward, and with each weight's gradient backward."""
    for module in step.model.modules():
        module.register_forward_hook(lambda *_: alive())
    for parameter in step.model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _: alive())


def workload_to_compare(workload: Workload, group: Group) -> Workload:
    """``workload``, or the least reduced one that fits every rank's device alone. The ranks of a
    share are threads on one CPU, which has to do the work of all of them."""
    is_share = isinstance(group, ShareOfGroup)
    device = torch.device("cpu") if is_share else group.device

    def those_that_fit(candidates: Sequence[Workload], *, is_reduced: bool) -> list[Workload]:
        """Those of the candidates that fit on every rank."""
        fit = [_fits(work, group.size, device, is_reduced=is_reduced) for work in candidates]
        # Ranks may have different memory free: one on which it does not fit decides for all.
        too_large = group.largest([float(not fits) for fits in fit])
        return [work for work, no in zip(candidates, too_large, strict=True) if not no]

    if those_that_fit([workload], is_reduced=is_share):
        return workload  # most are whole, and reductions of them would be made for nothing
    reduced = list(reductions(workload, group.size))
    fitting = those_that_fit(reduced, is_reduced=True)
    return (fitting or reduced[-1:])[0]


def _fits(workload: Workload, ranks: int, device: torch.device, *, is_reduced: bool) -> bool:
    """Whether each rank can run the whole model alone, beside its own part of it."""
    kind = device.type
    if forward_flops(workload) > (REDUCED_FLOPS if is_reduced else GATE_FLOPS)[kind]:
        return False
    if is_reduced and parameters(workload).total > REDUCED_PARAMETERS[kind]:
        return False
    needed, share = _needed_bytes(workload, ranks, device), GATE_MEMORY_SHARE[kind]
    if kind == "cuda":
        return needed < share * torch.cuda.mem_get_info(device)[0]
    # Processes of one machine share its memory, and the limit of their control group.
    return needed * ranks < share * free_memory_bytes()


def _needed_bytes(workload: Workload, ranks: int, device: torch.device) -> float:
    """The most that one rank holds: one device's step, then its own part of another.

    Kernels that keep no scores take no bias that has a gradient; on CUDA they have no float64,
    and no grouped queries in float32.
    """
    size = max(4, DTYPE_BYTES[workload.dtype])  # the reference of 16 bits runs in 32
    kept = sum(_kept_of(strand, ranks, device) for strand in workload.strands.values())
    # Weights, gradients on either inputs, the rank's own; an optimizer's two moments, the weights
    # that it gives, and what is kept of them.
    copies = 5 if workload.optimizer == "none" else 10
    return size * (kept + copies * parameters(workload).total)


def _kept_of(workload: Workload, ranks: int, device: torch.device) -> float:
    """Numbers that backward needs of one strand: activations, scores and pairs."""
    tokens, part = workload.samples * workload.all_tokens, 1 + 1 / ranks
    widest = max(workload.hidden, workload.attention_width)
    activations = len(workload.stack) * LIVE_ACTIVATIONS * tokens * widest
    scores, grouped = 0.0, workload.key_heads != workload.heads
    attentions = [sublayer for sublayer in workload.stack if isinstance(sublayer, Attention)]
    for attention in attentions:
        # There the kernel is torch's own, which keeps every score for backward.
        slow = device.type == "cuda" and (workload.dtype == "float64" or grouped)
        keeps = slow or attention.pair_bias
        # Scores: each token against the length that it attends along, by head. 2: of softmax, and
        # of its gradient.
        square = tokens * workload.length(attention) * workload.heads
        scores += 2 * square * (part if keeps else 1 / ranks)
    pairs = sum(workload.axes[axis] ** 2 * channels for axis, channels in workload.pairs.items())
    return activations * part + scores + 2 * workload.samples * pairs


def run_seeded(step: Step, rounded_to: torch.dtype, observer: Observer) -> dict[str, Tensor]:
    """One step from the seeded inputs: this rank's output and gradients by name. ``rounded_to``: a
    coarser dtype that weights and inputs are rounded to."""
    with torch.no_grad():
        for weight in step.weights.values():
            weight.copy_(weight.to(rounded_to))
    mine, cotangent = step.seeded_inputs(rounded_to)
    with observer.times.step(step.device):
        out = step(mine, cotangent)
    return step.tensors(mine, out)


def run_flipped(step: Step, rounded_to: torch.dtype, observer: Observer) -> dict[str, Tensor]:
    """One step on the other inputs: this rank's output and gradients, by the names of the first."""
    mine, cotangent = step.seeded_inputs(rounded_to)
    step.flip(mine, cotangent)
    with observer.times.step(step.device):
        out = step.uncounted(mine, cotangent)
    step.flip(mine, cotangent)
    return step.tensors(mine, out)


def without_weights(step: Step, flipped_run: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the gate compares of a step on the other inputs, by names of its own: the output and the
    inputs' gradients, which all that is kept from another step changes."""
    of_weights = {f"gradient of {name}" for name in step.weights}
    # Gradients of weights take as much memory as weights; one set of them is compared already.
    return {flipped(name): x for name, x in flipped_run.items() if name not in of_weights}


def flipped(name: str) -> str:
    return f"{name} {FLIPPED}"


def updated_weights(
    step: Step, rounded_to: torch.dtype, exact: Mapping[str, Tensor], observer: Observer
) -> dict[str, Tensor]:
    """This rank's weights by name, after two further steps that change them.

    Parameters
    ----------
    step
        This rank's; its weights are moved.
    rounded_to
        The dtype that inputs are rounded to.
    exact
        One device's tensors. Its gradients set the optimizer's eps, so that what is only rounding
        hardly moves a weight.
    observer
        Times the steps.

    Returns
    -------
    dict
        The weights by name; none without an optimizer.
    """
    if step.optimizer is None:
        return {}
    weights = step.weights
    take_updates(step.optimizer, typical_size([exact[f"gradient of {name}"] for name in weights]))
    mine, cotangent = step.seeded_inputs(rounded_to)
    for _ in range(UPDATES):
        with observer.times.step(step.device):
            step(mine, cotangent)
    return {updated(name): weight for name, weight in weights.items()}


def updated(name: str) -> str:
    """The name of a weight that the optimizer has moved."""
    return f"{name} {UPDATED}"
