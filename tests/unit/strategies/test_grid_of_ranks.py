"""Attention2D takes the rows of ranks that send the fewest bytes, alone and across groups."""

from __future__ import annotations

from typing import Any

import pytest

from spbench.strategies.registry import in_mesh, load
from spbench.workload.catalogue import find
from spbench.workload.mesh import CaseMesh, Mesh
from spbench.workload.traffic import waited_bytes
from spbench.workload.workload import Workload


def workload(**fields: Any) -> Workload:
    plain = {"name": "w", "axes": {"sequence": 96}, "hidden": 64, "heads": 8, "depth": 2}
    block = [{"attention": "sequence"}, {"mlp": 2}]
    return Workload.model_validate(plain | {"block": block} | fields)


SHAPES = {
    "all keys": workload(),
    "two key heads": workload(kv_heads=2),
    "one key head": workload(kv_heads=1),
    "forward": workload(kv_heads=4, mode="forward"),
    "checkpointed": workload(kv_heads=4, checkpointing="full"),
    "causal": workload(kv_heads=2, block=[{"attention": "sequence", "causal": True}]),
    "two axes": workload(
        axes={"time": 24, "space": 32}, block=[{"attention": "time"}, {"attention": "space"}]
    ),
    "text": workload(text=12, kv_heads=2),
}


def sent(name: str, shape: Workload, ranks: int) -> float:
    """Bytes that a step waits for; infinite where the strategy cannot run."""
    strategy = load(name)
    if strategy.misfit(shape) or strategy.why_not(shape, ranks):
        return float("inf")
    return waited_bytes(strategy.on(shape, ranks).traffic)


def rows_of(ranks: int) -> list[int]:
    return [rows for rows in range(1, ranks + 1) if ranks % rows == 0]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8, 12, 16])
@pytest.mark.parametrize("name", SHAPES)
def test_no_other_rows_send_less(name: str, ranks: int) -> None:
    """Whatever the mask, the key heads and what is recomputed."""
    shape = SHAPES[name]
    least = min(sent(f"attention-2d:rows={rows}", shape, ranks) for rows in rows_of(ranks))
    assert sent("attention-2d", shape, ranks) == least


@pytest.mark.parametrize("name", ["two key heads", "all keys", "causal"])
@pytest.mark.parametrize(
    "groups", ["usp:ulysses=2:across=attention-2d", "megatron-sp:tp=2:across=attention-2d"]
)
def test_no_other_rows_send_less_across_groups(groups: str, name: str) -> None:
    """Of the heads that a rank of a group has."""
    shape = SHAPES[name]
    kept = shape.model_copy(update={"kv_heads": shape.key_heads})
    least = min(sent(f"{groups}:rows={rows}", kept, 16) for rows in rows_of(8))
    assert sent(groups, kept, 16) == least


def test_few_key_heads_are_gathered_rather_than_queries() -> None:
    """Two key heads of eight on two ranks: a row a rank sends a quarter of what a column a rank
    does, as many bytes as a gather of keys and values, and another for backward."""
    shape = SHAPES["two key heads"]
    assert load("attention-2d").on(shape, 2).mesh == Mesh.of({"rows": 2, "columns": 1})
    assert sent("attention-2d:rows=1", shape, 2) / sent("attention-2d", shape, 2) > 4
    assert sent("attention-2d", shape, 2) == sent("kv-gather:gather-again", shape, 2)


def test_as_square_as_can_be_where_keys_are_as_many() -> None:
    """A square of ranks that is one stays so."""
    assert load("attention-2d").on(find("dsp-720m"), 16).mesh == Mesh.of({"rows": 4, "columns": 4})
    assert load("attention-2d:rows=2").on(find("dsp-720m"), 16).mesh == Mesh.of(
        {"rows": 2, "columns": 8}
    )


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("attention-2d", "attention-2d:rows=4"),
        ("usp:ulysses=2:across=attention-2d", "usp:ulysses=2:across=attention-2d:rows=2"),
        ("megatron-sp:tp=2:across=attention-2d", "megatron-sp:tp=2:across=attention-2d:rows=2"),
    ],
)
def test_what_was_chosen_is_written_out(name: str, option: str) -> None:
    """A reduced workload is then proved with the same groups."""
    shape = SHAPES["all keys"]
    assert load(name).on(shape, 8).strategy == load(option)
    guided = shape.model_copy(update={"guidance": 2})
    assert in_mesh(name, CaseMesh(cfg=2)).on(guided, 16).strategy.own == load(option)  # type: ignore[attr-defined]
