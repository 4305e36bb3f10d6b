"""The YAML files in configs/: each loads, says where it comes from, and has an honest twin."""

from __future__ import annotations

from pathlib import Path

import pytest

from spbench.workload import catalogue
from spbench.workload.catalogue import configs, find, names
from spbench.workload.load import WorkloadError, load_file
from spbench.workload.shards import shard_sizes
from spbench.workload.workload import Workload

LARGE = [name for name in names() if not name.endswith("-small")]
FILES = sorted(
    path.relative_to(configs()).as_posix()
    for path in configs().rglob("*.y*ml")
    if path.parent.name != "sweeps"  # test_sweep_file.py has those
)

# (axes kept or divided by, hidden divided by, layers), as the twin's own source says.
CLAIMED = {
    "dsp-720m": ({"time": 8, "space": 8}, 6, 2),
    "dsp-3b": ({"time": 4, "space": 4}, 8, 1),
    "earthformer": ({"time": 1, "height": 4, "width": 4}, 4, 2),
    "latte-1": ({"time": 4, "space": 4}, 6, 2),
    "open-sora-1.2-480p": ({"time": 5, "space": 5}, 6, 2),
    "open-sora-plan-65": ({"time": 1, "space": 1}, 36, 2),
}


@pytest.mark.parametrize("file", FILES)
def test_every_file_loads_and_has_a_source(file: str) -> None:
    """Whatever else lies in configs/ is a workload named as its file, with its source."""
    work = load_file(configs() / file)
    assert work.name == Path(file).stem
    assert len(work.source) > 20
    assert work.version == 1


def test_the_catalogue_is_complete() -> None:
    """Both folders of workloads are listed, and every large workload has claims to check here."""
    listed = [f"{kind}/{name}.yaml" for kind in ("verify", "workloads") for name in names(kind)]
    assert sorted(listed) == FILES
    assert set(CLAIMED) == set(LARGE)
    assert set(names()) == {*LARGE, *(f"{name}-small" for name in LARGE)}


def kinds(work: Workload) -> list[tuple[type, tuple[str, ...]]]:
    return [(type(sublayer), sublayer.attended) for sublayer in work.block]


@pytest.mark.parametrize("name", LARGE)
def test_a_twin_is_of_the_same_kind(name: str) -> None:
    """The same axes in the same order, the same block and modulation, and it trains on a CPU."""
    large, small = find(name), find(f"{name}-small")
    assert list(small.axes) == list(large.axes)
    assert kinds(small) == kinds(large)
    assert (small.modulation, small.mode) == (large.modulation, large.mode)
    assert small.dtype == "float32"
    assert small.source.startswith(name)


@pytest.mark.parametrize("name", LARGE)
def test_a_twin_is_as_small_as_it_says(name: str) -> None:
    """Axes, width and layers are the fractions that its source claims."""
    large, small = find(name), find(f"{name}-small")
    divisors, width, layers = CLAIMED[name]
    assert {axis: n // divisors[axis] for axis, n in large.axes.items()} == small.axes
    assert all(n % divisors[axis] == 0 for axis, n in large.axes.items())
    assert (small.hidden * width, small.depth) == (large.hidden, layers)


def test_remainders_are_as_claimed() -> None:
    """Open-Sora's axes keep theirs modulo 2, 3, 4 and 8; 13 and 17 divide by nothing."""
    large, small = find("open-sora-1.2-480p"), find("open-sora-1.2-480p-small")
    assert "modulo 2, 3, 4 and 8" in small.source
    for ranks in (2, 3, 4, 8):
        for axis, length in large.axes.items():
            assert small.axes[axis] % ranks == length % ranks
    for name, length in (("earthformer", 13), ("open-sora-plan-65", 17)):
        for twin in (find(name), find(f"{name}-small")):
            assert twin.axes["time"] == length
            assert all(len(set(shard_sizes(length, ranks))) == 2 for ranks in range(2, 9))


def test_heads_are_shared_unevenly_where_claimed() -> None:
    """4 heads on 3 ranks are 2, 1 and 1."""
    assert shard_sizes(find("open-sora-plan-65-small").heads, 3) == (2, 1, 1)


@pytest.mark.parametrize("name", LARGE)
def test_paper_sizes(name: str) -> None:
    """Bytes of the activation grow out of the papers' lengths: none is a toy."""
    work = find(name)
    assert work.dtype == "bfloat16"
    assert work.tokens > 10_000
    assert work.hidden >= 256


def test_shapes_to_verify_cover_what_can_go_wrong() -> None:
    """Uneven axes, every modulation, both modes, recomputation, two and three axes."""
    works = [find(name, "verify") for name in names("verify")]
    assert {len(work.axes) for work in works} >= {2, 3}
    assert {work.modulation for work in works} == {"none", "per_sample", "per_time"}
    assert {work.mode for work in works} == {"train", "forward"}
    assert {work.checkpointing for work in works} == {"none", "full"}
    assert any(length % 2 and length % 3 for work in works for length in work.axes.values())


def test_a_file_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path, or a name that ends in .yaml, is a file; any other name is of the catalogue."""
    text = (configs() / "verify" / "axes-2d.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert find("mine.yaml") == find("./mine.yaml") == find(str(tmp_path / "mine.yaml"))
    assert find("mine.yaml") == find("axes-2d", "verify")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dsp-720", "unknown workload 'dsp-720'. Did you mean 'dsp-720m'"),
        ("zzz", "unknown workload 'zzz'. Known: dsp-3b"),
        ("none.yaml", "none.yaml: No such file"),
    ],
)
def test_an_unknown_workload_is_said_with_the_nearest(name: str, said: str) -> None:
    """A slip gets a suggestion, a file its reason."""
    with pytest.raises(WorkloadError, match=said):
        find(name)


def test_an_installed_package_uses_its_own_configs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """configs/ inside the package comes before the checkout's."""
    assert configs().name == "configs"
    monkeypatch.setattr(catalogue, "PACKAGED", tmp_path)
    assert configs() == tmp_path
    assert names() == []
