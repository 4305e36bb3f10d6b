"""The one model that everything is compared with, against another one written down naively.

Position by position over explicit lists of what attends to what, from the same weights: a
mistake that all strategies share would pass every other test.
"""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from spbench.comm.fake import silent_transports
from spbench.model import inputs
from spbench.model.inputs import Inputs
from spbench.results import machine
from spbench.results.machine import Allowed
from spbench.worker.reference import OneDevice, workload_to_compare
from spbench.worker.step import Step
from spbench.workload.block import Attention, CrossAttention, Mlp, StreamAttention, Sublayer
from spbench.workload.catalogue import find, with_settings
from spbench.workload.config_names import names
from spbench.workload.workload import Workload


def test_the_gate_takes_no_more_memory_than_a_control_group_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A workload that fits into the machine, and not into the group's limit, is compared reduced:
    its ranks would be killed there."""
    work = find("dsp-720m-small")
    group: Any = SimpleNamespace(size=2, device=torch.device("cpu"), largest=lambda fits: fits)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**36))
    monkeypatch.setattr(machine, "allowed", Allowed)
    assert workload_to_compare(work, group) == work
    monkeypatch.setattr(machine, "allowed", lambda: Allowed(memory_bytes=2**26, left_bytes=2**24))
    assert workload_to_compare(work, group) != work


Weights = dict[str, Tensor]
EPS = 1e-6


@pytest.mark.parametrize("name", names("verify"))
def test_the_model_computes_what_its_workload_says(name: str) -> None:
    """Every kind of sublayer, norm, position and modulation, in float64."""
    work = with_settings(find(name, "verify"), ["dtype=float64", "mode=forward", "optimizer=none"])
    alone = silent_transports(0, 1)
    model = Step(OneDevice().on(work, 1), alone, torch.device("cpu")).model
    given = inputs.seeded(work, seed=0).map(lambda x: x.double())
    with torch.no_grad():
        output, wanted = model(given), naive(work, dict(model.named_parameters()), given)
    assert torch.linalg.vector_norm(output - wanted) < 1e-12 * torch.linalg.vector_norm(wanted)


def naive(work: Workload, weights: Weights, given: Inputs) -> Tensor:
    """The whole model on positions in one list, (B, positions, H)."""
    places = list(itertools.product(*(range(n) for n in work.axes.values())))
    x, text = given.x.flatten(1, -2), given.text
    if work.is_attention_alone:
        qkv, mine = x, "attention."
        inside = {name.removeprefix(mine): weight for name, weight in weights.items()}
        out = self_attention(work.attentions[0], work, inside, qkv, given, places)
        return out.reshape(*given.x.shape[:-1], -1)
    for i, axis in enumerate(work.axes):
        if work.position_of(axis) == "learned":
            along = in_documents(axis, work)
            x = x + weights[f"positions.tables.{axis}"][[along[place[i]] for place in places]]
    if work.streams:
        x = side_by_side(work, weights, x, given, places)
        x = norm(x, work, weights["norm.weight"], weights.get("norm.bias"))
        out = x @ weights["final.weight"].T + weights["final.bias"]
        return out.view(work.samples, *work.axes.values(), -1)
    blocks = [part.block for part in work.parts for _ in range(part.depth)]
    kinds = list(dict.fromkeys(blocks))
    modulated = [
        (kind, at)
        for kind, block in enumerate(kinds)
        for at, sublayer in enumerate(block)
        if work.modulation != "none" and not isinstance(sublayer, CrossAttention)
    ]
    for i, at in [(i, at) for i, block in enumerate(blocks) for at in range(len(block))]:
        sublayer, place = blocks[i][at], (kinds.index(blocks[i]), at)
        mine = f"blocks.{i}.residuals.{at}."
        part = under(mine, weights)
        condition = None
        if place in modulated:
            condition = projected(work, weights, given, places, len(modulated))
            condition = condition[:, :, modulated.index(place)]
        normed, gate = normed_and_gate(x, work, under("norm.", part), condition)
        if text is None or isinstance(sublayer, CrossAttention):
            inside = under("sublayer.", part)
            x = x + gate * sublayer_of(sublayer, work, inside, normed, given, places)
            continue
        own_norm = under("text_norm." if sublayer.double else "norm.", part)
        first = None if condition is None else condition[:, :1]  # the same at all positions
        normed_text, text_gate = normed_and_gate(text, work, own_norm, first)
        inside = [under(f"sublayer.{which}.", part) for which in ("image", "text")]
        inside = inside if sublayer.double else inside[:1] * 2
        outs = of_both(sublayer, work, inside, [normed, normed_text], given, places)
        x, text = x + gate * outs[0], text + text_gate * outs[1]
    x = norm(x, work, weights["norm.weight"], weights.get("norm.bias"))
    out = x @ weights["final.weight"].T + weights["final.bias"]
    return out.view(work.samples, *work.axes.values(), -1)


class Side(NamedTuple):
    """The positions of the axes, or of a stream beside them, as a workload of their own."""

    work: Workload
    given: Inputs
    places: list[tuple[int, ...]]
    mine: str
    """What the names of its weights outside of blocks begin with."""
    modulated: list[int]
    """Its sublayers of a block that a condition modulates."""


def side_by_side(
    work: Workload, weights: Weights, x: Tensor, given: Inputs, places: list[tuple[int, ...]]
) -> Tensor:
    """The blocks of one stack with streams beside the axes."""
    (part,) = work.parts

    def strand(sublayer: Sublayer) -> str:
        if isinstance(sublayer, Attention):
            return sublayer.axes[0] if sublayer.axes[0] in work.streams else ""
        return sublayer.stream or ""

    def modulated(name: str) -> list[int]:
        of_side = [at for at, each in enumerate(part.block) if strand(each) == name]
        kinds = (Attention, Mlp) if work.modulation != "none" else ()
        return [at for at in of_side if isinstance(part.block[at], kinds)]

    sides = {"": Side(work, given, places, "", modulated(""))}
    xs = {"": x}
    for n, (name, own) in enumerate(work.streams.items()):
        fields = work.model_dump(exclude={"stacks", "block", "streams", "kv_heads", "head_dim"})
        fields |= {"axes": {name: own.length}, "hidden": own.hidden or work.hidden}
        fields |= {"heads": own.heads or work.heads, "block": [{"mlp": 1}]}
        fields |= {"positions": work.position_of(name), "kv_heads": own.kv_heads}
        alone = Workload.model_validate(fields)
        rows = [(place,) for place in range(own.length)]
        sides[name] = Side(alone, given.streams[name], rows, f"beside.{n}.", modulated(name))
        xs[name] = given.streams[name].x
        if f"beside.{n}.positions.tables.{name}" in weights:
            xs[name] = xs[name] + weights[f"beside.{n}.positions.tables.{name}"]
    for i, at in [(i, at) for i in range(part.depth) for at in range(len(part.block))]:
        sublayer, own = part.block[at], under(f"blocks.{i}.residuals.{at}.", weights)
        inside = under("sublayer.", own)
        name = strand(sublayer)
        side = sides[name]
        condition = None
        if at in side.modulated:
            outside, count = under(side.mine, weights), len(side.modulated)
            condition = projected(side.work, outside, side.given, side.places, count)
            condition = condition[:, :, side.modulated.index(at)]
        normed, gate = normed_and_gate(xs[name], side.work, under("norm.", own), condition)
        if isinstance(sublayer, StreamAttention):
            asked = "" if sublayer.to == "axes" else sublayer.to
            of_asked = under("asked_norm.", own)
            others, _ = normed_and_gate(xs[asked], sides[asked].work, of_asked, None)
            out = asking(normed, others, inside)
        else:
            out = sublayer_of(sublayer, side.work, inside, normed, side.given, side.places)
        xs[name] = xs[name] + gate * out
    return xs[""]


def asking(x: Tensor, others: Tensor, weights: Weights) -> Tensor:
    """Attention of each position of ``x`` to all of ``others``, one query after another, in
    numpy."""
    q, kv = heads_of(x, weights, "q").numpy(), heads_of(others, weights, "kv").numpy()
    k, v = np.split(kv, 2, axis=2)
    attended = np.zeros_like(q)
    for b, p, z in np.ndindex(q.shape[:3]):
        scores = np.array([q[b, p, z] @ key for key in k[b, :, z]]) / math.sqrt(q.shape[-1])
        seen = np.exp(scores - scores.max())
        attended[b, p, z] = sum(n * value for n, value in zip(seen, v[b, :, z], strict=True))
        attended[b, p, z] /= seen.sum()
    return out_of(torch.from_numpy(attended), None, weights)


def under(prefix: str, weights: Weights) -> Weights:
    return {k.removeprefix(prefix): w for k, w in weights.items() if k.startswith(prefix)}


def normed_and_gate(
    x: Tensor, work: Workload, weights: Weights, condition: Tensor | None
) -> tuple[Tensor, Tensor | int]:
    if condition is None:
        return norm(x, work, weights["weight"], weights.get("bias")), 1
    shift, scale, gate = (condition + weights["table"]).unbind(2)
    return norm(x, work) * (1 + scale) + shift, gate


def of_both(
    sublayer: Sublayer,
    work: Workload,
    weights: list[Weights],
    streams: list[Tensor],
    given: Inputs,
    places: list[tuple[int, ...]],
) -> list[Tensor]:
    """What comes out for image and text, each by its own weights."""
    each = list(zip(weights, streams, strict=True))
    if not isinstance(sublayer, Attention):
        return [sublayer_of(sublayer, work, own, x, given, places) for own, x in each]
    qkvs, actives = zip(*(into(sublayer, work, own, x) for own, x in each), strict=True)
    given_heads = zip(weights, qkvs, strict=True)
    of_image, of_text = (split_heads(work, own, qkv) for own, qkv in given_heads)
    q, k = (turned(sublayer, work, y, places) for y in of_image[:2])
    q, k, v = (
        torch.cat(pair, 1).repeat_interleave(work.heads // pair[0].shape[2], 2)
        for pair in zip((q, k, of_image[2]), of_text, strict=True)
    )
    seen = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool)
    attended = torch.stack([attend(*qkv, seen) for qkv in zip(q, k, v, strict=True)])
    parts = attended.split([x.shape[1] for x in streams], 1)
    return [out_of(*part) for part in zip(parts, actives, weights, strict=True)]


def projected(
    work: Workload, weights: Weights, given: Inputs, places: list[tuple[int, ...]], count: int
) -> Tensor:
    (condition,) = given.conditions
    if work.modulation == "per_token":
        condition = condition.flatten(1, -2)
    elif work.modulation == "per_time":
        time = list(work.axes).index("time")
        condition = condition[:, [place[time] for place in places]]
    else:
        condition = condition[:, None].expand(-1, len(places), -1)
    flat = F.silu(condition) @ weights["conditioning.weight"].T + weights["conditioning.bias"]
    return flat.view(work.samples, len(places), count, 3, work.hidden)


def norm(
    x: Tensor, work: Workload, weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    centred = x - x.mean(-1, keepdim=True) if work.norm == "layer" else x
    out = centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt()
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def rms(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()


def sublayer_of(
    sublayer: Sublayer,
    work: Workload,
    weights: Weights,
    x: Tensor,
    given: Inputs,
    places: list[tuple[int, ...]],
) -> Tensor:
    match sublayer:
        case Mlp():
            active = activated(sublayer, x @ weights["up.weight"].T + weights["up.bias"])
            return active @ weights["down.weight"].T + weights["down.bias"]
        case CrossAttention():
            context = given.context[:, : sublayer.length]
            q, kv = heads_of(x, weights, "q"), heads_of(context, weights, "kv")
            k, v = kv[:, :, : q.shape[2]], kv[:, :, q.shape[2] :]
            seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
            attended = torch.stack([attend(*qkv, seen) for qkv in zip(q, k, v, strict=True)])
        case Attention():
            qkv, active = into(sublayer, work, weights, x)
            attended = self_attention(sublayer, work, weights, qkv, given, places)
            return out_of(attended, active, weights)
    return out_of(attended, None, weights)


def activated(mlp: Mlp, wide: Tensor) -> Tensor:
    gate, value = wide[..., : wide.shape[-1] // 2], wide[..., wide.shape[-1] // 2 :]
    gated = mlp.activation == "swiglu"
    return F.silu(gate) * value if gated else F.gelu(wide, approximate="tanh")


def into(
    attention: Attention, work: Workload, weights: Weights, x: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Heads of queries, keys and values; and of an mlp beside them what is active."""
    if attention.beside is None:
        return x @ weights["qkv.weight"].T + weights["qkv.bias"], None
    count = (work.heads + work.key_heads) * work.head_size + work.key_heads * work.value_size
    up, bias = weights["qkv_up.weight"], weights["qkv_up.bias"]
    qkv = x @ up[:count].T + bias[:count]
    return qkv, activated(attention.beside, x @ up[count:].T + bias[count:])


def out_of(attended: Tensor, active: Tensor | None, weights: Weights) -> Tensor:
    """attention(x), or attention(x) + mlp(x), whose weights lie side by side."""
    if active is None:
        return torch.einsum("bpzd,hzd->bph", attended, weights["out.weight"]) + weights["out.bias"]
    attended = attended.flatten(-2)
    out = weights["out_down.weight"].split([attended.shape[-1], active.shape[-1]], 1)
    return attended @ out[0].T + active @ out[1].T + weights["out_down.bias"]


def heads_of(x: Tensor, weights: Weights, name: str) -> Tensor:
    return torch.einsum("bph,zdh->bpzd", x, weights[f"{name}.weight"]) + weights[f"{name}.bias"]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    scores = torch.einsum("pzd,kzd->zpk", q, k) / math.sqrt(q.shape[-1])
    scores = scores if bias is None else scores + bias
    scores = scores.masked_fill(~seen, -math.inf)
    if sinks is not None:  # one more score in each row, which is left out behind the softmax
        scores = torch.cat([scores, sinks[:, None, None].expand(-1, len(q), 1)], -1)
    return torch.einsum("zpk,kzd->pzd", scores.softmax(-1)[..., : len(k)], v)


def split_heads(work: Workload, weights: Weights, qkv: Tensor) -> list[Tensor]:
    """Queries, keys and values, normed."""
    D, keys = work.head_size, work.key_heads
    own, all_keys = work.heads * D, (work.heads + keys) * D
    q, k = (x.unflatten(-1, (-1, D)) for x in (qkv[..., :own], qkv[..., own:all_keys]))
    v = qkv[..., all_keys:].unflatten(-1, (keys, -1))
    if work.qk_norm:
        along = (-1,) if work.qk_norm is True else (-2, -1)
        q, k = (
            y
            / (y.square().mean(along, keepdim=True) + EPS).sqrt()
            * weights[f"norm.{which}_norm.weight"]
            for y, which in ((q, "q"), (k, "k"))
        )
    return [q, k, v]


def self_attention(
    attention: Attention,
    work: Workload,
    weights: Weights,
    qkv: Tensor,
    given: Inputs,
    places: list[tuple[int, ...]],
) -> Tensor:
    q, k, v = split_heads(work, weights, qkv)
    q, k = turned(attention, work, q, places), turned(attention, work, k, places)
    k, v = (y.repeat_interleave(work.heads // work.key_heads, 2) for y in (k, v))
    order = list(work.axes)
    inner = [i for i, axis in enumerate(order) if axis in attention.axes]
    together: dict[tuple[int, ...], list[int]] = {}
    for p, place in enumerate(places):  # in tensor order, so each list is one sequence in order
        outer = tuple(n for i, n in enumerate(place) if i not in inner)
        together.setdefault(outer, []).append(p)
    out = q.new_zeros(*q.shape[:-1], v.shape[-1])
    for b, group in itertools.product(range(work.samples), together.values()):
        mine_k, mine_v, bias = k[b, group], v[b, group], None
        seen = torch.ones(len(group), len(group), dtype=torch.bool)
        seen = seen.tril() if attention.causal else seen
        if isinstance(attention.window, tuple):
            seen = seen & in_one_box(attention, work, [places[p] for p in group])
        elif attention.window:
            before = attention.window - 1 if attention.causal else attention.window // 2
            after = 0 if attention.causal else (attention.window - 1) // 2
            seen = seen.triu(-before).tril(after)
        if lengths := work.documents(attention):
            of = torch.tensor([n for n, length in enumerate(lengths) for _ in range(length)])
            seen = seen & (of == of[:, None])
        if attention.projection:
            along_k, along_v = weights["projection"].reshape(2, attention.projection, -1)
            mine_k = torch.einsum("ps,szd->pzd", along_k, mine_k)
            mine_v = torch.einsum("ps,szd->pzd", along_v, mine_v)
            seen = torch.ones(len(group), attention.projection, dtype=torch.bool)
        if attention.pair_bias:
            bias = torch.einsum(
                "ijc,zc->zij", given.pairs[attention.axes[0]][b], weights["bias.weight"]
            )
        sinks = weights["sinks"] if attention.sinks else None
        out[b, group] = attend(q[b, group], mine_k, mine_v, seen, bias, sinks)
    return out


def in_documents(axis: str, work: Workload) -> list[int]:
    """The place of each position in its document, or along the axis."""
    return [i for length in work.packing(axis) or (work.axes[axis],) for i in range(length)]


def in_one_box(attention: Attention, work: Workload, places: list[tuple[int, ...]]) -> torch.Tensor:
    """Whether two positions are, along each axis, in one stretch from the shift on."""
    assert isinstance(attention.window, tuple)
    boxes: list[tuple[int, ...]] = []
    shifts = attention.shift or (0,) * len(attention.window)
    for place in places:
        own = []
        for axis, size, first in zip(attention.axes, attention.window, shifts, strict=True):
            back = place[list(work.axes).index(axis)] - first
            if back < 0 and axis in attention.wraps:
                back += work.axes[axis]
            own.append(-1 if back < 0 else back // size)
        boxes.append((*own,))
    return torch.tensor([[one == other for other in boxes] for one in boxes])


def turned(
    attention: Attention, work: Workload, x: Tensor, places: list[tuple[int, ...]]
) -> Tensor:
    """Number i and number i + D/2 of a head, turned by place x 10000^(-pair / pairs)."""
    axes = [
        axis for axis in work.axes if axis in attention.axes and work.position_of(axis) == "rotary"
    ]
    half, out, pair = work.head_size // 2, x.clone(), 0
    for i, axis in enumerate(axes):
        along = in_documents(axis, work)
        pairs = half // len(axes) + (i < half % len(axes))
        for j in range(pairs):
            for p, place in enumerate(places):
                angle = along[place[list(work.axes).index(axis)]] * 10_000.0 ** (-j / pairs)
                a, b = x[:, p, :, pair], x[:, p, :, pair + half]
                out[:, p, :, pair] = a * math.cos(angle) - b * math.sin(angle)
                out[:, p, :, pair + half] = a * math.sin(angle) + b * math.cos(angle)
            pair += 1
    return out
