"""``spbench capacity``: what it prints, what it refuses, and that its answers were tried."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from helpers.command_line import Done, spbench
from helpers.examples import ALL

from spbench.errors import DONE, SOME_FAILED, USAGE
from spbench.projection.trace import work
from spbench.strategies.registry import load
from spbench.workload.catalogue import find, with_settings

SMALL = ("dsp-720m-small", "--set", "depth=2")


def asked(folder: Path, strategies: str, *flags: str) -> Done:
    return spbench(folder, "capacity", *SMALL, "-s", strategies, *flags, torch=True)


def test_the_largest_batch_fits_and_the_next_does_not(tmp_path: Path) -> None:
    """A short run asks of one strategy."""
    names = ["dsp", "ulysses"] if ALL else ["ulysses"]
    done = asked(tmp_path, ",".join(names), "-g", "2", "--memory", "400MiB", "--json")
    assert done.code == DONE
    answers = json.loads(done.out)
    expected = list(product(("batch", "space"), names))
    assert [(x["grows"], x["strategy"]) for x in answers] == expected
    for answer in answers:
        budget = 0.92 * 400 * 2**20
        assert answer["budget_bytes"] == pytest.approx(budget)
        assert answer["peak_bytes"] <= budget < answer["next_bytes"]
        key = "batch" if answer["grows"] == "batch" else "axes.space"
        grown = with_settings(find(SMALL[0]), ["depth=2", f"{key}={answer['largest']}"])
        memory = work(grown, load(answer["strategy"]), 2, with_memory=True).memory
        assert memory is not None and memory.peak == answer["peak_bytes"]


def test_a_budget_that_holds_nothing_says_so(tmp_path: Path) -> None:
    done = asked(tmp_path, "dsp", "-g", "2", "--memory", "1MiB")
    assert done.code == SOME_FAILED
    assert "batch 1 does not fit" in done.out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--memory", "80"), "write 80GB, 80GiB or 500MiB"),
        (("--memory", "1GB", "--axis", "nowhere"), "has the axes time, space"),
        (("--device", "cpu"), "give it as --memory 80GB"),
        (("--memory", "1GB", "-g", "70000"), "use 1 to 65536"),
        (("--memory", "1GB", "--measure", "-g", "5000", "--device", "cpu"), "use 1 to 1024"),
    ],
)
def test_what_cannot_be_asked_is_refused(tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
    done = asked(tmp_path, "dsp", *flags)
    assert done.code == USAGE
    assert said in done.err
