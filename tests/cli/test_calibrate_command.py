"""``spbench calibrate``: what it refuses; that it writes a cluster is tested with real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.command_line import spbench
from helpers.golden import Golden

from spbench.errors import DONE, SOME_FAILED, USAGE
from spbench.projection.costmodel.cluster_file import find

NODES = ("--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", "localhost:29400")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a/b",), "'a/b' is not a name of a cluster"),
        (("here", "-g", "1"), "a single rank has no links; give 1,2 or more"),
        (("here", "-g", "1", "--onto", "hgx-h100"), "is of cuda, and ranks compute on cpu here"),
        (("here", "-g", "1", "--onto", "hgx-h10"), "unknown cluster 'hgx-h10'"),
        (("here", "-g", "1", "--onto", "hgx-h10"), "'hgx-h100'? A cluster of your own goes by its"),
        (("here", "-g", "2", "--onto", "hgx-h100"), "gives one rank its links: -g 1, not 2"),
        (("here", "-g", "1", "--onto", "hgx-h100", *NODES), "leave out --nnodes"),
        (("here", "-g", "1,x"), "is not a number of ranks"),
        (("here", "-w", "dsp-720"), "unknown workload 'dsp-720'"),
        (("here", "-o", "mine"), "--out mine is not the name of a YAML file; write mine.yaml"),
        (("here", "-o", "taken.yaml"), "--out taken.yaml is a folder; name a file in it"),
        (("here", "-o", "file/mine.yaml"), "file; name another folder"),
    ],
)
def test_what_cannot_be_timed_is_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "taken.yaml").mkdir()
    (tmp_path / "file").touch()
    done = spbench(tmp_path, "calibrate", *words, "--device", "cpu", torch=True)
    assert done.code == USAGE
    assert said in done.err


def test_fewer_ranks_than_asked_for_are_kept_with_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """That of a run in which some cases failed."""
    cluster = find("hgx-h100")
    monkeypatch.setattr("spbench.projection.microbench.calibrate.calibrate", lambda *_: cluster)
    words = ("calibrate", "mine", "-g", "1,2", "--device", "cpu")
    assert spbench(tmp_path, *words, torch=True).code == DONE  # its network joins any number
    for most, code in ((8, SOME_FAILED), (2, DONE)):
        levels = (cluster.levels[0].model_copy(update={"ranks": 2}),)
        own = {"levels": levels, "on_ranks": (), "drawn_together": ()}
        cluster = cluster.model_copy(update=own)
        words = ("calibrate", "mine", "-g", f"1,{most}", "--device", "cpu")
        done = spbench(tmp_path, *words, torch=True)
        assert done.code == code, done.err
        golden(done.out, f"of {most} ranks")


@pytest.mark.long
def test_two_ranks_write_a_cluster(tmp_path: Path) -> None:
    words = ("calibrate", "mine", "-g", "1,2", "-w", "dsp-720m-small", "--device", "cpu")
    done = spbench(tmp_path, *words, torch=True)
    assert done.code == DONE, done.err
    cluster = find(str(tmp_path / "results" / "clusters" / "mine.yaml"))
    assert [part.ranks for part in cluster.on_ranks] == [1]
    assert cluster.device.kind == "cpu"
    assert "float32" in cluster.device.products.tflops
