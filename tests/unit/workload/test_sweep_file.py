"""Sweep files: cells in the order of the file, none twice, and nothing ignored in silence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from helpers.examples import ALL, examples
from helpers.golden import Golden
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from spbench.strategies.registry import expand_names, places
from spbench.workload.case import Combination
from spbench.workload.catalogue import find
from spbench.workload.config_names import configs, names
from spbench.workload.sweeps import ExpandedSweep, load_sweep
from spbench.workload.yaml_file import WorkloadError

VALID = """\
version: 1
name: made-up
source: "a test"
workloads: [dsp-720m, dsp-3b]
strategies: [dsp, rsa]
gpus: [1, 2]
launches: 3
reference: rsa
skip_invalid: true
set: {checkpointing: none}
matrix: {axes.time: [32, 64], batch: [1, 2]}
include:
  - {workload: dsp-720m, gpus: [8, 16], set: {axes.time: 512}}
exclude:
  - {workload: dsp-3b, gpus: 1}
  - {strategy: rsa, axes.time: 64}
"""


def changed(old: str, new: str) -> str:
    assert VALID.count(old) == 1
    return VALID.replace(old, new)


def loaded(folder: Path, text: str) -> ExpandedSweep:
    path = folder / "sweep.yaml"
    path.write_text(text)
    return load_sweep(str(path), expand_names)


def cell(combination: Combination) -> tuple[Any, ...]:
    work = combination.workload
    axes = work.axes
    return work.name, axes["time"], work.batch, combination.ranks, combination.strategy


def cells(folder: Path, text: str) -> list[tuple[Any, ...]]:
    return [cell(each) for each in loaded(folder, text).combinations]


def test_cells_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    """Workloads, then settings as they are written, then ranks, then strategies; include last."""
    expected = [
        (workload, time, batch, ranks, strategy)
        for workload in ("dsp-720m", "dsp-3b")
        for time in (32, 64)
        for batch in (1, 2)
        for ranks in (1, 2)
        for strategy in ("dsp", "rsa")
        if (workload, ranks) != ("dsp-3b", 1) and (strategy, time) != ("rsa", 64)
    ]
    expected += [("dsp-720m", 512, 1, ranks, s) for ranks in (8, 16) for s in ("dsp", "rsa")]
    sweep_cells = cells(tmp_path, VALID)
    assert sweep_cells == expected
    assert len(set(sweep_cells)) == len(sweep_cells) == 22


def test_what_else_a_file_says(tmp_path: Path) -> None:
    """Launches, reference and skipping are taken over; set is in every cell."""
    sweep = loaded(tmp_path, VALID)
    assert (sweep.file.name, sweep.file.launches, sweep.file.reference) == ("made-up", 3, "rsa")
    assert sweep.file.skip_invalid
    assert {each.workload.checkpointing for each in sweep.combinations} == {"none"}


def test_little_is_enough(tmp_path: Path) -> None:
    """A workload and ranks suffice: all strategies, three launches, none skipped, no reference."""
    sweep = loaded(tmp_path, "name: a\nworkloads: dsp-720m\ngpus: 2\n")
    assert [each.strategy for each in sweep.combinations] == list(places())
    assert [each.workload for each in sweep.combinations] == [find("dsp-720m")] * len(places())
    assert (sweep.file.launches, sweep.file.reference) == (3, None)
    assert not sweep.file.skip_invalid


def test_include_alone_is_enough(tmp_path: Path) -> None:
    """An include has its own workload, ranks, settings and, optionally, strategies."""
    text = """\
name: a
strategies: dsp
set: {batch: 4, axes.time: 8}
include:
  - {workload: dsp-720m, gpus: 2}
  - {workload: dsp-3b, gpus: [4, 8], strategies: [rsa, dsp], set: {batch: 6}}
"""
    assert cells(tmp_path, text) == [
        ("dsp-720m", 8, 4, 2, "dsp"),
        *(("dsp-3b", 8, 6, ranks, s) for ranks in (4, 8) for s in ("rsa", "dsp")),
    ]


def test_strategies_are_those_of_the_command_line(tmp_path: Path) -> None:
    """Strategies may have options and commas, with 'all' for the rest; each counts once."""
    texts = "[rsa:reduce-scatter, 'dsp,rsa', all]"
    sweep_cells = cells(tmp_path, f"name: a\nworkloads: dsp-720m\nstrategies: {texts}\ngpus: 2\n")
    rest = [name for name in places() if name not in ("dsp", "rsa")]
    assert [strategy for *_, strategy in sweep_cells] == ["rsa:reduce-scatter", "dsp", "rsa", *rest]


def test_settings_without_a_column_are_in_the_name(tmp_path: Path, golden: Golden) -> None:
    """Settings without a column of the results (depth, block) are added to the name."""
    text = """\
name: a
workloads: dsp-720m-small
strategies: dsp
gpus: 2
set: {axes.time: 4, norm: rms}
matrix: {depth: [1, 2], block: [[{attention: time}, {mlp: 4}]]}
"""
    sweep_cells = [each.workload.name for each in loaded(tmp_path, text).combinations]
    golden("\n".join(sweep_cells))


def test_an_include_may_bring_back_what_is_excluded(tmp_path: Path) -> None:
    """An included cell is never excluded, and comes behind the matrix."""
    text = """\
name: a
workloads: [dsp-720m, dsp-3b]
strategies: dsp
gpus: [2, 4]
include: [{workload: dsp-3b, gpus: 2}]
exclude: [{workload: dsp-3b}]
"""
    sweep_cells = [(name, ranks) for name, _, _, ranks, _ in cells(tmp_path, text)]
    assert sweep_cells == [("dsp-720m", 2), ("dsp-720m", 4), ("dsp-3b", 2)]


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        ("{axes.time: 64}", [("dsp-3b", 2), ("dsp-3b", 4)]),
        ("{hidden: 2048, gpus: 2}", [("dsp-720m", 2), ("dsp-720m", 4), ("dsp-3b", 4)]),
        ("{dtype: bfloat16, workload: dsp-720m}", [("dsp-3b", 2), ("dsp-3b", 4)]),
        ("{heads: 16}, {gpus: 4}", [("dsp-3b", 2)]),
    ],
)
def test_any_field_of_the_workload_may_exclude(
    tmp_path: Path, exclude: str, left: list[tuple[str, int]]
) -> None:
    """An exclude matches set values and the workload's own; all of its keys must match."""
    text = "name: a\nworkloads: [dsp-720m, dsp-3b]\nstrategies: dsp\ngpus: [2, 4]\n"
    sweep_cells = cells(tmp_path, f"{text}exclude: [{exclude}]\n")
    assert [(name, ranks) for name, _, _, ranks, _ in sweep_cells] == left


def test_files_are_seen_from_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A workload file is looked for beside the sweep, wherever the command is run."""
    (tmp_path / "mine.yaml").write_text((configs() / "verify" / "axes-2d.yaml").read_text())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "sweep.yaml").write_text("name: a\nworkloads: mine.yaml\ngpus: 2\n")
    sweep = load_sweep("../sweep.yaml", expand_names)
    assert {each.workload.name for each in sweep.combinations} == {"axes-2d"}


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "holds nothing; a sweep is a mapping of keys"),
        ("name: a\n", 1, "no cells: give workloads and gpus, or include"),
        (changed("gpus: [1, 2]", "gpu: [1, 2]"), 6, "unknown key 'gpu'. Did you mean 'gpus'?"),
        (changed("name: made-up\n", ""), 1, "key 'name' is missing"),
        (changed("version: 1", "version: 2"), 1, "version cannot be 2; it may be 1"),
        (changed("gpus: [1, 2]\n", ""), 4, "workloads is of no use without gpus"),
        (changed("workloads: [dsp-720m, dsp-3b]\n", ""), 5, "gpus is of no use without workloads"),
        (changed("gpus: [1, 2]", "gpus: [1, two]"), 6, "gpus.1 is 'two'"),
        (changed("gpus: [1, 2]", "gpus: [0, 2]"), 6, "gpus.0 is 0"),
        (changed("gpus: [1, 2]", "gpus: [1, 2, 1]"), 6, "gpus: 1 is given twice"),
        (changed("gpus: [1, 2]", "gpus: []"), 6, "gpus is []"),
        (changed("dsp-3b]", "dsp-3]"), 4, "unknown workload 'dsp-3'. Did you mean 'dsp-3b"),
        (changed("dsp-3b]", "no.yaml]"), 4, "no.yaml: No such file or directory"),
        (changed("dsp-3b]", "dsp-720m]"), 4, "workloads: 'dsp-720m' is given twice"),
        (changed("dsp-3b]", "[dsp-3b]]"), 4, "workloads.1 is ['dsp-3b']"),
        (changed("[dsp, rsa]", "[dsp, rse]"), 5, "unknown strategy 'rse'. Did you mean 'rsa'?"),
        (changed("launches: 3", "launches: 0"), 7, "launches is 0"),
        (changed("launches: 3", "launches: '3'"), 7, "launches is '3'"),
        (
            changed("reference: rsa", "reference: rse"),
            8,
            "not a strategy of this sweep. Did you mean",
        ),
        (
            changed("reference: rsa", "reference: ulysses"),
            8,
            "reference 'ulysses' is not a strategy",
        ),
        (changed("skip_invalid: true", "skip_invalid: 1"), 9, "skip_invalid is 1"),
        (changed("checkpointing:", "checkpoint:"), 10, "Did you mean 'checkpointing'?"),
        (changed("checkpointing: none", "checkpointing: yes"), 10, "checkpointing cannot be True"),
        (changed("checkpointing: none", "heads: 5"), 10, "heads that fit: 1, 2, 3"),
        (changed("checkpointing: none", "axes.tiem: 5"), 10, "Did you mean 'time'? (in dsp-720m)"),
        (changed("checkpointing: none", "hidden: 1000"), 10, "hidden that fits: 992, 1008"),
        (
            changed("checkpointing: none", "block: [{attention: widht}]"),
            10,
            "unknown axis 'widht'; the axes are",
        ),
        ("name: a\naxes: {a: 2}\nblock: [{mlp: 4}]\n", 1, "a workload; use --workload"),
        (changed("checkpointing: none", "batch: 3"), 11, "'batch' undoes 'batch' of line 10"),
        (changed("axes.time: [32, 64]", "axes.time: [32, 0]"), 11, "axes.time is 0"),
        (changed("axes.time: [32, 64]", "axes.time: [32, 32]"), 11, "matrix: 32 is given twice"),
        (changed("axes.time: [32, 64]", "axes.time: []"), 11, "matrix.axes.time is []"),
        (changed("set: {axes.time: 512}", "sets: {}"), 13, "'sets'. Did you mean 'set'?"),
        (changed("workload: dsp-720m, gpus", "workload: dsp-72m, gpus"), 13, "unknown workload"),
        (changed("workload: dsp-720m, gpus: [8, 16]", "gpus: 8"), 13, "include.0.workload"),
        (changed("gpus: [8, 16]", "gpus: 8, strategies: rse"), 13, "unknown strategy 'rse'"),
        (changed("axes.time: 512", "axes.time: 0"), 13, "axes.time is 0"),
        (
            changed("axes.time: 512", "axes.time: 5, axes: {time: 5}"),
            13,
            "'axes' undoes 'axes.time",
        ),
        (changed("[8, 16], set: {axes.time: 512}", "2, set: {axes.time: 32}"), 13, "comes twice"),
        (changed("gpus: 1}", "gpus: 4}"), 15, "no cell of the matrix has gpus 4. Known: 1, 2"),
        (changed("gpus: 1}", "gpus: true}"), 15, "no cell of the matrix has gpus True"),
        (changed("workload: dsp-3b, ", "workload: dsp-3, "), 15, "Did you mean 'dsp-3b'?"),
        (changed("workload: dsp-3b, ", "workloads: dsp-3b, "), 15, "Did you mean 'workload'?"),
        (changed("workload: dsp-3b, ", "hidden: 1152, heads: 32, "), 15, "has all of hidden 1152"),
        (changed("{workload: dsp-3b, gpus: 1}", "{}"), 15, "exclude.0 is {}"),
        (changed("rsa, axes.time: 64", "rsa, axes.tiem: 64"), 16, "Did you mean 'axes.time'?"),
        (changed("- {strategy: rsa, axes.time: 64}", "gpus: 2"), 16, "not YAML"),
        ("name: a\nworkloads: dsp-3b\ngpus: 2\nexclude: [{gpus: 2}]\n", 1, "cell is excluded"),
        ("name: a\nmatrix: {batch: 2}\ninclude: [{workload: dsp-3b, gpus: 2}]\n", 2, "no use with"),
        ("name: a\nexclude: [{gpus: 2}]\ninclude: [{workload: dsp-3b, gpus: 2}]\n", 2, "no use"),
        (
            "name: a\nstrategies: dsp\ninclude: [{workload: dsp-3b, gpus: 2, strategies: dsp}]\n",
            2,
            "every include has strategies of its own",
        ),
    ],
)
def test_a_mistake_is_said_with_file_and_line(
    tmp_path: Path, text: str, line: int, reason: str
) -> None:
    """The message starts with file:line of the offending key and says what is wrong with it."""
    with pytest.raises(WorkloadError) as caught:
        loaded(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/sweep.yaml:{line}: "), message
    assert reason in message
    assert len(message) < 2 * len(str(tmp_path)) + 400


def test_the_cell_that_comes_twice_is_named(tmp_path: Path) -> None:
    """Cells are compared by their resolved workloads: depth 28 is dsp-720m's own."""
    text = "name: a\nworkloads: dsp-720m\nstrategies: dsp\ngpus: 2\ninclude:\n"
    again = "  - {workload: dsp-720m, gpus: 2, set: {depth: 28}}\n"
    with pytest.raises(WorkloadError) as caught:
        loaded(tmp_path, text + again)
    reason = "dsp on 2 ranks of dsp-720m depth=28 comes twice; first from line 2"
    assert str(caught.value) == f"{tmp_path}/sweep.yaml:6: {reason}"


def test_a_mistake_in_a_workload_is_said_with_both_files(tmp_path: Path) -> None:
    """A broken workload file is reported with the sweep's line and its own."""
    (tmp_path / "mine.yaml").write_text("name: mine\nhiden: 4\n")
    with pytest.raises(WorkloadError) as caught:
        loaded(tmp_path, "name: a\nworkloads: mine.yaml\ngpus: 2\n")
    start = f"{tmp_path}/sweep.yaml:2: {tmp_path}/mine.yaml:2: unknown key 'hiden'"
    assert str(caught.value).startswith(start)


def test_a_sweep_has_an_end(tmp_path: Path, golden: Golden) -> None:
    """The limit of cells is checked before any cell is made."""
    many = list(range(1, 1000))
    matrix = f"{{batch: {many}, depth: {many}, axes.time: {many}, axes.space: {many}}}"
    text = f"name: a\nworkloads: dsp-720m\nstrategies: dsp\ngpus: 2\nmatrix: {matrix}\n"
    with pytest.raises(WorkloadError) as refused:
        loaded(tmp_path, text)
    golden(refused.value)


def test_an_unknown_sweep_is_said_with_the_nearest(tmp_path: Path, golden: Golden) -> None:
    """A typing error gets a suggestion, an unreadable file its reason."""
    with pytest.raises(WorkloadError) as refused:
        load_sweep("ci-smok", expand_names)
    golden(refused.value)
    with pytest.raises(WorkloadError) as refused:
        load_sweep("dsp-720m", expand_names)
    golden(refused.value, "second")
    with pytest.raises(WorkloadError) as refused:
        find("ci-smoke")
    golden(refused.value, "third")
    with pytest.raises(WorkloadError) as refused:
        load_sweep(str(tmp_path / "no.yaml"), expand_names)
    golden(refused.value, "fourth")


@st.composite
def damages(draw: st.DrawFn) -> str:
    """The valid file with up to three stretches cut out, doubled, or replaced by something."""
    content = VALID
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 30)))
        odd = ["", content[start:end] * 2, "[", "}", "~", "- ", ": ", "1", "all", "{a: 1}", "\t"]
        content = content[:start] + draw(st.sampled_from(odd)) + content[end:]
    return content


@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damages())
def test_a_damaged_file_raises_nothing_else(tmp_path: Path, content: str) -> None:
    """A damaged file gives cells, each once, or a WorkloadError that begins with file and line."""
    try:
        sweep = loaded(tmp_path, content)
    except WorkloadError as error:
        assert re.match(re.escape(f"{tmp_path}/sweep.yaml") + r":\d+: \S", str(error)), str(error)
    else:
        identities = [
            (each.workload.model_dump_json(), *cell(each)[3:]) for each in sweep.combinations
        ]
        assert len(set(identities)) == len(identities) > 0


@pytest.mark.parametrize("name", names("sweeps"))
def test_every_sweep_of_the_catalogue_loads(name: str) -> None:
    """A sweep is named as its file and has a source; sweeps for times have several launches."""
    sweep = load_sweep(name, expand_names)
    assert sweep.file.name == name
    assert len(sweep.file.source) > 60
    assert sweep.file.launches == (1 if name == "ci-smoke" else 3)


# (model, frames, batch, GPUs of one sequence-parallel group), from the paper's section 4.
DSP_PAPER = {
    "dsp-end-to-end": [
        *(("dsp-720m", 64 * n, 1, ranks) for n, ranks in ((2, 2), (4, 4), (4, 8), (8, 8))),
        *(("dsp-720m", 64 * n, 1, ranks) for n, ranks in ((8, 16), (16, 16), (16, 32))),
        *(("dsp-3b", 32 * ranks, 1, ranks) for ranks in (4, 8, 16, 32)),
    ],
    "dsp-weak-intra": [
        *(("dsp-720m", 64, ranks, ranks) for ranks in (1, 2, 4, 8)),
        *(("dsp-3b", 16, ranks, ranks) for ranks in (1, 2, 4, 8)),
    ],
    "dsp-weak-inter": [
        *(("dsp-720m", 256, ranks // 8, ranks) for ranks in (8, 16, 32)),
        *(("dsp-3b", 128, ranks // 8, ranks) for ranks in (8, 16, 32)),
    ],
    "dsp-strong-intra": [
        *(("dsp-720m", 64, 1, ranks) for ranks in (1, 2, 4, 8)),
        *(("dsp-3b", 16, 1, ranks) for ranks in (1, 2, 4, 8)),
    ],
    "dsp-strong-inter": [
        *(("dsp-720m", 256, 1, ranks) for ranks in (8, 16, 32)),
        *(("dsp-3b", 128, 1, ranks) for ranks in (8, 16, 32, 64)),
    ],
}


@pytest.mark.parametrize("name", DSP_PAPER)
def test_the_experiments_of_the_dsp_paper(name: str) -> None:
    """The paper's models, frames, batches, GPUs and precision, with DSP and all baselines of the
    published facts: Ulysses in both its forms, Megatron-SP, the ring."""
    sweep = load_sweep(name, expand_names)
    strategies = ("dsp", "ulysses", "ulysses:every-attention", "megatron-sp", "ring")
    assert [cell(each) for each in sweep.combinations] == [
        (*p, s) for p in DSP_PAPER[name] for s in strategies
    ]
    how = {(each.workload.dtype, each.workload.checkpointing) for each in sweep.combinations}
    assert how == {("bfloat16", "full")}


def test_the_experiments_of_the_ring_paper() -> None:
    """Length 512 while the batch grows; batch 64 and 16 while the length grows; 114K on 32."""
    batches = load_sweep("rsa-max-batch", expand_names).combinations
    assert {each.workload.axes["sequence"] for each in batches} == {512}
    lengths = load_sweep("rsa-max-length", expand_names).combinations
    assert {(each.workload.name, each.workload.batch) for each in lengths} == {
        ("bert-base", 64),
        ("bert-large", 16),
    }
    for combinations in (batches, lengths):
        assert {each.strategy for each in combinations} == {"rsa", "megatron-tp"}
        assert max(each.ranks for each in combinations) == 64
        assert {each.workload.name for each in combinations if each.ranks == 12} == {"bert-base"}
    longest = load_sweep("rsa-upper-bound", expand_names).combinations[-1]
    assert (longest.ranks, longest.workload.batch, longest.strategy) == (32, 4, "rsa")
    assert longest.workload.axes["sequence"] == 114_688


def test_the_smoke_test_is_small() -> None:
    """Small workloads on 2 ranks with four strategies, once."""
    sweep = load_sweep("ci-smoke", expand_names)
    assert {each.ranks for each in sweep.combinations} == {2}
    assert {each.strategy for each in sweep.combinations} == {
        "dsp",
        "ulysses",
        "megatron-sp",
        "rsa",
    }
    assert all(each.workload.name.endswith("-small") for each in sweep.combinations)


def test_every_sweep_of_the_catalogue_has_a_small_form() -> None:
    """No cell has more tokens than the whole one, and all are small forms; each comes once."""
    for name in names("sweeps") if ALL else names("sweeps")[::3]:
        whole, small = (load_sweep(name, expand_names, small=each) for each in (False, True))
        assert {c.workload.name.endswith("-small") for c in small.combinations} == {True}, name
        assert 0 < len(small.combinations) <= len(whole.combinations)
        most = [
            max(c.workload.batch * c.workload.tokens for c in s.combinations)
            for s in (whole, small)
        ]
        assert most[1] <= most[0], name


def test_small_forms_keep_what_a_sweep_varies(tmp_path: Path) -> None:
    """Axes and batch stay in proportion, other settings as they are; equal sizes are one cell."""
    text = "name: mine\nworkloads: dsp-720m\nstrategies: dsp\ngpus: 2\nset: {depth: 3}\n"
    (tmp_path / "mine.yaml").write_text(
        f"{text}matrix: {{axes.time: [64, 65, 128], batch: [1, 2]}}\n"
    )
    small = load_sweep(str(tmp_path / "mine.yaml"), expand_names, small=True)
    works = [each.workload for each in small.combinations]
    assert [(w.axes["time"], w.batch) for w in works] == [(8, 1), (8, 2), (16, 1), (16, 2)]
    assert {(w.axes["space"], w.depth, w.name) for w in works} == {
        (512, 3, "dsp-720m-small depth=3")
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("workloads: own.yaml", "'own.yaml' has no small form"),
        ("workloads: dsp-720m\nset: {axes: {a: 4, b: 4}, block: [{attention: a}]}", "other axes"),
    ],
)
def test_what_has_no_small_form(tmp_path: Path, line: str, said: str) -> None:
    """A file of the user's, and axes of another model."""
    shape = (
        "name: own\naxes: {a: 4, b: 4}\nhidden: 8\nheads: 2\ndepth: 1\nblock: [{attention: a}]\n"
    )
    (tmp_path / "own.yaml").write_text(shape)
    (tmp_path / "mine.yaml").write_text(f"name: mine\n{line}\nstrategies: dsp\ngpus: 2\n")
    with pytest.raises(WorkloadError, match=said):
        load_sweep(str(tmp_path / "mine.yaml"), expand_names, small=True)


def test_a_mesh_around_the_strategies(tmp_path: Path, golden: Golden) -> None:
    """One for all cells, several as cells beside each other, an include's own; excluded by cfg."""
    text = """\
name: a
workloads: dsp-720m
strategies: [dsp, rsa]
gpus: [4, 8]
mesh: [{cfg: 1}, {cfg: 2}]
set: {guidance: 2}
include:
  - {workload: dsp-3b, gpus: 4, strategies: dsp, mesh: {cfg: 2}}
exclude:
  - {cfg: 2, gpus: 4}
"""
    meshed = [(x.ranks, x.strategy, x.mesh.cfg) for x in loaded(tmp_path, text).combinations]
    assert meshed == [
        *((4, name, 1) for name in ("dsp", "rsa")),
        *((8, name, cfg) for cfg in (1, 2) for name in ("dsp", "rsa")),
        (4, "dsp", 2),
    ]
    with pytest.raises(WorkloadError) as refused:
        loaded(tmp_path, text.replace("{cfg: 2}]", "{cgf: 2}]"))
    golden(refused.value)
    with pytest.raises(WorkloadError, match=r"sweep.yaml:5: "):
        loaded(tmp_path, text.replace("{cfg: 2}]", "{cfg: 0}]"))
    with pytest.raises(WorkloadError, match="given twice"):
        loaded(tmp_path, text.replace("{cfg: 2}]", "{cfg: 1}]"))
