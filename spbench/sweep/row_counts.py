"""Columns of a row that count: bytes and calls of one step, and the mesh that they went over."""

from collections.abc import Sequence
from typing import Any

from spbench.results.hand_over import Sample
from spbench.workload.mesh import Mesh

COUNTS = (
    ("sent_bytes_{}", "sent_by_phase"),
    ("predicted_bytes_{}", "predicted_by_phase"),
    ("{}_bytes", "sent_by_op"),
)


def counted_columns(samples: Sequence[Sample]) -> dict[str, Any]:
    """Bytes and calls, also those that are not what was predicted; nothing if not counted."""
    columns: dict[str, Any] = {}
    for column, field in COUNTS:
        for name, sent in _busiest(samples, field).items():
            columns[column.format(name)] = sent
    calls = [sample.collectives or {} for sample in samples]
    # All ranks call the same, except for parts that are empty.
    busiest = max(calls, key=lambda of_rank: sum(of_rank.values()))
    return columns | {"collectives": _in_words(busiest)} | _mesh(samples)


def _mesh(samples: Sequence[Sample]) -> dict[str, str]:
    """Nothing where all ranks are one group."""
    mesh = Mesh.of(samples[0].mesh)
    if len(mesh.axes) < 2:
        return {}
    hosts = {sample.rank: sample.host for sample in samples}
    return {
        "mesh": str(mesh),
        "bytes_by_mesh_axis": _in_words(_busiest(samples, "sent_by_axis")),
        "mesh_across_nodes": " ".join(mesh.across(hosts)),
    }


def _busiest(samples: Sequence[Sample], field: str) -> dict[str, int]:
    """The most that a rank sends of each kind; nothing where none was counted."""
    by_rank = [counts for sample in samples if (counts := getattr(sample, field)) is not None]
    names = dict.fromkeys(name for counts in by_rank for name in counts)
    return {name: max(counts.get(name, 0) for counts in by_rank) for name in names}


def _in_words(counts: dict[str, int]) -> str:
    return " ".join(f"{name}={n}" for name, n in counts.items())
