"""Several numbers of ranks: which is the fastest, what more are worth, and what is open."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from helpers.golden import Golden

from spbench.projection.advise.by_ranks import answer, compared, counts_as_data, show_counts
from spbench.projection.advise.project import Projection
from spbench.projection.advise.recommend import Recommendation, recommend
from spbench.projection.costmodel.cluster_file import find as find_cluster
from spbench.projection.costmodel.step_time import Mode, cost
from spbench.projection.dryrun.work import Kernel, Message, Work
from spbench.workload.catalogue import find

H100 = find_cluster("hgx-h100")
WORKLOAD = find("flux.1-dev-small")
LONG = "usp:ulysses=8:across=attention-2d dp=2 cfg=2 pp=2 tp=2"


def step(ranks: int, products: float, sent_bytes: int = 0) -> Work:
    """A share of so many products, and one message."""
    kernel = Kernel(
        kind="gemm",
        phase="forward",
        shape=(1, 4096, 4096, 4096),
        flops=round(137e9 * products / ranks),
        moved_bytes=10**6,
    )
    sent = Message(op="all_gather", phase="forward", axis="s", sent_bytes=sent_bytes)
    return Work(mesh=(("s", ranks),), dtype="bfloat16", kernels={kernel: 1}, messages={sent: 1})


def advised(ranks: int, works: Mapping[str, Work]) -> Recommendation:
    runs = [
        Projection(
            workload=WORKLOAD,
            cluster=H100,
            strategy=name,
            ranks=ranks,
            work=work,
            cost=cost(work, H100, launches_of=name),
        )
        for name, work in works.items()
    ]
    return recommend(runs, H100, Mode())


SCALES = [advised(count, {"a": step(count, 8000), "b": step(count, 9000)}) for count in (8, 16)]
OPEN = [
    advised(8, {"a": step(8, 800, 10**7)}),
    advised(16, {"a": step(16, 800, 32 * 10**8), "b": step(16, 790, 32 * 10**8)}),
]


def test_more_ranks_are_compared_draw_by_draw() -> None:
    """A rate of products that is off is off for both numbers of ranks, and drops out."""
    (more,) = compared(SCALES, Mode())
    assert more.ranks == (8, 16)
    assert 1.8 < more.speedup_low < more.speedup < 2.05
    assert more.sure == 1.0
    assert more.per_device == pytest.approx(more.speedup / 2)


def test_numbers_are_compared_as_they_rise() -> None:
    assert [each.ranks for each in compared(SCALES[::-1], Mode())] == [(8, 16)]


def test_the_answer_says_what_more_ranks_are_worth(
    capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    show_counts(SCALES, {64: "too few ranks"}, ["-w", "w"], Mode())
    golden(capsys.readouterr().out, "clear")
    show_counts(OPEN, {}, ["-w", "w"], Mode())
    golden(capsys.readouterr().out, "open")


def test_data_has_the_answer_and_each_number_of_ranks() -> None:
    data = json.loads(json.dumps(counts_as_data(OPEN, {64: "too few"}, ["-w", "w"], Mode())))
    assert data["answer"] == answer(OPEN)
    assert [each["ranks"] for each in data["by_ranks"]] == [8, 16]
    assert data["cannot"] == {"64": "too few"}
    (more,) = data["more_ranks"]
    assert more["ranks"] == [8, 16]
    first, *_ = more["measurements"]
    assert first["what"].endswith("over 16 ranks of 2 hosts")
    assert first["winners"] == ["the plan on 8 ranks", "the plan on 16 ranks"]
    assert "-g 8 " in more["decides"] and "-g 16 " in more["decides"]
    (clear,) = counts_as_data(SCALES, {}, ["-w", "w"], Mode())["more_ranks"]
    assert clear["decides"] is None


@pytest.mark.parametrize("case", [SCALES, OPEN, SCALES[:1]])
def test_the_first_sentence_has_35_words_at_most(case: list[Recommendation]) -> None:
    """With all axes around a strategy, and settings that make the workload's name long."""
    work = WORKLOAD.model_copy(update={"name": "my-own-model heads=8 " + "block=[a, b] " * 9})
    long = [
        replace(advice, best=replace(advice.best, strategy=LONG, workload=work)) for advice in case
    ]
    assert LONG in answer(long)
    assert len(answer(long).split()) <= 35, answer(long)
