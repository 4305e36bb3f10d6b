"""What papers measured stands beside the same work on as many ranks, and beside nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.example_rows import lines_of, row

from spbench.analysis.published_values import published_sizes, published_tokens_per_s
from spbench.results.capacities import SizedWork

SAME: dict[str, Any] = {
    "workload": "dsp-720m",
    "axes": "time=128xspace=1024",
    "batch": 1,
    "mode": "train",
    "world_size": 4,
}


def test_a_rate_is_of_the_same_case() -> None:
    """Samples a second, times the tokens of a sample."""
    known = published_tokens_per_s(row("dsp", **SAME))
    assert known is not None and known.value == pytest.approx(0.95 * 128 * 1024)
    assert known.source == "DSP, arXiv 2403.10266, on H800"
    (line,) = lines_of([row("ulysses", step_ms=1.0, **SAME)])
    assert line.published is not None
    assert line.published.value == pytest.approx(0.501 * 128 * 1024)


@pytest.mark.parametrize(
    "other",
    [
        {"workload": "dsp-3b"},
        {"axes": "time=128xspace=4096"},
        {"batch": 2},
        {"mode": "forward"},
        {"world_size": 8},
        {"strategy": "ring"},
    ],
)
def test_another_case_has_no_rate(other: dict[str, Any]) -> None:
    assert published_tokens_per_s(row(**{"strategy": "dsp", **SAME, **other})) is None


def test_sizes_are_of_the_same_question() -> None:
    """Ratios to the baseline; the length with Linformer by itself."""

    def sizes(**other: Any) -> dict[tuple[str, int], float]:
        known: dict[str, Any] = {
            "workload": "bert-base-linformer",
            "axes": "",
            "batch": 4,
            "dtype": "float32",
            "mode": "train",
            "checkpointing": "none",
            "optimizer": "adamw",
            "guidance": "",
            "grows": "sequence",
            "budget_bytes": 14_720_000_000,
            "kind": "dry_run",
            "gpu": "",
        }
        found = published_sizes(SizedWork(**{**known, **other}))
        return {case: each.value for case, each in found.items()}

    assert sizes() == {("rsa", 32): 114_000}
    assert sizes(workload="bert-base", batch=64) == {("rsa", 64): 3.0, ("rsa", 16): 1.4}
    large = {"workload": "bert-large", "axes": "sequence=512", "grows": "batch", "batch": None}
    assert sizes(**large) == {("rsa", 64): 10.2, ("rsa", 16): 2.7}
    assert sizes(**{**large, "axes": "sequence=1024"}) == {}
    assert sizes(budget_bytes=10**9) == {}
