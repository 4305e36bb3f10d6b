"""Files of clusters: what is packaged, and what is refused with its line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.golden import Golden
from pydantic import BaseModel, ValidationError

from spbench.projection.costmodel.constants import Constant, Curve, Sourced, interpolated
from spbench.projection.costmodel.hardware import Cluster, find
from spbench.workload.config_names import configs, names
from spbench.workload.yaml_file import WorkloadError

TEXT = (configs() / "clusters" / "dgx-a100.yaml").read_text()


def constants(value: Any) -> Iterator[Sourced]:
    """Every constant and curve inside a model."""
    if isinstance(value, Sourced):
        yield value
    elif isinstance(value, BaseModel):
        for field in type(value).model_fields:
            yield from constants(getattr(value, field))
    elif isinstance(value, dict):
        for each in value.values():
            yield from constants(each)
    elif isinstance(value, tuple):
        for each in value:
            yield from constants(each)


@pytest.mark.parametrize("name", names("clusters"))
def test_every_packaged_cluster_names_its_sources(name: str) -> None:
    """Each constant's source is a key of the file's sources, or a sentence."""
    cluster = find(name)
    assert cluster.name == name
    every = list(constants(cluster))
    assert len(every) > 20
    assert [each.source for each in every if " " not in each.source] == [
        each.source for each in every if each.source in cluster.sources
    ]


@pytest.mark.parametrize(
    ("was", "now", "message"),
    [
        ("link: nvlink", "link: nvlnk", "4: link cannot be 'nvlnk'"),
        ("launch_us:", "lunch_us:", "unknown key 'lunch_us'. Did you mean 'launch_us'?"),
        ("kind: spec", "kind: guess", "cannot be 'guess'"),
        ("ranks: 8", "ranks: 0", "ranks is 0"),
        ("value: 80,", "value: -80,", "value is -80"),
        ("      p2p:", "      send:", "cannot be 'send'"),
        ("at: [0.1, 1,", "at: [1, 1,", "the sizes in 'at' must rise"),
        ("at: [0.1, 1,", "at: [1,", "3 sizes in 'at', 4 in 'values'"),
    ],
)
def test_a_wrong_cluster_is_refused_with_its_line(
    tmp_path: Path, was: str, now: str, message: str
) -> None:
    """The sentence names file, line, value and what would work."""
    path = tmp_path / "mine.yaml"
    assert was in TEXT
    path.write_text(TEXT.replace(was, now, 1))
    with pytest.raises(WorkloadError) as refusal:
        find(str(path))
    assert message in str(refusal.value)
    assert str(refusal.value).startswith(f"{path}:")


def test_levels_join_whole_blocks(tmp_path: Path, golden: Golden) -> None:
    """An outer level of any number cannot lie inside another, nor can one cut a block."""
    data = find("l20-pcie").model_dump(by_alias=True)
    data["levels"][1]["ranks"] = 6
    with pytest.raises(ValidationError) as invalid:
        Cluster.model_validate(data)
    golden(invalid.value.errors()[0]["msg"])


def test_an_unknown_cluster_gets_the_nearest_name(golden: Golden) -> None:
    """A mistyped name is answered with the name that was meant."""
    with pytest.raises(WorkloadError) as refused:
        find("hgx-h10")
    golden(refused.value)


def test_a_curve_goes_through_its_points_and_is_flat_outside() -> None:
    """Between points it is straight over logarithms."""
    curve = Curve(at=(1.0, 100.0), values=(2.0, 8.0), source="a test", kind="measured")
    assert [curve(size) for size in (0.1, 1, 100, 1e6)] == pytest.approx([2, 2, 8, 8])
    assert interpolated(curve.at, curve.values, 10) == pytest.approx(4)


def test_a_constant_without_a_spread_has_that_of_its_kind() -> None:
    """A vendor's number is further off than a measured one."""
    own = Constant(value=1.0, source="x", kind="spec", spread=1.02)
    assert own.factor == 1.02
    usual = {
        kind: Constant(value=1.0, source="x", kind=kind).factor  # type: ignore[arg-type]
        for kind in ("measured", "spec", "inferred")
    }
    assert usual["measured"] < usual["spec"] < usual["inferred"]


def test_a_machine_that_ranks_share_is_as_timed_with_as_many(tmp_path: Path) -> None:
    text = (configs() / "clusters" / "hgx-h100.yaml").read_text(encoding="utf-8")
    device = re.search(r"^device:\n(?:  .*\n)+", text, re.M)
    assert device is not None
    part = "".join(f"    {line}\n" for line in device[0].splitlines()).replace("H100", "half", 1)
    part = f"  - ranks: 2\n{part}"
    path = tmp_path / "shared.yaml"
    path.write_text(f"{text.rstrip()}\non_ranks:\n{part}", encoding="utf-8")
    cluster = find(str(path))
    (shared,) = cluster.on_ranks
    assert shared.device != cluster.device
    for ranks in (1, 2):
        assert cluster.used_by(ranks).device == shared.device
        assert cluster.used_by(ranks).levels == cluster.levels
    assert cluster.used_by(3) == cluster
