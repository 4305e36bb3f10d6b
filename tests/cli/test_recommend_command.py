"""``spbench recommend``: an answer first, and refusals that say what would work."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from helpers.command_line import spbench
from helpers.golden import Golden

from spbench.errors import DONE, USAGE
from spbench.projection.advise.candidates import decisive_command
from spbench.projection.costmodel.cluster_file import find
from spbench.workload.config_names import configs

SMALL = ("recommend", "dsp-720m-small")


def test_the_answer_comes_first(tmp_path: Path, golden: Golden) -> None:
    words = ("-s", "dsp,ulysses", "-c", "hgx-h100", "-g", "2")
    done = spbench(tmp_path, *SMALL, *words, torch=True)
    assert done.code == DONE, done.err
    golden(done.out)
    data = json.loads(spbench(tmp_path, *SMALL, *words, "--json", torch=True).out)
    assert data["best"] in ("dsp", "ulysses")
    assert all(each["peak_bytes"] > 0 for each in data["projected"])


@pytest.mark.parametrize(("ranks", "most"), [(2, 2), (64, 8)])
def test_all_ranks_of_a_small_cluster_are_meant_by_none(
    tmp_path: Path, ranks: int, most: int
) -> None:
    """Eight of a larger one."""
    file = tmp_path / "small.yaml"
    cluster = find("hgx-h100").model_dump(exclude_defaults=True, mode="json")
    cluster["levels"] = [cluster["levels"][0] | {"ranks": ranks}]
    del cluster["drawn_together"]  # it names the network's constants, too
    file.write_text(yaml.safe_dump({"version": 1, **cluster}))
    done = spbench(tmp_path, *SMALL, "-s", "dsp", "-c", str(file), "--json", torch=True)
    assert json.loads(done.out)["ranks"] == most
    words = ("project", SMALL[1], "-s", "dsp", "-c", str(file), "--json")
    done = spbench(tmp_path, *words, torch=True)
    assert [each["world_size"] for each in json.loads(done.out)] == [most]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-c", "hgx-h10"), "Did you mean 'hgx-h100'?"),
        (("-c", "hgx-h100", "-g", "2,70000"), "use numbers of ranks from 1 to 65536"),
        (
            ("-c", "hgx-h100", "--fixed", "sp=2"),
            "'sp=2' cannot be fixed; what is searched for is dp, cfg, pp, tp, zero, checkpointing",
        ),
        (("-c", "hgx-h100", "--fixed", "zero=4"), "zero may be 0, 1, 2, 3"),
        (
            ("-c", "hgx-h100", "--fixed", "checkpointing=some"),
            "checkpointing may be none, full, selective",
        ),
        (("-c", "hgx-h100", "--fixed", "tp=0"), "write tp=1, or more ranks of a group"),
        (("-c", "hgx-h100", "--fixed", "tp=1,tp=2"), "has tp twice; give it one value"),
        (
            ("-c", "hgx-h100", "--fixed", "zero=1", "--set", "zero=2"),
            "--fixed zero=1 and --set zero=2: give one of the two",
        ),
        (
            ("-c", "hgx-h100", "--fixed", "zero=1", "--set", "mode=forward"),
            "--fixed zero=1: mode forward has no zero",
        ),
        (("-c", "hgx-h100", "-g", "4", "--fixed", "tp=3"), "4 ranks have no mesh with tp=3"),
        (("-c", "hgx-h100", "-s", "ulises"), "Did you mean 'ulysses'?"),
        ((), "--cluster"),
        (("-c", "h100"), "Did you mean 'hgx-h100'?"),
        (("-w", "dsp-720m"), "The workload stands alone: spbench recommend dsp-720m"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = spbench(tmp_path, *SMALL, *words, torch=True)
    assert done.code == USAGE
    assert said in done.err


def test_a_comma_in_a_source_moves_no_answer(tmp_path: Path) -> None:
    """Nor does any other wording of a sentence that says where a constant comes from."""
    plain = configs() / "clusters" / "l20-pcie.yaml"
    text = plain.read_text(encoding="utf-8")
    reworded = tmp_path / "l20-pcie.yaml"
    reworded.write_text(re.sub(r'source: "(\w+) ', r'source: "\1, ', text), encoding="utf-8")
    assert reworded.read_text(encoding="utf-8") != text
    words = (*SMALL, "-s", "dsp,ulysses,ring", "-g", "4", "--json", "-c")
    before, after = (spbench(tmp_path, *words, str(path), torch=True) for path in (plain, reworded))
    assert before.code == DONE, before.err
    assert after.out == before.out


def test_a_plan_is_what_a_run_is_given(tmp_path: Path) -> None:
    """The mesh around its strategy, what ranks share out and what they compute again."""
    words = ("-s", "dsp,ulysses", "-c", "hgx-h100", "-g", "4", "--set", "batch=4")
    fixed = ("--fixed", "dp=2,tp=1,zero=2,checkpointing=full")
    done = spbench(tmp_path, *SMALL, *words, *fixed, "--json", torch=True)
    assert done.code == DONE, done.err
    data = json.loads(done.out)
    assert data["best"] == f"{data['plan']['name']} dp=2"
    assert data["plan"] == {
        "strategy": data["best"],
        "name": data["plan"]["name"],
        "mesh": {"dp": 2},
        "zero": 2,
        "checkpointing": "full",
    }
    assert {each["strategy"] for each in data["projected"]} <= {"dsp dp=2", "ulysses dp=2"}


def test_several_numbers_of_ranks_are_answered(tmp_path: Path, golden: Golden) -> None:
    words = ("-s", "ulysses", "-c", "l20-pcie", "-g", "2,4,16", "--set", "mode=forward")
    done = spbench(tmp_path, *SMALL, *words, torch=True)
    assert done.code == DONE, done.err
    golden(done.out)
    data = json.loads(spbench(tmp_path, *SMALL, *words, "--json", torch=True).out)
    assert [each["ranks"] for each in data["by_ranks"]] == [2, 4]
    assert [each["ranks"] for each in data["more_ranks"]] == [[2, 4]]
    assert list(data["cannot"]) == ["16"]
    assert done.out.startswith(data["answer"])


def test_the_command_that_decides_is_what_run_takes(tmp_path: Path) -> None:
    """Of plans that differ in mesh or weights each has a run, all into one folder."""
    settings = {"dsp dp=2": ["zero=1"], "ulysses tp=2": []}
    cluster = find("hgx-h100")
    cpu = cluster.model_copy(update={"device": cluster.device.model_copy(update={"kind": "cpu"})})
    asked = ["-w", "dsp-720m-small", "--set", "batch=2", "--set", "depth=1"]
    command = decisive_command([*settings], 2, cpu, asked, settings)
    for one in command.split(" && "):
        assert " --out DIR --add" in one
        words = shlex.split(one)[1:]
        done = spbench(tmp_path, *words, "--dry-run", torch=True)
        assert done.code == DONE, done.err
