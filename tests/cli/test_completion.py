"""What a shell completes behind ``spbench``, and what ``-h`` shows."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from helpers.command_line import spbench
from helpers.golden import Golden

from spbench.cli.help import EXAMPLES, HelpPage
from spbench.cli.main import COMMANDS, cli
from spbench.strategies.registry import BUILT_IN


def completed(line: str) -> list[str]:
    """What is offered for the last word of the line; ``file`` for the shell's own files."""
    *words, incomplete = line.split(" ")[1:]
    complete = ShellComplete(cli, {"auto_envvar_prefix": "SPBENCH"}, "spbench", "_X")
    found = complete.get_completions(words, incomplete)
    return [item.value if item.type == "plain" else item.type for item in found]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("spbench run -s us", ["usp"]),
        ("spbench check -g 2 --strategy dsp,u", ["dsp,ulysses", "dsp,usp"]),
        ("spbench run --strategy=me", ["megatron-sp", "megatron-tp", "megatron-core-sp"]),
        ("spbench run -w dsp-720m-", ["dsp-720m-small"]),
        ("spbench verify --workload ./mine", ["file"]),
        ("spbench run --sweep ci", ["ci-smoke"]),
        ("spbench recommend dsp-720m -c hgx-h1", ["hgx-h100"]),
        ("spbench show dsp-3b-", ["dsp-3b-small"]),
        ("spbench list sw", ["sweeps"]),
        ("spbench rep", [name for name in COMMANDS if name.startswith("rep")]),
        ("spbench run --strat", ["--strategy"]),
    ],
)
def test_names_are_completed(line: str, offered: list[str]) -> None:
    """Strategies and workloads also behind commas; files where no name of the catalogue fits."""
    assert completed(line) == offered


def test_all_strategies_are_offered() -> None:
    """With 'all' first."""
    assert completed("spbench run -s ")[: 1 + len(BUILT_IN)] == ["all", *BUILT_IN]


def test_runs_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their names under results/, and by their paths."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results" / "mine").mkdir(parents=True)
    (tmp_path / "results" / "mine" / "runs.csv").touch()
    assert completed("spbench compare m") == ["mine"]
    assert completed("spbench plot results/m") == ["results/mine"]
    assert completed("spbench compare mine other") == ["file"]


def test_completing_a_value_loads_no_command(tmp_path: Path) -> None:
    """Nobody waits for Tab: neither torch nor pandas nor pydantic is loaded."""
    script = (
        "import sys; from click.shell_completion import ShellComplete; "
        "from spbench.cli.main import cli; "
        "found = ShellComplete(cli, {}, 'spbench', '_X').get_completions(['run', '-s'], 'dsp'); "
        "print(len(found), *sorted({'torch', 'pandas', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "1\n"


def test_every_command_has_options_in_groups(golden: Golden) -> None:
    """A long list of options stands under headings."""
    ctx = click.Context(cli, info_name="spbench")
    for name in COMMANDS:
        known = cli.get_command(ctx, name)
        assert isinstance(known, HelpPage | click.Group), name
    page = cli.get_command(ctx, "run")
    assert page is not None
    text = page.get_help(click.Context(page, ctx, "run"))
    heads = [line for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    golden("\n".join(heads))


@pytest.mark.parametrize(
    "example", [example for examples in EXAMPLES.values() for example in examples]
)
def test_examples_are_well_formed(example: str) -> None:
    """Every flag that they give is one of the command's."""
    name, *words = shlex.split(example)
    command = cli.get_command(click.Context(cli), name)
    assert command is not None and command.make_context(name, words).params


def test_a_workload_to_fill_in(tmp_path: Path, golden: Golden) -> None:
    """It can be drawn as it is; nothing is overwritten, and the name becomes the workload's."""
    done = spbench(tmp_path, "init", "mine")
    assert done.code == 0
    golden(done.out)
    text = (tmp_path / "mine.yaml").read_text()
    golden(text, "the file")
    again = spbench(tmp_path, "init", "mine")
    assert again.code == 2
    golden(again.err, "written already")
    assert spbench(tmp_path, "init").code == spbench(tmp_path, "init", "in/a.yaml").code == 0
    assert "\nname: a\n" in (tmp_path / "in" / "a.yaml").read_text()
    refused = spbench(tmp_path, "init", "a: b")
    assert (refused.code, "a: b.yaml" in refused.err) == (2, True)
    drawn = spbench(tmp_path, "show", "mine.yaml", "-s", "dsp", "-g", "2", torch=True)
    assert (drawn.code, drawn.out.splitlines()[0]) == (0, "mine")


def test_a_workload_of_a_config_json(tmp_path: Path, golden: Golden) -> None:
    """What it writes can be drawn; nothing is overwritten, and a file to read is none to write."""
    keys = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336}
    keys |= {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}
    (tmp_path / "config.json").write_text(json.dumps(keys | {"vocab_size": 128256}))
    done = spbench(tmp_path, "init", "mine", "--from", "config.json")
    assert done.code == 0
    golden(done.out)
    for words in (
        ("init", "mine", "--from", "."),
        ("init", "config.json"),
        ("init", "other", "--from", "nowhere.json"),
        ("show", "config.json"),
    ):
        refused = spbench(tmp_path, *words)
        assert refused.code == 2
        golden(refused.err, " ".join(words))
    drawn = spbench(tmp_path, "show", "mine.yaml", "-s", "ulysses", "-g", "2", torch=True)
    assert (drawn.code, drawn.out.splitlines()[0]) == (0, "mine")
