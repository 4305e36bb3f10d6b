"""Padded heads: the same numbers, and more bytes and work, as many as are predicted."""

from __future__ import annotations

import pytest
from helpers.golden import Golden
from helpers.run_on_threads import verify_on_threads
from torch import Tensor

from spbench.layers import heads as shared_out
from spbench.layers.attention import Scores, attend_whole
from spbench.strategies.registry import load
from spbench.workload.catalogue import find, with_settings
from spbench.workload.traffic import by_busiest
from spbench.workload.workload import Workload

PADDED = ("ulysses:padded", "usp:padded:ulysses=4:across=ring")


def wan(*settings: str) -> Workload:
    """14 heads of an attention, which 4 ranks cannot share equally."""
    shape = ["axes={time: 2, space: 16}", "heads=14", "hidden=56", "dtype=float64"]
    block = "block=[{attention: space}]"
    return with_settings(find("attention-only", "verify"), [*shape, block, *settings])


@pytest.mark.parametrize(
    ("strategy", "shape", "settings", "ranks"),
    [
        ("ulysses:padded", "axes-2d", ["heads=6", "hidden=36"], 4),
        ("ulysses:padded", "axes-2d", ["heads=6", "kv_heads=3", "hidden=36"], 4),
        ("ulysses:padded", "pair-bias", [], 3),
        ("usp:padded:ulysses=4:across=ring", "axes-2d", ["heads=6", "hidden=36"], 8),
    ],
)
def test_equals_one_device(strategy: str, shape: str, settings: list[str], ranks: int) -> None:
    """Values, gradients and bytes, also with fewer key heads and with a bias of each head."""
    work = with_settings(find(shape, "verify"), [*settings, "dtype=float64", "depth=1"])
    assert verify_on_threads(work, strategy, ranks) == ""


@pytest.mark.parametrize(("strategy", "ranks"), [(PADDED[0], 4), (PADDED[1], 8)])
def test_bytes_are_those_of_the_padded_heads(strategy: str, ranks: int) -> None:
    """14 heads on 4 ranks cost what 16 heads of the same size cost."""
    plain = strategy.replace(":padded", "")
    sent = {
        (name, heads): by_busiest(load(name).on(work, ranks).traffic)["forward"]
        for name in (strategy, plain)
        for heads, work in ((14, wan()), (16, wan("heads=16", "hidden=64")))
    }
    assert sent[strategy, 14] == sent[strategy, 16] == sent[plain, 16] > sent[plain, 14]


def test_each_rank_computes_as_many_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 14 heads 4 ranks compute 4, 4, 3, 3; padded, 4 each: 16 heads' work in all."""
    heads: list[int] = []

    def seen(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
        heads.append(q.shape[-2])
        return attend_whole(q, k, v, scores)

    monkeypatch.setattr(shared_out, "attend_whole", seen)
    by_strategy = {}
    for strategy in ("ulysses", "ulysses:padded"):
        heads.clear()
        assert verify_on_threads(wan("depth=1"), strategy, 4) == ""
        by_strategy[strategy] = sorted(heads, reverse=True)[:: len(heads) // 4]
    assert by_strategy == {"ulysses": [4, 4, 3, 3], "ulysses:padded": [4, 4, 4, 4]}


def test_the_price_is_named(golden: Golden) -> None:
    """A note says how many heads are computed; nothing where heads divide."""
    golden(load("ulysses:padded").on(wan(), 4).notes, "of ulysses")
    golden(load("usp:padded:ulysses=4").on(wan(), 8).notes, "of usp")
    assert load("ulysses:padded").on(wan(), 7).notes == load("ulysses").on(wan(), 4).notes == ""
