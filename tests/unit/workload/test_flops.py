"""Parameters and operations by formula, held against the real model and torch's own counter."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from spbench.comm.collectives import Collectives
from spbench.comm.fake import SilentTransport, silent_transports
from spbench.layers import kernels
from spbench.layers.attention import Scores
from spbench.model.transformer import model_of
from spbench.worker.reference import OneDevice
from spbench.worker.step import Step
from spbench.workload.block import Stack
from spbench.workload.catalogue import find
from spbench.workload.config_names import names
from spbench.workload.flops import (
    executed_flops,
    forward_flops,
    parameters,
    step_flops,
    weight_sets,
)
from spbench.workload.workload import Workload

ROOT = Path(__file__).parents[3]
SMALL = [find(name) for name in names() if name.endswith("-small")]
PAPERS = [find(name) for name in names() if not name.endswith("-small")]
VERIFY = [find(name, "verify") for name in names("verify")]


def by_name(works: list[Workload]) -> list[object]:
    return [pytest.param(work, id=work.name) for work in works]


def one_step(work: Workload) -> Step:
    alone = silent_transports(0, 1)
    return Step(OneDevice().on(work, 1), alone, torch.device("cpu"))


def run(step: Step) -> Tensor:
    return step(*step.seeded_inputs())


@pytest.mark.parametrize("work", by_name(SMALL + VERIFY))
def test_parameters_are_those_of_the_model(work: Workload) -> None:
    """The formula is exact for every workload that is small enough to build."""
    model = one_step(work).model
    assert parameters(work).total == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("work", by_name(PAPERS))
def test_parameters_of_the_papers_models(work: Workload) -> None:
    """The formula is exact for large workloads too, built without memory."""
    with torch.device("meta"):
        model = model_of(OneDevice().on(work, 1), Collectives(SilentTransport(0, 1)))
    assert parameters(work).total == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("dsp-720m", 720e6),
        ("dsp-3b", 3e9),
        ("step-video", 30e9),
        ("wan-2.1-14b", 14e9),
        ("wan-2.2-ti2v-5b", 5e9),
    ],
)
def test_models_are_as_large_as_their_names_say(name: str, count: float) -> None:
    """Within 6 %: the paper's embeddings are not part of a workload, its modulation is."""
    assert parameters(find(name)).total == pytest.approx(count, rel=0.06)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("hunyuanvideo", 12.8e9),
        ("hunyuanvideo-1.5", 8.3e9),
        ("flux.1-dev", 11.9e9),
        ("qwen-image", 20.4e9),
    ],
)
def test_models_of_two_streams_are_as_large(name: str, count: float) -> None:
    """Within 3 %, with a projection of the condition for each stream of each block, as theirs."""
    work = find(name)
    own = sum(
        part.depth * weight_sets(sublayer) * 3 * work.hidden**2
        for part in work.parts
        for sublayer in part.block
    )
    assert parameters(work).total + own == pytest.approx(count, rel=0.03)


@pytest.mark.parametrize("work", by_name(SMALL + VERIFY))
def test_cut_and_replicated_parameters(work: Workload) -> None:
    """What may be cut grows with depth alone; weights of projections are most of it."""
    single, triple = (parameters(deeper(work, times)) for times in (1, 3))
    assert triple.cuttable == 3 * single.cuttable
    assert single.total == single.cuttable + single.replicated
    if not work.is_attention_alone:  # queries and the way out, at least
        assert single.cuttable >= 2 * work.hidden * work.hidden


@pytest.mark.parametrize("work", by_name(VERIFY))
def test_forward_operations_are_those_that_torch_counts(
    monkeypatch: pytest.MonkeyPatch, work: Workload
) -> None:
    """Equal to FlopCounterMode's count where attention is plain matrix products, mask or not, and
    values are not filled up with zeros for a kernel."""
    monkeypatch.setattr(kernels, "takes_two_sizes", lambda q: True)
    # What a window leaves goes in tiles, which torch does not count, and documents by themselves:
    # below.
    masked = any(x.window or x.documents for x in work.attentions)
    work = without_masks(work) if masked else work
    if any(x.sinks for x in work.attentions):
        monkeypatch.setattr(Scores, "goes_in_tiles", False)
    step = one_step(work.model_copy(update={"mode": "forward"}))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run(step)
    assert forward_flops(without_masks(work)) == counter.get_total_flops()


def deeper(work: Workload, times: int) -> Workload:
    depths = [{"depth": times * part.depth} for part in work.parts]
    parts = [x.model_copy(update=depth) for x, depth in zip(work.parts, depths, strict=True)]
    return work.with_parts(parts)


def without_masks(work: Workload) -> Workload:
    def unmasked(part: Stack) -> Stack:
        plain = {"causal": False, "window": None, "shift": None, "documents": None}
        plain |= {"wraps": ()}
        each = [s.model_copy(update=plain if s.attended else {}) for s in part.block]
        return part.model_copy(update={"block": tuple(each)})

    return work.with_parts([*map(unmasked, work.parts)])


def test_a_mask_leaves_half_of_the_scores() -> None:
    """Position i sees i + 1 positions: (length + 1) / 2 on average, in both products."""
    work = find("causal", "verify")
    scores = 4 * work.batch * work.blocks * work.hidden
    seen = sum(i + 1 for i in range(work.tokens))
    saved = scores * (work.tokens**2 - seen)
    assert forward_flops(without_masks(work)) - forward_flops(work) == saved


@pytest.mark.parametrize("length", [1, 2, 7, 4096])
def test_a_mask_counts_the_mean_number_of_keys_of_a_position(length: int) -> None:
    """Attention along S positions counts (S + 1) / 2 keys in place of S, as columns.md says."""
    known = {"axes": {"sequence": length}, "depth": 1, "mode": "train"}
    work = find("causal", "verify").model_copy(update=known)
    whole, masked = step_flops(without_masks(work)), step_flops(work)
    attention = 3 * 4 * work.batch * length**2 * work.attention_width * work.blocks
    assert whole - masked == attention * (1 - Fraction(length + 1, 2 * length))
    page = (ROOT / "docs" / "columns.md").read_text(encoding="utf-8")
    for column in ("tflops_per_rank", "mfu"):
        (meaning,) = [line for line in page.splitlines() if line.startswith(f"| `{column}` ")]
        assert "causal mask" in meaning


@pytest.mark.parametrize("length", [1, 5, 12, 40])
@pytest.mark.parametrize("window", [1, 4, 5, 64, None])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("has_documents", [False, True])
def test_a_mask_counts_the_pairs_that_it_leaves(
    length: int, window: int | None, causal: bool, has_documents: bool
) -> None:
    """torch's count of attention under the mask as a tensor, times the mask's density."""
    documents = [1, (length - 1) // 2, length - 1 - (length - 1) // 2]
    documents = [n for n in documents if n] if has_documents else None
    block = {"window": window, "causal": causal, "documents": documents, "alone": True}
    work = Workload.model_validate(
        {
            "name": "alone",
            "axes": {"sequence": length},
            "hidden": 36,
            "heads": 3,
            "head_dim": 4,
            "depth": 1,
            "block": [{"attention": "sequence", **block}],
            "batch": 2,
        }
    )
    mask = torch.ones(length, length, dtype=torch.bool)
    mask = mask.tril() if causal else mask
    if window:
        before, after = (window - 1, 0) if causal else (window // 2, (window - 1) // 2)
        mask = mask.triu(-before).tril(after)
    if documents:
        of = torch.tensor([n for n, each in enumerate(documents) for _ in range(each)])
        mask &= of == of[:, None]
    qkv = torch.randn(3, 2, 3, length, 4).unbind()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        torch.nn.functional.scaled_dot_product_attention(*qkv, attn_mask=mask)
    density = Fraction(int(mask.sum()), length**2)
    assert forward_flops(work) == counter.get_total_flops() * density


@pytest.mark.parametrize("shift", [None, [1, 0, 2]])
@pytest.mark.parametrize("wraps", [[], ["lon"]])
def test_boxes_count_the_pairs_inside_of_each(shift: list[int] | None, wraps: list[str]) -> None:
    """torch's count of attention under the mask as a tensor, times the mask's density; of axes that
    the windows do not divide."""
    if not shift and wraps:
        return  # as without
    boxes = {"window": [2, 3, 4], "shift": shift, "wraps": wraps}
    work = Workload.model_validate(
        {
            "name": "alone",
            "axes": {"level": 3, "lat": 4, "lon": 10},
            "hidden": 36,
            "heads": 3,
            "head_dim": 4,
            "depth": 1,
            "block": [{"attention": ["level", "lat", "lon"], **boxes, "alone": True}],
            "batch": 2,
        }
    )
    # Along an axis alone who is in one box, and of all three the product.
    along = []
    for axis, (length, size) in enumerate([(3, 2), (4, 3), (10, 4)]):
        places = torch.arange(length) - (shift or [0, 0, 0])[axis]
        own = (places % length if wraps and axis == 2 else places).div(size, rounding_mode="floor")
        along.append((own == own[:, None]).to(torch.int64))
    mask = torch.kron(torch.kron(along[0], along[1]), along[2]).bool()
    qkv = torch.randn(3, 2, 3, work.tokens, 4).unbind()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        torch.nn.functional.scaled_dot_product_attention(*qkv, attn_mask=mask)
    density = Fraction(int(mask.sum()), work.tokens**2)
    assert forward_flops(work) == counter.get_total_flops() * density


@pytest.mark.parametrize("work", by_name(VERIFY))
def test_a_training_step_is_three_forwards(work: Workload) -> None:
    """Backward counts twice; recomputation does not count, nor does a mode without backward."""
    assert step_flops(work) == forward_flops(work) * (3 if work.mode == "train" else 1)


@pytest.mark.parametrize("name", ["selective", "checkpointed"])
def test_operations_that_checkpointing_runs_again(name: str) -> None:
    """Equal to torch's count of the operations that a step runs, less those that early stop and
    inputs without a gradient leave out."""
    work = without_masks(find(name, "verify"))
    counts = {}
    for how in ("none", work.checkpointing):
        step = one_step(work.model_copy(update={"checkpointing": how}))
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            run(step)
        counts[how] = counter.get_total_flops()
    more = counts[work.checkpointing] - counts["none"]
    known = executed_flops(work) - step_flops(work)
    # torch stops before the last product of each attention or block, whose result nobody needs.
    assert 0.4 * known < more <= known


@pytest.mark.parametrize("name", ["attention-only", "axes-3d-uneven"])
def test_backward_is_twice_the_forward_as_torch_counts(name: str) -> None:
    """Torch counts 3 x forward, less the gradient of the condition, which needs none."""
    work = find(name, "verify")
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run(one_step(work))
    modulated = sum("mlp" in item or "attention" in item for item in dumped(work))
    not_asked_for = 0
    if work.modulation != "none":
        not_asked_for = 2 * work.batch * work.hidden * 3 * modulated * work.hidden
    assert counter.get_total_flops() == step_flops(work) - not_asked_for


def dumped(work: Workload) -> list[dict[str, object]]:
    block: list[dict[str, object]] = work.model_dump(by_alias=True)["block"]
    return block


def test_operations_grow_as_they_should() -> None:
    """Twice the batch is twice the work; a longer attended axis costs more than its tokens."""
    work = find("axes-2d", "verify")
    assert forward_flops(work.model_copy(update={"batch": 2})) == 2 * forward_flops(work)
    alone = find("attention-only", "verify")
    longer = alone.model_copy(update={"axes": {"time": 8, "space": 24}})
    assert forward_flops(longer) > 2 * forward_flops(alone)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("bert-base", 12 * 7_087_872),
        ("bert-large", 24 * 12_596_224),
        ("gpt-7b", 32 * 12 * 4096**2),
        ("llama3-8b", 8_030_261_248 - 2 * 128_256 * 4096),
        ("llama3-70b", 70_553_706_496 - 2 * 128_256 * 8192),
        ("qwen3-32b", 32_762_123_264 - 2 * 151_936 * 5120),
    ],
)
def test_language_models_are_as_large_as_published(name: str, count: int) -> None:
    """Within 0.1 %, embeddings aside: ours end in a projection; Llama has no biases, ours has."""
    work = find(name)
    learned = sum(n for axis, n in work.axes.items() if work.position_of(axis) == "learned")
    assert parameters(work).total - learned * work.hidden == pytest.approx(count, rel=1e-3)
