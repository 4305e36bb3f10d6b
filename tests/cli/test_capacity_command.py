"""``spbench capacity``: what it prints, what it refuses, and that its answers were tried."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import pytest
from helpers.command_line import Done, spbench
from helpers.examples import ALL
from helpers.golden import NOW, Golden

from spbench.errors import DONE, SOME_FAILED, UNFIT, USAGE, Failure
from spbench.projection.advise import capacity
from spbench.projection.advise.capacity import Capacity, MemoryQuestion
from spbench.projection.dryrun.trace import work
from spbench.results.capacities import read_capacities
from spbench.strategies.registry import load, meshed
from spbench.workload.catalogue import find, with_settings

DEPTH = "depth=2" if ALL else "depth=1"
SMALL = ("dsp-720m-small", "--set", DEPTH)
LEAST = ("--set", "mode=forward")
"""The least work of a try, where it does not matter what fits."""


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
        grown = with_settings(find(SMALL[0]), [DEPTH, f"{key}={answer['largest']}"])
        memory = work(grown, load(answer["strategy"]), 2, with_memory=True).memory
        assert memory is not None and memory.peak == answer["peak_bytes"]


def test_the_largest_batch_of_a_plan(tmp_path: Path) -> None:
    """Around strategies stand meshes, which samples fill alike; the answer is a dry run's peak."""
    shape = ("depth=2", "microbatches=2")
    flags = ["--mesh", "dp=2", "--mesh", "pp=2", "-g", "4", "--memory", "200MiB", "--json"]
    flags += [word for each in shape for word in ("--set", each)]
    done = spbench(tmp_path, "capacity", SMALL[0], "-s", "ulysses", *flags, torch=True)
    assert done.code == DONE, done.err
    batches = [answer for answer in json.loads(done.out) if answer["grows"] == "batch"]
    assert [answer["strategy"] for answer in batches] == ["ulysses dp=2", "ulysses pp=2"]
    for answer in batches:
        assert answer["largest"] % 2 == 0
        grown = with_settings(find(SMALL[0]), [*shape, f"batch={answer['largest']}"])
        memory = work(grown, meshed(answer["strategy"]), 4, with_memory=True).memory
        assert memory is not None and memory.peak == answer["peak_bytes"] < answer["next_bytes"]


def test_a_dry_run_on_cuda_needs_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """With --memory the device is a GPU's, unless it is named; only ranks that try need one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    words = ("-g", "2", "--memory", "100MiB", *LEAST, "--json")
    answers = [asked(tmp_path, "ulysses", *words, *more) for more in ((), ("--device", "cuda"))]
    assert {each.code for each in answers} == {DONE}
    by_default, on_cuda = (
        [{k: v for k, v in row.items() if k != "started_utc"} for row in json.loads(each.out)]
        for each in answers
    )
    assert by_default == on_cuda
    refused = asked(tmp_path, "ulysses", *words, "--device", "cuda", "--measure")
    assert refused.code == USAGE
    golden(refused.err)


@pytest.mark.parametrize(
    ("settings", "held", "is_warned"),
    [
        ((), "train, no checkpointing, float32, no optimizer", True),
        (("optimizer=adamw",), "train, no checkpointing, float32, adamw", False),
        (("checkpointing=full",), "train, full checkpointing, float32, no optimizer", True),
        (("mode=forward", "dtype=bfloat16"), "forward, no checkpointing, bfloat16", False),
    ],
)
def test_the_heading_says_what_is_held(
    tmp_path: Path, settings: tuple[str, ...], held: str, is_warned: bool
) -> None:
    """Workload, mode, checkpointing, type and optimizer; training without one is warned of."""
    given = [word for each in settings for word in ("--set", each)]
    done = asked(tmp_path, "ulysses", "-g", "2", "--memory", "100MiB", *given)
    heading = f"a step of {SMALL[0]} {DEPTH}: {held},\nwithin 92 MiB of a rank, by dry runs"
    assert done.out.startswith(heading)
    assert ("AdamW" in done.out) is is_warned


def test_sizes_are_kept_and_drawn(tmp_path: Path, golden: Golden) -> None:
    """A folder keeps the sizes of several commands; plot draws them, also beside no launches."""
    for count in ("1", "2"):
        words = ("-g", count, "--memory", "400MiB", "--out", "sizes", *LEAST)
        done = asked(tmp_path, "ulysses", *words)
        assert done.code == DONE, done.err
        assert done.err.count("\n") == 2
    golden(done.err, hide=NOW)
    kept = read_capacities(tmp_path / "sizes")
    assert kept["ranks"].tolist() == [1, 1, 2, 2]
    assert set(kept["kind"]) == {"dry_run"} and kept["batch"].isna().tolist() == [True, False] * 2
    for flags in (("--kind", "capacity"), ("-g", "2")):
        drawn = spbench(tmp_path, "plot", "sizes", "--format", "svg", *flags)
        assert (drawn.code, drawn.out) == (DONE, "sizes/plots/capacity.svg\n"), drawn.err
    for words, said in (
        (("plot", "sizes", "--kind", "memory"), "holds capacities alone"),
        (("plot", "sizes", "-s", "dsp"), "the run has no 'dsp'"),
        (("plot", "sizes", "--page", "2"), "--page 2: the last page is 1"),
        (("compare", "sizes"), "holds capacities alone"),
    ):
        refused = spbench(tmp_path, *words)
        assert refused.code == USAGE and said in refused.err, refused.err
    (tmp_path / "none").mkdir()
    golden(spbench(tmp_path, "plot", "none", "--kind", "capacity").err, "a folder without sizes")


def test_a_damaged_file_is_told_before_anything_is_asked(tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "sizes").mkdir()
    (tmp_path / "sizes" / "capacity.csv").write_text("nothing\n")
    flags = ("-g", "2", "--memory", "400MiB", "--out", "sizes")
    done = spbench(tmp_path, "capacity", "dsp-720m", "-s", "ulysses", *flags)
    assert done.code == UNFIT
    golden(done.err)


def test_a_budget_that_holds_nothing_says_so(tmp_path: Path, golden: Golden) -> None:
    done = asked(tmp_path, "dsp", "-g", "2", "--memory", "1MiB")
    assert done.code == SOME_FAILED
    golden(done.out)


def test_answers_before_a_failure_are_shown_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def answers(asked: Sequence[MemoryQuestion], *_: object) -> Iterator[Capacity]:
        place = {"strategy": "ulysses", "ranks": asked[0].ranks, "grows": asked[0].grows}
        yield Capacity(**place, largest=3, peak_bytes=5, next_bytes=None)  # type: ignore[arg-type]
        raise Failure("hang: nothing moved")

    monkeypatch.setattr(capacity, "tried", answers)
    words = ("-g", "2", "--memory", "1GB", "--measure", "--device", "cpu", "--out", "sizes")
    done = asked(tmp_path, "ulysses", *words)
    assert done.code == USAGE
    golden(done.err, hide=NOW)
    assert "ulysses" in done.out
    assert read_capacities(tmp_path / "sizes")["largest"].tolist() == [3]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--memory", "80"), "write 80GB, 80GiB or 500MiB"),
        (("--memory", "1GB", "--axis", "nowhere"), "has the axes time, space"),
        (("--device", "cpu"), "give it as --memory 80GB"),
        (("--memory", "1GB", "-g", "70000"), "use 1 to 65536"),
        (("--memory", "1GB", "--mesh", "pp=2"), "--set microbatches=4"),
        (("--memory", "1GB", "--mesh", "pq=2"), "axes are dp, cfg, pp, tp"),
        (("--memory", "1GB", "--measure", "-g", "5000", "--device", "cpu"), "use 1 to 1024"),
    ],
)
def test_what_cannot_be_asked_is_refused(tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
    done = asked(tmp_path, "dsp", *flags)
    assert done.code == USAGE
    assert said in done.err
