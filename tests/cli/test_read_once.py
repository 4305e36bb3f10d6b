"""A command reads the files of a run once, however often it asks."""

from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers.example_rows import rows

from spbench.cli.main import cli
from spbench.results.run_json import read_run
from spbench.results.store import Store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of two strategies with a run.json."""
    with Store(tmp_path / "run") as store:
        store.write_run({"argv": ["spbench", "run"], "reference": "dsp"})
        store.copy([*rows("dsp", [10.0, 10.1, 9.9]), *rows("rsa", [11.0, 11.1, 10.9])])
    return tmp_path / "run"


def test_compare_reads_each_file_of_a_run_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """runs.csv and run.json alike, though rows, reference and missing launches ask for them."""
    reads = Counter[str]()
    as_text, as_bytes = Path.read_text, Path.read_bytes

    def read_text(path: Path, *args: str, **named: str) -> str:
        reads[path.name] += 1
        return as_text(path, *args, **named)

    def read_bytes(path: Path) -> bytes:
        reads[path.name] += 1
        return as_bytes(path)

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    result = CliRunner().invoke(cli, ["compare", str(folder)], standalone_mode=False)
    assert result.exception is None
    assert (reads["runs.csv"], reads["run.json"]) == (1, 1)


def test_a_run_json_that_was_written_anew_is_read_anew(folder: Path) -> None:
    """Of the same length, and at once: a run replaces its file."""
    assert read_run(folder)["reference"] == "dsp"
    with Store(folder) as store:
        store.write_run({"argv": ["spbench", "run"], "reference": "rsa"})
    assert read_run(folder)["reference"] == "rsa"
