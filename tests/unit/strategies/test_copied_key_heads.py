"""Key heads that several ranks need are sent as copies: the formulas of docs/strategies.md."""

from __future__ import annotations

from fractions import Fraction

import pytest

from spbench.strategies.registry import load
from spbench.workload.traffic import by_busiest
from spbench.workload.workload import Workload

TOKENS, HIDDEN = 256, 256


def sent_forward(strategy: str, heads: int, key_heads: int, ranks: int) -> int:
    """Bytes of one attention of 256 x 256 in float32."""
    work = Workload.model_validate(
        {
            "name": "few key heads",
            "axes": {"sequence": TOKENS},
            "hidden": HIDDEN,
            "heads": heads,
            "kv_heads": key_heads,
            "depth": 1,
            "block": [{"attention": "sequence"}],
            "dtype": "float32",
            "mode": "forward",
        }
    )
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
