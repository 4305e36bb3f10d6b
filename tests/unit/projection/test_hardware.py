"""Files of clusters: what is packaged, and what is refused with its line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.golden import Golden
from pydantic import BaseModel, ValidationError

from spbench.projection.costmodel.cluster_file import find
from spbench.projection.costmodel.constants import Constant, Curve, Sourced, interpolated
from spbench.projection.costmodel.hardware import Cluster
from spbench.projection.costmodel.message_cost import message_cost
from spbench.projection.dryrun.work import Message
from spbench.workload.config_names import configs, names
from spbench.workload.mesh import Mesh
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
        ("like: nvlink", "like: nvlnk", "like: unknown cluster 'nvlnk'"),
        ("like: nvlink", "like: nvlink\nlink: nvlnk", "4: link cannot be 'nvlnk'"),
        ("memory_gb:", "memry_gb:", "unknown key 'memry_gb'. Did you mean 'memory_gb'?"),
        ("kind: spec", "kind: guess", "cannot be 'guess'"),
        ("  nvlink:\n", "  nvlink:\n    ranks: 0\n", "ranks is 0"),
        ("value: 80,", "value: -80,", "value is -80"),
        ("      p2p:", "      send:", "cannot be 'send'"),
        ("shape: messages", "shape: mesages", "shape 'mesages' is not one of"),
        ("d128:", "large:", "'large' is no head size"),
        ("value: 235,", "value: fast,", "value: 'fast' is no rate"),
        (
            "value: 235, shape: messages",
            "at: [1, 1], values: [2, 3]",
            "the sizes in 'at' must rise",
        ),
        (
            "value: 235, shape: messages",
            "at: [1], values: [2, 3]",
            "1 sizes in 'at', 2 in 'values'",
        ),
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
    device = find("hgx-h100").device.model_copy(update={"name": "half"})
    part = {"ranks": 2, "device": device.model_dump(mode="json", exclude_defaults=True)}
    mine = {"version": 1, "name": "shared", "like": "hgx-h100", "on_ranks": [part]}
    path = tmp_path / "shared.yaml"
    path.write_text(yaml.safe_dump(mine), encoding="utf-8")
    cluster = find(str(path))
    (shared,) = cluster.on_ranks
    assert shared.device != cluster.device
    for ranks in (1, 2):
        assert cluster.used_by(ranks).device == shared.device
        assert cluster.used_by(ranks).levels == cluster.levels
    assert cluster.used_by(3) == cluster


def test_a_file_of_a_few_lines_is_another_one_but_for_them(tmp_path: Path) -> None:
    """What is like another cluster has all of it, but what it gives itself, with its source."""
    path = tmp_path / "mine.yaml"
    faster = "{value: 400, shape: messages, source: nccl-tests, kind: measured}"
    path.write_text(
        "version: 1\nname: mine\nlike: hgx-h100\nlevels:\n  nvlink:\n    collectives:\n"
        f"      all_to_all: {{gb_per_s: {faster}}}\nsources: {{nccl-tests: here}}\n"
    )
    mine, other = find(str(path)), find("hgx-h100")
    assert mine.device == other.device
    assert mine.levels[1] == other.levels[1]
    (own, *_), (theirs, *_) = mine.levels, other.levels
    assert own.collectives["p2p"] == theirs.collectives["p2p"]
    rates = own.collectives["all_to_all"]
    assert rates.gb_per_s.values[-1] == 400
    assert rates.gb_per_s.factor == 1.1  # of what is measured, not what the other's file says
    assert rates.latency_us == theirs.collectives["all_to_all"].latency_us


def test_another_constant_has_a_source_of_its_own(tmp_path: Path) -> None:
    """A figure that is laid over another one never keeps the other's source."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        "version: 1\nname: mine\nlike: hgx-h100\ndevice:\n  memory_gb: {value: 94, kind: spec}\n"
    )
    with pytest.raises(WorkloadError, match=r"mine.yaml:5: device.memory_gb .*'source'"):
        find(str(path))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("levels: {nvlink: 5}", "levels.nvlink is 5"),
        ("levels: {nvlink: {collectives: 7}}", "levels.nvlink.collectives is 7"),
        ("levels: {nvlink: {collectives: {p2p: 7}}}", "levels.nvlink.collectives.p2p is 7"),
        ("levels: {nvlink: {latency: 3}}", "levels.nvlink.latency is 3"),
        ("levels: {nvlink: {ranks: many}}", "ranks is 'many'"),
        ("device: {attention: {cuDNN: 7}}", "device.attention.cuDNN is 7"),
        ("device: {attention: 7}", "attention is 7"),
        ("device: 7", "device is 7"),
        ("on_ranks: [7]", "on_ranks.0"),
        ("shapes: 7", "shapes is 7"),
        ("shapes: {messages: 7}", "shape messages: give sizes"),
        (
            "shapes: {messages: {at: [1, 2], parts: [1], source: mine}}",
            "shape messages: give sizes",
        ),
        ("like: 7", "'7' is no name"),
        ("like: ./nowhere.yaml", "No such file"),
    ],
)
def test_a_part_of_another_form_is_refused(tmp_path: Path, part: str, message: str) -> None:
    """A number where keys belong, or a shape without sizes: a sentence, never a crash."""
    path = tmp_path / "mine.yaml"
    like = "" if part.startswith("like") else "like: hgx-h100\n"
    path.write_text(f"version: 1\nname: mine\n{like}{part}\n")
    with pytest.raises(WorkloadError) as refusal:
        find(str(path))
    assert message in str(refusal.value)


def test_files_that_are_like_each_other_are_refused(tmp_path: Path) -> None:
    for name, other in (("one", "two"), ("two", "one")):
        text = f"version: 1\nname: {name}\nlike: ./{other}.yaml\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    with pytest.raises(WorkloadError, match="in a circle"):
        find(str(tmp_path / "one.yaml"))


@pytest.mark.parametrize("name", names("clusters"))
def test_a_packaged_cluster_is_short(name: str) -> None:
    """What is common stands in a family, or in the cluster that it is like."""
    text = (configs() / "clusters" / f"{name}.yaml").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40


def test_a_mesh_of_links_gives_a_smaller_group_fewer_of_them() -> None:
    """Of eight GPUs with a link to each other, two use one of seven; a shift always uses one."""
    cluster = find("mi300x")
    took = {
        (op, ranks): message_cost(
            Message(op=op, phase="forward", axis="all", sent_bytes=700_000_000),
            Mesh((("all", ranks),)),
            cluster,
            ["all"],
        ).seconds
        for op in ("all_to_all", "p2p")
        for ranks in (2, 8)
    }
    assert took["all_to_all", 2] / took["all_to_all", 8] == pytest.approx(7, rel=0.15)
    assert took["p2p", 2] == pytest.approx(took["p2p", 8], rel=0.01)
