"""A plug-in that cannot be loaded: named, left out of 'all', and an error only where asked for."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.command_line import spbench
from helpers.golden import Golden

from spbench.errors import USAGE
from spbench.strategies.registry import BUILT_IN

pytestmark = pytest.mark.usefixtures("work_is_made_up")

BROKEN = {
    "gone": ("no_such_module_of_a_plug_in:Gone", "ModuleNotFoundError: No module named"),
    "nameless": ("spbench.text", "TypeError: 'spbench.text' names no class; write module:Class"),
    "classless": ("spbench.text:Missing", "AttributeError: module 'spbench.text' has no attribute"),
    "raising": ("raising_plug_in:Any", "ZeroDivisionError: as it is imported"),
    "leaving": ("leaving_plug_in:Any", "SystemExit: 3"),
    "no-strategy": ("fractions:Fraction", "TypeError: Fraction is not a Strategy"),
    "abstract": ("spbench.strategies.base:Strategy", "TypeError: Can't instantiate abstract class"),
}
"""Where each plug-in says that its class is, and how that goes wrong."""


Call = Callable[..., tuple[int, str, list[str]]]
"""Words to exit code, stdout, and the lines of stderr."""


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls spbench where all of these plug-ins are installed, beside a sound one."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "raising_plug_in.py").write_text("raise ZeroDivisionError('as it is imported')\n")
    (tmp_path / "leaving_plug_in.py").write_text("raise SystemExit(3)\n")
    places = {name: place for name, (place, _) in BROKEN.items()} | {"sound": BUILT_IN["dsp"]}
    points = [
        importlib.metadata.EntryPoint(name, place, "spbench.strategies")
        for name, place in places.items()
    ]
    monkeypatch.setattr("spbench.strategies.registry.entry_points", lambda group: points)

    def called(*words: str) -> tuple[int, str, list[str]]:
        done = spbench(tmp_path, *words, torch=True)
        return done.code, done.out, done.err.splitlines()

    return called


@pytest.mark.parametrize(
    "words",
    ["list strategies --json", "run --device cpu --dry-run --json", "show dsp-720m-small --json"],
)
def test_all_leaves_them_out(call: Call, words: str, golden: Golden) -> None:
    """The other strategies go on, and stderr says once which were left out, and why."""
    code, out, err = call(*words.split())
    assert code == 0, err
    for (name, (place, why)), line in zip(BROKEN.items(), err, strict=True):
        assert repr(name) in line and f"({place})" in line and f": {why}" in line, line
        assert f'"{name}"' not in out
    if words.startswith("list"):
        golden("\n".join(err))
    for name in (*BUILT_IN, "sound"):
        assert f'"{name}"' in out


@pytest.mark.parametrize("words", ["run --dry-run --device cpu", "verify", "show dsp-720m-small"])
@pytest.mark.parametrize("name", BROKEN)
def test_asking_for_one_is_an_error(call: Call, words: str, name: str) -> None:
    """Exit 2 with the plug-in and the reason, before anything starts."""
    code, out, err = call(*words.split(), "-s", f"dsp,{name}")
    assert (code, out) == (USAGE, "")
    assert err[-1].startswith("Error: ") and repr(name) in err[-1]
    assert BROKEN[name][1] in err[-1]


def test_no_plug_in_is_loaded_for_a_built_in_strategy(call: Call) -> None:
    """Broken plug-ins are not even mentioned where they are not asked for."""
    code, _, err = call("show", "dsp-720m-small", "-s", "dsp")
    assert (code, err) == (0, [])


def test_a_sweep_leaves_them_out(call: Call, tmp_path: Path) -> None:
    """'all' in a sweep file is as on the command line."""
    text = "name: x\nstrategies: [all]\nworkloads: [dsp-720m-small]\ngpus: [2]\n"
    (tmp_path / "x.yaml").write_text(text)
    words = ("run", "--sweep", "x.yaml", "--device", "cpu", "--dry-run", "--json")
    code, out, err = call(*words)
    assert code == 0, err
    assert {row["strategy"] for row in json.loads(out)} == {*BUILT_IN, "sound"}
    assert len(err) == len(BROKEN)
