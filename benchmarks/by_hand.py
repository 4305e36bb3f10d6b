"""Compares our step with the same transformer written by hand: at least 0.98 of its speed.

    OMP_NUM_THREADS=1 python benchmarks/by_hand.py [--workload dsp-720m-small] [--pairs 9]
    python benchmarks/by_hand.py --workload dsp-720m --device cuda

By hand: nn.Linear, nn.LayerNorm and scaled_dot_product_attention in blocks as DiT and Latte have
them, as one writes them for one device, with the same weights, inputs and checkpointing. Ours: a
whole training step of one rank, gradient buckets included. First both must agree on the output and
on every gradient; then steps are timed in turn, ABBA. The ratio is by hand's time over ours: taken
pair by pair, of which the median counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from spbench.comm.fake import silent_transports
from spbench.layers.kernels import fastest_kernels
from spbench.model.inputs import Inputs
from spbench.strategies.registry import load
from spbench.worker.step import Step
from spbench.workload.block import Attention, CrossAttention, Mlp, Sublayer
from spbench.workload.catalogue import find, with_settings
from spbench.workload.workload import Workload

LIMIT = 0.98
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 0.1, "float16": 0.05}
"""Relative distance of outputs and gradients that rounding explains, by dtype."""


def why_not(work: Workload) -> str | None:
    """A sentence if the blocks written here do not cover ``work``."""
    plain = {"norm": "layer", "qk_norm": False, "positions": "none", "kv_heads": None}
    plain |= {"mode": "train", "optimizer": "none"}
    for name, value in plain.items():
        if getattr(work, name) not in (value, {} if name == "positions" else value):
            return (
                f"{work.name} has {name} {getattr(work, name)!r}; by hand there is only {value!r}"
            )
    if work.checkpointing == "selective":
        return f"{work.name} computes attentions again; by hand there are whole blocks, or none"
    if work.is_attention_alone:
        return f"{work.name} is an attention alone; by hand there are whole blocks"
    if len(work.parts) > 1:
        return f"{work.name} has several stacks; by hand there is only one"
    if work.conditioned_axes:
        each = work.modulation.replace("per_", "")
        return f"{work.name} has a condition for each {each}; by hand there is one for each sample"
    for sublayer in work.kinds:
        if isinstance(sublayer, Attention) and (
            len(sublayer.axes) > 1 or sublayer.projection or sublayer.pair_bias or sublayer.beside
        ):
            return f"{work.name} has attention other than plain or causal along one axis"
        if isinstance(sublayer, Mlp) and sublayer.activation != "gelu":
            return f"{work.name} has an mlp with {sublayer.activation}; by hand there is only gelu"
    return None


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, causal: bool = False) -> Tensor:
    """Multi-head attention of (b, S, H)."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return out.transpose(1, 2).flatten(-2)


class SelfAttention(nn.Module):
    """Attention along one dim; the other dims go into the batch."""

    def __init__(self, hidden: int, heads: int, dim: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.dim, self.causal = heads, dim, causal
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        moved = x.movedim(self.dim, -2)
        q, k, v = self.qkv(moved.reshape(-1, *moved.shape[-2:])).chunk(3, -1)
        out = self.out(attend(q, k, v, self.heads, self.causal))
        return out.view(moved.shape).movedim(-2, self.dim)


class TextAttention(nn.Module):
    """Attention to the text tokens of the sample."""

    def __init__(self, hidden: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads, self.length = heads, length
        self.q, self.kv = nn.Linear(hidden, hidden), nn.Linear(hidden, 2 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        k, v = self.kv(text[:, : self.length]).chunk(2, -1)
        return self.out(attend(self.q(x.flatten(1, -2)), k, v, self.heads)).view(x.shape)


class FeedForward(nn.Module):
    def __init__(self, hidden: int, wide: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(hidden, wide), nn.Linear(wide, hidden)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Modulation(nn.Module):
    """Shift, scale and gate of one sublayer: its own table, plus its part of the condition."""

    def __init__(self, hidden: int, index: int) -> None:
        super().__init__()
        self.index, self.table = index, nn.Parameter(torch.empty(3, hidden))

    def forward(self, condition: Tensor) -> tuple[Tensor, ...]:
        return (condition[..., self.index, :, :] + self.table).unbind(-2)


class Residual(nn.Module):
    def __init__(self, work: Workload, sublayer: Sublayer, index: int | None) -> None:
        super().__init__()
        hidden = work.hidden
        self.norm = nn.LayerNorm(hidden, eps=1e-6) if index is None else Modulation(hidden, index)
        if isinstance(sublayer, Attention):
            (dim,) = work.dims(sublayer)
            self.sublayer = SelfAttention(hidden, work.heads, dim, sublayer.causal)
        elif isinstance(sublayer, CrossAttention):
            self.sublayer = TextAttention(hidden, sublayer.heads or work.heads, sublayer.length)
        else:
            self.sublayer = FeedForward(hidden, work.columns(sublayer))

    def forward(self, x: Tensor, condition: Tensor | None, text: Tensor) -> Tensor:
        if isinstance(self.norm, nn.LayerNorm):
            return x + self.sublayer(self.norm(x), text)
        shift, scale, gate = self.norm(condition)
        normed = F.layer_norm(x, x.shape[-1:], eps=1e-6)
        return x + gate * self.sublayer(normed * (1 + scale) + shift, text)


class Block(nn.Module):
    def __init__(self, work: Workload) -> None:
        super().__init__()
        self.residuals = nn.ModuleList()
        modulated = 0
        for sublayer in work.parts[0].block:
            has_own = work.modulation == "none" or isinstance(sublayer, CrossAttention)
            self.residuals.append(Residual(work, sublayer, None if has_own else modulated))
            modulated += not has_own

    def forward(self, x: Tensor, condition: Tensor | None, text: Tensor) -> Tensor:
        for residual in self.residuals:
            x = residual(x, condition, text)
        return x


class ByHand(nn.Module):
    """The transformer of a workload for one device; its weights have our names."""

    def __init__(self, work: Workload) -> None:
        super().__init__()
        self.recomputes, self.ones = work.recomputes, [1] * len(work.axes)
        self.modulated = sum(not isinstance(each, CrossAttention) for each in work.parts[0].block)
        self.conditioning: nn.Linear | None = None
        if work.modulation != "none":
            self.conditioning = nn.Linear(work.hidden, self.modulated * 3 * work.hidden)
        self.blocks = nn.ModuleList(Block(work) for _ in range(work.blocks))
        self.norm = nn.LayerNorm(work.hidden, eps=1e-6)
        self.final = nn.Linear(work.hidden, work.out_channels)

    def forward(self, x: Tensor, condition: Tensor, text: Tensor) -> Tensor:
        vectors: Tensor | None = None
        if self.conditioning is not None:
            vectors = self.conditioning(F.silu(condition))
            vectors = vectors.view(len(x), *self.ones, self.modulated, 3, -1)
        for block in self.blocks:
            if self.recomputes:
                given = {"use_reentrant": False, "preserve_rng_state": False}  # as ours
                x = checkpoint(block, x, vectors, text, **given)
            else:
                x = block(x, vectors, text)
        out: Tensor = self.final(self.norm(x))
        return out


@torch.no_grad()
def with_weights_of(step: Step) -> ByHand:
    with step.device:
        model = ByHand(step.workload).to(step.dtype)
    ours = dict(step.model.named_parameters())
    for name, weight in model.named_parameters():
        weight.copy_(ours.pop(name).reshape(weight.shape))
    assert not ours, f"by hand there is no {', '.join(ours)}"
    return model


def step_by_hand(model: ByHand, given: Inputs, cotangent: Tensor) -> Tensor:
    given.x.grad = None
    model.zero_grad(set_to_none=True)
    out: Tensor = model(given.x, *given.conditions, given.context)
    out.backward(cotangent)
    return out.detach()


def differences(step: Step, model: ByHand, given: Inputs, cotangent: Tensor) -> dict[str, float]:
    """Relative distance of our output and of each of our gradients from by hand's."""
    wanted = {"output": step_by_hand(model, given, cotangent)} | given.gradients
    wanted |= {f"gradient of {name}": w.grad for name, w in model.named_parameters()}
    found = step.tensors(given, step(given, cotangent))
    return {
        name: float((found[name].reshape(tensor.shape) - tensor).norm() / tensor.norm())
        for name, tensor in wanted.items()
    }


def times_ms(
    ours: Callable[[], object], by_hand: Callable[[], object], pairs: int, device: torch.device
) -> list[tuple[float, float]]:
    """Milliseconds of both in each pair, ABBA, after two pairs that are not timed."""
    pairs_ms: list[tuple[float, float]] = []
    for pair in range(-2, pairs):
        taken_ms: dict[bool, float] = {}
        for is_ours in (True, False) if pair % 2 else (False, True):
            if device.type == "cuda":
                torch.cuda.synchronize()
            began_s = time.perf_counter()
            (ours if is_ours else by_hand)()
            if device.type == "cuda":
                torch.cuda.synchronize()
            taken_ms[is_ours] = (time.perf_counter() - began_s) * 1e3
        if pair >= 0:
            pairs_ms.append((taken_ms[True], taken_ms[False]))
    return pairs_ms


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", default="dsp-720m-small")
    parser.add_argument("--strategy", default="dsp")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--set", action="append", default=[])
    flags = parser.parse_args()
    work = with_settings(find(flags.workload), flags.set)
    if reason := why_not(work):
        print(reason)
        return 2
    device = torch.device(flags.device)
    with fastest_kernels(device):
        step = Step(load(flags.strategy).on(work, 1), silent_transports(0, 1), device)
        model = with_weights_of(step)
        given, cotangent = step.seeded_inputs()
        found = differences(step, model, given, cotangent)
        worst = max(found, key=found.__getitem__)
        print(f"{work.name}: outputs and gradients agree within {found[worst]:.1e} ({worst})")
        if found[worst] > TOLERANCE[work.dtype]:
            print(f"that is more than {TOLERANCE[work.dtype]}: not the same transformer")
            return 1
        ours, by_hand = (
            partial(step, given, cotangent),
            partial(step_by_hand, model, given, cotangent),
        )
        pairs = times_ms(ours, by_hand, flags.pairs, device)
    medians = [statistics.median(times) for times in zip(*pairs, strict=True)]
    ratios = sorted(hand / mine for mine, hand in pairs)
    ratio = statistics.median(ratios)
    print(f"ours {medians[0]:.1f} ms, by hand {medians[1]:.1f} ms, medians of {len(pairs)} pairs")
    print(f"by hand over ours {ratio:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}), limit {LIMIT}")
    return 0 if ratio >= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
