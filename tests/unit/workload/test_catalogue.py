"""The YAML files in configs/: each loads, names its source, and has a small form true to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spbench.workload import config_names
from spbench.workload.block import Attention, StreamAttention, Sublayer
from spbench.workload.catalogue import find, load_file
from spbench.workload.config_names import configs, names
from spbench.workload.fields import DTYPE_BYTES
from spbench.workload.flops import forward_flops
from spbench.workload.sharding import shard_sizes
from spbench.workload.workload import Workload
from spbench.workload.yaml_file import WorkloadError

NO_MODEL = "attention-alone-temporal"
"""Small as it is, and nobody's: it has no small form."""
LARGE = [name for name in names() if not name.endswith("-small") and name != NO_MODEL]
FILES = sorted(
    path.relative_to(configs()).as_posix()
    for path in configs().rglob("*.y*ml")
    if path.parent.name in ("verify", "workloads")  # sweeps, clusters, points: tests of their own
)

# (axes kept or divided by, hidden divided by, layers), as the small form's source says.
CLAIMED: dict[str, tuple[dict[str, float], int, int]] = {
    "aurora": ({"level": 1, "lat": 15, "lon": 15}, 16, 2),
    "bagel": ({"height": 8, "width": 8}, 16, 2),
    "deepseek-v3": ({"sequence": 512}, 64, 2),
    "gpt-oss-20b": ({"sequence": 512}, 32, 1),
    "cogvideox-5b": ({"time": 2.6, "height": 7.5, "width": 7.5}, 8, 2),
    "cogvideox1.5-5b": ({"time": 2.2, "height": 12, "width": 17}, 8, 2),
    "flux.1-dev": ({"height": 8, "width": 8}, 16, 2),
    "flux.2-dev": ({"height": 8, "width": 8}, 16, 2),
    "hunyuanvideo": ({"time": 6.6, "height": 6.6, "width": 6.6}, 16, 2),
    "hunyuanvideo-1.5": ({"time": 6.6, "height": 6.6, "width": 6.6}, 16, 2),
    "mochi-1": ({"time": 4, "height": 6, "width": 7.6}, 16, 2),
    "open-sora-2": ({"time": 6.6, "height": 6, "width": 8}, 16, 2),
    "qwen-image": ({"height": 7.5, "width": 7.5}, 16, 2),
    "z-image": ({"height": 8, "width": 8}, 16, 2),
    "glm-4.5-air": ({"sequence": 512}, 32, 2),
    "hunyuanimage-3": ({"height": 8, "width": 8}, 16, 2),
    "llama3-70b": ({"sequence": 512}, 32, 2),
    "ltx-2": ({"time": 2, "height": 3.4, "width": 15}, 16, 2),
    "minimax-h3": ({"sequence": 1000}, 16, 2),
    "qwen3-32b": ({"sequence": 128}, 32, 2),
    "step-video": ({"time": 9, "height": 5.7, "width": 10.3}, 16, 2),
    "wan-2.1-1.3b": ({"time": 4.2, "height": 5, "width": 13}, 8, 2),
    "wan-2.1-14b": ({"time": 4.2, "height": 9, "width": 10}, 16, 2),
    "wan-2.2-ti2v-5b": ({"time": 4.4, "height": 3.7, "width": 5}, 16, 2),
    "axial-weather": ({"level": 1, "lat": 15, "lon": 15}, 16, 2),
    "bert-base": ({"sequence": 4}, 8, 2),
    "bert-base-linformer": ({"sequence": 112}, 8, 2),
    "bert-large": ({"sequence": 4}, 8, 2),
    "dsp-3b": ({"time": 4, "space": 4}, 8, 1),
    "dsp-720m": ({"time": 8, "space": 8}, 6, 2),
    "earthformer": ({"time": 1, "height": 4, "width": 4}, 4, 2),
    "evoformer-msa": ({"row": 8, "column": 8}, 4, 2),
    "evoformer-pair": ({"row": 8, "column": 8}, 4, 2),
    "gpt-7b": ({"sequence": 16}, 32, 2),
    "hunyuan-like": ({"time": 6.6, "height": 6.6, "width": 6.6}, 16, 2),
    "latte-1": ({"time": 4, "space": 4}, 6, 2),
    "llama4-scout": ({"sequence": 512}, 32, 1),
    "llama3-8b-packed": ({"sequence": 256}, 32, 2),
    "llama3-8b": ({"sequence": 256}, 32, 2),
    "open-sora-1.0": ({"time": 8, "space": 8}, 9, 2),
    "open-sora-1.2-480p": ({"time": 5, "space": 5}, 6, 2),
    "open-sora-1.2-720p": ({"time": 15, "space": 15}, 18, 2),
    "open-sora-plan-65": ({"time": 1, "space": 1}, 36, 2),
    "prithvi-wxc": ({"window": 6, "token": 6}, 20, 2),
    "timesformer": ({"time": 1, "space": 1}, 8, 2),
}
# What the batch is divided by, where it is.
BATCH = {"bert-base": 8, "bert-base-linformer": 2, "bert-large": 4, "timesformer": 8}
BATCH |= dict.fromkeys(("bagel", "flux.2-dev", "hunyuanimage-3", "qwen-image", "z-image"), 2)
STREAMS = {"ltx-2": 9}
"""What the lengths of streams are divided by."""
TEXT = 16
"""What text tokens are divided by."""
# Twins whose source says that axes keep their remainders, modulo what.
REMAINDERS = {
    "axial-weather": (2, 3, 4, 8),
    "open-sora-1.2-480p": (2, 3, 4, 8),
    "open-sora-1.2-720p": (2, 4, 8),
    "step-video": (2, 4),
    **dict.fromkeys(("ltx-2", "wan-2.1-1.3b", "wan-2.1-14b", "wan-2.2-ti2v-5b"), (2, 4, 8)),
}
# Twins large enough to time with; all others are for proofs on many ranks as well.
FOR_TIMING = {"dsp-3b", "dsp-720m", "latte-1", "open-sora-1.2-480p", "open-sora-plan-65"}


@pytest.mark.parametrize("file", FILES)
def test_every_file_loads_and_has_a_source(file: str) -> None:
    """Every workload in configs/ is named as its file and has a source."""
    work = load_file(configs() / file)
    assert work.name == Path(file).stem
    assert len(work.source) > 20
    assert work.version == 1


def test_the_catalogue_is_complete() -> None:
    """Both folders of workloads are listed, and every large workload has claims to check here."""
    listed = [f"{kind}/{name}.yaml" for kind in ("verify", "workloads") for name in names(kind)]
    assert sorted(listed) == FILES
    assert set(CLAIMED) == set(LARGE)
    assert set(names()) == {NO_MODEL, *LARGE, *(f"{name}-small" for name in LARGE)}


def form(sublayer: Sublayer) -> dict[str, Any]:
    """A sublayer's fields; for sizes that shrink in the small form, only their presence."""
    data = sublayer.model_dump(by_alias=True)
    shrinks = {"cross_attention", "projection", "pair_bias", "window", "shift", "documents"} & set(
        data
    )
    if isinstance(sublayer, StreamAttention):
        shrinks = {"head_dim"} & set(data)  # what it asks has a name
    return data | {key: data[key] is not None for key in shrinks}


@pytest.mark.parametrize("name", LARGE)
def test_a_twin_is_of_the_same_kind(name: str) -> None:
    """The small form has the axes and block of the large one, and trains on a CPU."""
    large, small = find(name), find(f"{name}-small")
    assert list(small.axes) == list(large.axes)
    forms = [[[form(each) for each in x.block] for x in work.parts] for work in (small, large)]
    assert forms[0] == forms[1]
    for key in ("norm", "qk_norm", "positions", "modulation", "mode"):
        assert getattr(small, key) == getattr(large, key)
    assert small.heads * large.key_heads == large.heads * small.key_heads
    assert small.dtype == "float32"
    assert small.source.startswith(name)


@pytest.mark.parametrize("name", LARGE)
def test_a_twin_is_as_small_as_it_says(name: str) -> None:
    """Axes, width and layers are the fractions that the small form's source claims."""
    large, small = find(name), find(f"{name}-small")
    divisors, width, layers = CLAIMED[name]
    parts = {axis: n / divisors[axis] for axis, n in large.axes.items()}
    assert {axis: round(part) for axis, part in parts.items()} == small.axes
    assert small.text == round(large.text / TEXT)
    for stream, own in large.streams.items():
        twin = small.streams[stream]
        assert own.length == STREAMS[name] * twin.length
        assert (own.hidden or 0) == width * (twin.hidden or 0)
    uneven = any(part % 1 for part in (*parts.values(), large.text / TEXT))
    assert ("rounded" in small.source) == uneven
    assert (small.hidden * width, small.blocks) == (large.hidden, layers)
    assert small.batch * BATCH.get(name, 1) == large.batch


@pytest.mark.parametrize("name", LARGE)
def test_a_twin_is_small(name: str) -> None:
    """A step takes seconds at most, and 4 ranks find a head and a position each."""
    small = find(f"{name}-small")
    assert forward_flops(small) <= (15e9 if name in FOR_TIMING else 2e9)
    assert min(*small.axes.values(), small.key_heads) >= 4
    assert small.hidden >= 32
    if name not in FOR_TIMING:
        assert all(score_bytes(small, attention) < 100e6 for attention in small.attentions)


def score_bytes(work: Workload, attention: Attention) -> int:
    """Bytes of one attention's scores in float64, in which strategies are proved."""
    keys = attention.projection or work.length(attention)
    return work.batch * work.tokens * keys * work.heads * DTYPE_BYTES["float64"]


def test_remainders_are_as_claimed() -> None:
    """An axis with the same remainder leaves the same uneven shards."""
    for name, ranks in REMAINDERS.items():
        large, small = find(name), find(f"{name}-small")
        *most, last = ranks
        assert f"modulo {', '.join(map(str, most))} and {last}" in small.source
        for axis, length in large.axes.items():
            assert all(small.axes[axis] % n == length % n for n in ranks)
    stated = {name for name in LARGE if "modulo" in find(f"{name}-small").source}
    assert stated == set(REMAINDERS)


@pytest.mark.parametrize(
    ("name", "axis", "length"),
    [
        ("axial-weather", "level", 13),
        ("earthformer", "time", 13),
        ("open-sora-plan-65", "time", 17),
    ],
)
def test_13_and_17_divide_by_nothing(name: str, axis: str, length: int) -> None:
    """Prime axes divide in neither form: on 2 to 8 ranks some rank holds less than another."""
    for work in (find(name), find(f"{name}-small")):
        assert work.axes[axis] == length
        assert all(len(set(shard_sizes(length, ranks))) == 2 for ranks in range(2, 9))


def test_what_each_twin_is_there_for() -> None:
    """12 heads and 196 positions on 8 ranks, 32 query and 8 key heads, odd time and height."""
    for end in ("", "-small"):
        timesformer, llama = find(f"timesformer{end}"), find(f"llama3-8b{end}")
        assert timesformer.heads % 8 and timesformer.axes["space"] % 8
        assert (llama.heads, llama.key_heads) == (32, 8)
        assert find(f"gpt-7b{end}").heads == 32
        video = find(f"hunyuan-like{end}")
        assert [length % 2 for length in video.axes.values()] == [1, 1, 0]
        assert video.heads == 24


@pytest.mark.parametrize(
    ("name", "width"), [("glm-4.5-air", 12_288), ("minimax-h3", 7168), ("qwen3-32b", 8192)]
)
def test_attention_is_as_wide_as_claimed(name: str, width: int) -> None:
    """The source says both widths, and the small form keeps the ratio of them."""
    large, small = find(name), find(f"{name}-small")
    assert large.attention_width == width
    assert f"{width} wide" in large.source and f"hidden is {large.hidden}" in large.source
    assert small.attention_width * large.hidden == width * small.hidden


def test_row_wise_attention_of_the_evoformer_has_the_pair_bias() -> None:
    """Attention within a row goes along the columns, the residues, whose pairs give the bias."""
    alone, paired = find("evoformer-msa"), find("evoformer-pair")
    assert paired.pairs == {"column": 128}
    assert [attention.axes for attention in paired.attentions] == [("column",), ("row",)]
    without = [attention.model_copy(update={"pair_bias": None}) for attention in paired.attentions]
    assert tuple(without) == alone.attentions
    assert (paired.axes, paired.hidden, paired.depth) == (alone.axes, alone.hidden, alone.depth)


def test_heads_are_shared_unevenly_where_claimed() -> None:
    """4 heads on 3 ranks are 2, 1 and 1."""
    assert shard_sizes(find("open-sora-plan-65-small").heads, 3) == (2, 1, 1)


@pytest.mark.parametrize("name", LARGE)
def test_paper_sizes(name: str) -> None:
    """No workload is a toy; float32 is used only where the paper states no precision."""
    work = find(name)
    unstated = "the precision is not stated there, float32 is ours" in work.source
    assert work.dtype == ("float32" if unstated else "bfloat16")
    assert work.batch * work.tokens >= 8192
    assert work.hidden >= 256


def test_shapes_to_verify_cover_what_can_go_wrong() -> None:
    """Uneven axes, every modulation, both modes, recomputation, two and three axes."""
    works = [find(name, "verify") for name in names("verify")]
    assert {len(work.axes) for work in works} >= {2, 3}
    assert {work.modulation for work in works} == {"none", "per_sample", "per_time", "per_token"}
    assert {work.mode for work in works} == {"train", "forward"}
    assert {work.checkpointing for work in works} == {"none", "full", "selective"}
    assert any(length % 2 and length % 3 for work in works for length in work.axes.values())


def test_a_file_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path, or a name that ends in .yaml, is a file; any other name is of the catalogue."""
    text = (configs() / "verify" / "axes-2d.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert find("mine.yaml") == find("./mine.yaml") == find(str(tmp_path / "mine.yaml"))
    assert find("mine.yaml") == find("axes-2d", "verify")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dsp-720", "unknown workload 'dsp-720'. Did you mean 'dsp-720m'"),
        ("zzz", "unknown workload 'zzz'. Known: attention-alone-temporal"),
        ("none.yaml", "none.yaml: No such file"),
    ],
)
def test_an_unknown_workload_is_named_with_the_nearest(name: str, message: str) -> None:
    """A typing error gets a suggestion, an unreadable file its reason."""
    with pytest.raises(WorkloadError, match=message):
        find(name)


def test_an_installed_package_uses_its_own_configs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """configs/ inside the package comes before the checkout's."""
    assert configs().name == "configs"
    monkeypatch.setattr(config_names, "PACKAGED", tmp_path)
    assert configs() == tmp_path
    assert names() == []
