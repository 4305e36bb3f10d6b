"""Key heads that several ranks need are sent, or held, as copies: the formulas of
docs/strategies.md."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from helpers.gate_on_threads import prove, why_wrong
from torch import Tensor

from spbench.layers import linear
from spbench.strategies.registry import in_mesh, load
from spbench.workload.mesh import CaseMesh
from spbench.workload.traffic import by_busiest
from spbench.workload.workload import Workload

TOKENS, HIDDEN = 256, 256


def attention(heads: int, key_heads: int, **fields: Any) -> Workload:
    """One attention of 256 x 256 in float32."""
    return Workload.model_validate(
        {
            "name": "few key heads",
            "axes": {"sequence": TOKENS},
            "hidden": HIDDEN,
            "heads": heads,
            "kv_heads": key_heads,
            "depth": 1,
            "block": [{"attention": "sequence"}],
            "dtype": "float32",
            **fields,
        }
    )


def sent_forward(strategy: str, heads: int, key_heads: int, ranks: int) -> int:
    work = attention(heads, key_heads, mode="forward")
    return by_busiest(load(strategy).on(work, ranks).traffic)["forward"]


def by_formula(heads: int, key_heads: int, ranks: int, group: int) -> Fraction:
    """(U - 1) / U of (2 M + 2 c K) / N, where ``group`` ranks share heads out."""
    whole_bytes = TOKENS * HIDDEN * 4
    key_bytes = Fraction(whole_bytes * key_heads, heads)
    copies = max(Fraction(group, key_heads), Fraction(1))
    return Fraction(group - 1, group) * (2 * whole_bytes + 2 * copies * key_bytes) / ranks


CASES = [(32, 2, 32), (32, 2, 4), (32, 8, 8), (8, 2, 2), (8, 2, 8), (16, 2, 8)]


@pytest.mark.parametrize(("heads", "key_heads", "ranks"), CASES)
def test_ulysses_sends_a_key_head_to_every_rank_that_has_queries_of_it(
    heads: int, key_heads: int, ranks: int
) -> None:
    sent = sent_forward("ulysses", heads, key_heads, ranks)
    assert sent == by_formula(heads, key_heads, ranks, ranks)


def test_two_key_heads_on_32_ranks() -> None:
    """By (2 M + 2 K) / N, which has no copies, it would be 16,864 bytes; a gather sends as much."""
    assert sent_forward("ulysses", 32, 2, 32) == sent_forward("kv-gather", 32, 2, 32) == 31_744


@pytest.mark.parametrize(("heads", "key_heads", "ranks"), CASES)
def test_a_gather_sends_n_over_g_and_c_of_what_ulysses_does(
    heads: int, key_heads: int, ranks: int
) -> None:
    """With g queries for each key head, and c copies of it."""
    copies = max(Fraction(ranks, key_heads), Fraction(1))
    gathered, swapped = (sent_forward(s, heads, key_heads, ranks) for s in ("kv-gather", "ulysses"))
    assert Fraction(gathered, swapped) == ranks / (Fraction(heads, key_heads) + copies)


@pytest.mark.parametrize(("heads", "key_heads", "ranks"), [(32, 2, 32), (32, 8, 8), (16, 2, 8)])
@pytest.mark.parametrize("group", [2, 4])
def test_groups_send_copies_to_their_own_ranks_alone(
    heads: int, key_heads: int, ranks: int, group: int
) -> None:
    """Inside as Ulysses on U ranks; across, by a ring, 2 c K / U of N / U ranks."""
    key_bytes = Fraction(TOKENS * HIDDEN * 4 * key_heads, heads)
    copies, rings = max(Fraction(group, key_heads), Fraction(1)), ranks // group
    across = 2 * copies * key_bytes / group * Fraction(rings - 1, rings)
    sent = sent_forward(f"usp:ulysses={group}:across=ring", heads, key_heads, ranks)
    assert sent == by_formula(heads, key_heads, ranks, group) + across


@pytest.mark.parametrize("strategy", ["megatron-sp", "megatron-tp"])
@pytest.mark.parametrize(("heads", "key_heads", "ranks"), [(8, 2, 4), (8, 1, 4), (16, 2, 16)])
def test_megatron_sums_gradients_of_copies_among_their_holders(
    strategy: str, heads: int, key_heads: int, ranks: int
) -> None:
    """2 (c - 1) / c of a key head's rows of keys and values and of their biases, of c holders."""
    plan = load(strategy).on(attention(heads, key_heads), ranks)
    sums = [sent for sent in plan.of_sublayers if sent.op == "all_to_all"]
    copies = ranks // key_heads
    rows_bytes = 2 * (HIDDEN // heads) * (HIDDEN + 1) * 4
    sent = [sum(transfer.sent[rank] for transfer in sums) for rank in range(ranks)]
    assert sent == [Fraction(2 * (copies - 1) * rows_bytes, copies)] * ranks


def test_no_copies_where_key_heads_suffice() -> None:
    plan = load("megatron-sp").on(attention(8, 2), 2)
    assert not any(sent.op == "all_to_all" for sent in plan.of_sublayers)


@pytest.mark.parametrize("strategy", ["megatron-sp", "megatron-tp"])
@pytest.mark.parametrize(("heads", "ranks"), [(10, 3), (10, 4), (6, 5)])
def test_copies_of_two_key_heads_on_one_rank(strategy: str, heads: int, ranks: int) -> None:
    """Where queries do not fall into groups the rank between two has both; and in groups of ranks
    with samples of their own."""
    work = attention(heads, 2, hidden=20, head_dim=4, axes={"sequence": 11}, dtype="float64")
    assert not why_wrong(prove(work, load(strategy), ranks))
    two = work.model_copy(update={"batch": 2})
    assert not why_wrong(prove(two, in_mesh(strategy, CaseMesh(dp=2)), 2 * ranks))


@pytest.mark.parametrize("strategy", ["megatron-sp", "megatron-tp"])
def test_copies_that_go_apart_are_caught(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    """A planted fault: each holder keeps the gradient of its own queries, all bytes being sent."""
    right = linear._summed

    def wrong(mine: dict[int, Tensor], *how: Any) -> dict[int, Tensor]:
        right(mine, *how)
        return mine

    monkeypatch.setattr(linear, "_summed", wrong)
    work = attention(10, 2, hidden=20, head_dim=4, axes={"sequence": 11}, dtype="float64")
    assert "gradient of blocks.0.residuals.0.sublayer.qkv" in why_wrong(
        prove(work, load(strategy), 4)
    )
