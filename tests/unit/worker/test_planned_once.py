"""What a rank works out of its case before the clock: its plan once, its workload never as JSON."""

from collections import Counter
from typing import Any

import pytest
from helpers.run_on_threads import complaint, run_on_threads

from spbench.strategies import dsp
from spbench.strategies.registry import load
from spbench.workload.catalogue import find
from spbench.workload.workload import Workload

RANKS = 2


@pytest.mark.parametrize("name", ["dsp", "ulysses", "megatron-sp", "ring", "usp"])
def test_a_rank_plans_its_case_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gate, memory, timed and silent steps of one rank all go by the same plan."""
    made: Counter[str] = Counter()
    kind = type(load(name))
    count_calls(made, monkeypatch, kind, "on")
    count_calls(made, monkeypatch, dsp, "cheapest_layout")
    samples = run_on_threads(find("axes-2d", "verify"), name, RANKS)
    assert not complaint(samples)
    assert made["on"] == RANKS
    assert made["cheapest_layout"] == (RANKS if name == "dsp" else 0)


def test_a_workload_that_is_compared_whole_is_never_written_as_json(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reduced workloads, which are made by way of JSON, are made where the whole is too large."""
    written: Counter[str] = Counter()
    count_calls(written, monkeypatch, Workload, "model_dump")
    count_calls(written, monkeypatch, Workload, "model_dump_json")
    assert not complaint(run_on_threads(find("axes-2d", "verify"), "dsp", RANKS))
    assert not written


def count_calls(counted: Counter[str], monkeypatch: pytest.MonkeyPatch, of: Any, name: str) -> None:
    """Counts the calls of the function or method ``name`` of ``of``."""
    original = getattr(of, name)

    def counting(*args: Any, **options: Any) -> Any:
        counted[name] += 1
        return original(*args, **options)

    monkeypatch.setattr(of, name, counting)
