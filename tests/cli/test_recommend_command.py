"""``spbench recommend``: an answer first, and refusals that say what would work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.command_line import spbench

from spbench.errors import DONE, USAGE

SMALL = ("recommend", "dsp-720m-small", "--device", "cpu")


def test_the_answer_comes_first(tmp_path: Path) -> None:
    words = ("-s", "dsp,ulysses", "-c", "hgx-h100", "-g", "2")
    done = spbench(tmp_path, *SMALL, *words, torch=True)
    assert done.code == DONE, done.err
    assert "is the fastest for dsp-720m-small on 2 ranks of hgx-h100" in done.out.splitlines()[0]
    data = json.loads(spbench(tmp_path, *SMALL, *words, "--json", torch=True).out)
    assert data["best"] in ("dsp", "ulysses")
    assert all(each["peak_bytes"] > 0 for each in data["projected"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-c", "hgx-h10"), "Did you mean 'hgx-h100'?"),
        (("-c", "hgx-h100", "-g", "2,4"), "one number of ranks"),
        (("-c", "hgx-h100", "-s", "ulises"), "Did you mean 'ulysses'?"),
        ((), "--cluster"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = spbench(tmp_path, *SMALL, *words, torch=True)
    assert done.code == USAGE
    assert said in done.err
