"""RSA's largest batch and largest length, by dry runs and by the formulas of the paper.

What a rank holds beyond the paper's formula is named, and taken off for a second answer: the whole
dK and dV that the all-reduces of its backward sum, and a Linformer projection for each layer, for
keys and for values, in place of one that layers share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from markdown import table
from paper_facts import facts
from scipy.optimize import brentq

from spbench.projection.advise.capacity import MemoryQuestion, Peak, capacity_of
from spbench.projection.costmodel.cluster_file import find as find_cluster
from spbench.results.capacities import BATCH
from spbench.workload.catalogue import find, with_settings
from spbench.workload.fields import DTYPE_BYTES
from spbench.workload.mesh import NO_MESH, CaseMesh
from spbench.workload.workload import Workload

OWN, BASELINE = "rsa", "megatron-tp"
RESERVE = 0.08
"""Part of a device's memory that dry runs do not see, as in 'spbench capacity'."""
SEQUENCE = "sequence"
MOST_RANKS = 64
TODAY: Sequence[tuple[str, str, str, tuple[str, ...]]] = (
    ("`rsa`, as published", OWN, "", ()),
    ("`rsa`, weights shared out (`zero=3`)", OWN, "", ("zero=3",)),
    ("`ring`, which holds no scores, `zero=3`", "ring", "", ("zero=3",)),
    (
        "the same, blocks computed again (`checkpointing=full`)",
        "ring",
        "",
        ("zero=3", "checkpointing=full"),
    ),
    (
        "the same, 16 groups of 4 (`--mesh dp=16`)",
        "ring",
        "dp=16",
        ("zero=3", "checkpointing=full"),
    ),
    (
        "`megatron-sp`, the same groups and means",
        "megatron-sp",
        "dp=16",
        ("zero=3", "checkpointing=full"),
    ),
    (
        "`ring`, 4 stages of 16 (`--mesh pp=4`), 8 microbatches, blocks computed again",
        "ring",
        "pp=4",
        ("microbatches=8", "checkpointing=full"),
    ),
)
"""Means that the paper did not have: name, strategy, what is around it, fields of the workload."""
ADAMW_COPIES = 3
"""Weights and their two moments; gradients live a bucket at a time."""
Extra = Callable[[Workload], float]


def budget_bytes() -> float:
    """What a step may hold of a device."""
    name = facts("rsa")["setup"]["cluster"]
    return find_cluster(name).device.memory_gb.value * 1e9 * (1 - RESERVE)


def whole_gradients(workload: Workload) -> float:
    """Bytes of the whole dK and dV."""
    return 2.0 * workload.activation_bytes


def own_projections(workload: Workload) -> float:
    """Bytes of Linformer's projections, but for one that all layers share for keys and values."""
    (attention,) = workload.attentions[:1]
    assert attention.projection is not None
    one = workload.tokens * attention.projection * DTYPE_BYTES[workload.dtype]
    return float(ADAMW_COPIES * one * (2 * workload.depth - 1))


@final
@dataclass(frozen=True)
class Question:
    """What grows, of which workload, on how many ranks of which strategy."""

    workload: str
    strategy: str
    ranks: int
    grows: str
    batch: int | None = None
    without: str = ""
    """Name of a function that says what is taken off; blank: nothing."""
    mesh: str = ""
    """Around the strategy; blank: it has all ranks."""
    settings: tuple[str, ...] = ()
    """Of the workload."""


EXTRAS: dict[str, Extra] = {"whole_gradients": whole_gradients, "own_projections": own_projections}


def largest(asked: Question) -> int:
    """The largest size within the budget."""
    settings = ["optimizer=adamw", *([f"batch={asked.batch}"] if asked.batch else [])]
    settings += asked.settings
    question = MemoryQuestion(
        workload=with_settings(find(asked.workload), settings),
        strategy=asked.strategy,
        ranks=asked.ranks,
        grows=asked.grows,
        mesh=CaseMesh.parse(asked.mesh) if asked.mesh else NO_MESH,
    )

    def peak(size: int) -> Peak:
        found = question.foreseen("cuda", size)
        if found.held_bytes is None:
            return found
        extra = EXTRAS[asked.without](question.grown(size)) if asked.without else 0.0
        return Peak(held_bytes=round(found.held_bytes - extra))

    found = capacity_of(
        peak,
        budget_bytes(),
        strategy=asked.strategy,
        ranks=asked.ranks,
        grows=asked.grows,
        step=question.step,
    )
    assert found.largest is not None
    return found.largest


def questions() -> list[Question]:
    """All that the tables ask for, each once."""
    asked = []
    for row in facts("rsa")["ratios"]:
        sized = _sized(row)
        asked.append(Question(strategy=BASELINE, ranks=row["over"], **sized))
        asked += [
            Question(strategy=OWN, ranks=row["ranks"], without=without, **sized)
            for without in ("", "whole_gradients")
        ]
    asked += [question for _, of_means in _today() for question in of_means]
    upper = facts("rsa")["linformer"]
    asked += [
        Question(upper["workload"], OWN, ranks, SEQUENCE, upper["batch"], without)
        for without in ("", "own_projections")
        for ranks in (1, upper["ranks"])
    ]
    return list(dict.fromkeys(asked))


def _sized(row: dict[str, Any]) -> dict[str, Any]:
    """What grows in a published ratio, of which workload."""
    return {"workload": row["workload"], "grows": row["grows"], "batch": row.get("batch")}


def by_formula(row: dict[str, Any], *, of_baseline: bool) -> float:
    """The largest size by the memory formulas of the paper, in float32 on the whole device."""
    workload = find(row["workload"])
    elements = find_cluster(facts("rsa")["setup"]["cluster"]).device.memory_gb.value * 1e9
    elements /= DTYPE_BYTES["float32"]
    ranks = row["over"] if of_baseline else row["ranks"]
    held = held_by_tensor_parallelism if of_baseline else held_by_rsa

    def left(size: float) -> float:
        batch = size if row["grows"] == BATCH else row["batch"]
        length = facts("rsa")["setup"]["sequence"] if row["grows"] == BATCH else size
        shape = (workload.hidden, workload.heads, batch, length, ranks)
        return elements - workload.depth * held(*shape)

    return float(brentq(left, 1.0, 1e6))


def held_by_tensor_parallelism(
    hidden: int, heads: int, batch: float, length: float, ranks: int
) -> float:
    """Elements of one layer, attention and mlp, with A Z = H."""
    width = batch * length * hidden
    return 48 * hidden**2 / ranks + (8 / ranks + 2) * width + batch * heads * length**2 / ranks


def held_by_rsa(hidden: int, heads: int, batch: float, length: float, ranks: int) -> float:
    """Elements of one layer, attention and mlp, with A Z = H."""
    width = batch * length * hidden
    return 48 * hidden**2 + (10 * width + batch * heads * length**2) / ranks


def ratios_table(answers: dict[Question, int]) -> str:
    """Each published ratio beside ours and that of the paper's own formulas."""
    head = ("", "published", "dry runs", "without whole dK, dV", "by the paper's formulas")
    rows = []
    for row in facts("rsa")["ratios"]:
        sized = _sized(row)
        base = answers[Question(strategy=BASELINE, ranks=row["over"], **sized)]
        own, less = (
            answers[Question(strategy=OWN, ranks=row["ranks"], without=each, **sized)]
            for each in ("", "whole_gradients")
        )
        formula = by_formula(row, of_baseline=False) / by_formula(row, of_baseline=True)
        what = "batch" if row["grows"] == BATCH else "length"
        name = f"{row['workload']}, {what}, {row['ranks']} GPUs over {row['over']}"
        ours = f"{own / base:.1f} ({own:,} over {base:,})"
        rows.append([name, f"{row['ratio']:.1f}", ours, f"{less / base:.1f}", f"{formula:.1f}"])
    return table(head, rows)


def _on_most_ranks() -> list[dict[str, Any]]:
    """The published ratios of the largest runs."""
    return [row for row in facts("rsa")["ratios"] if row["ranks"] == MOST_RANKS]


def _today() -> list[tuple[str, list[Question]]]:
    """What is asked of each of today's means: all published sizes on most ranks."""
    return [
        (
            name,
            [
                Question(
                    strategy=strategy,
                    ranks=row["ranks"],
                    mesh=mesh,
                    settings=settings,
                    **_sized(row),
                )
                for row in _on_most_ranks()
            ],
        )
        for name, strategy, mesh, settings in TODAY
    ]


def today_table(answers: dict[Question, int]) -> str:
    """The published sizes by today's means."""
    rows = _on_most_ranks()
    head = [f"{row['workload']}, {'batch' if row['grows'] == BATCH else 'length'}" for row in rows]
    first = [
        f"{answers[Question(strategy=BASELINE, ranks=row['over'], **_sized(row))]:,}"
        for row in rows
    ]
    of_means = [
        [name, *(f"{answers[question]:,}" for question in asked)] for name, asked in _today()
    ]
    return table(["", *head], [[f"`{BASELINE}` as published, on 12 and 16", *first], *of_means])


def linformer_table(answers: dict[Question, int]) -> str:
    """The largest length with Linformer on one device and on many."""
    upper = facts("rsa")["linformer"]
    rows = []
    for without, name in (
        ("", "projections of each layer, for keys and for values"),
        ("own_projections", "one that all layers share"),
    ):
        one, many = (
            answers[Question(upper["workload"], OWN, n, SEQUENCE, upper["batch"], without)]
            for n in (1, upper["ranks"])
        )
        rows.append([name, f"{one:,}", f"{many:,}", f"{many / one:.1f}"])
    published = [f"{upper['tokens']:,}", f"over {upper['over_one_device']}"]
    head = ("tokens", "1 GPU", f"{upper['ranks']} GPUs", "ratio")
    return table(head, [["published", "", *published], *rows])


def table_4_gpu_hours(columns: Sequence[str] = ("tp", "sp")) -> float:
    """GPU hours of table 4's cases, from its own rates."""
    part, iterations = facts("rsa")["table_4"], facts("rsa")["setup"]["iterations"]
    seconds = [
        part["stages"] * row["ranks"] * iterations * row["batch"] * part["sequence"] / row[each]
        for row in part["rows"]
        for each in columns
        if row[each]
    ]
    return sum(seconds) / 3600
