"""The command line as a user meets it: quick answers, exact mistakes, right exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import click
import pytest
from helpers.command_line import CASE, ROOT, Done, record, spbench
from helpers.golden import TRACEBACK, Golden
from helpers.in_process import inside

from spbench.cli import error_handling
from spbench.cli import main as entry
from spbench.cli.selection import parse_ranks
from spbench.errors import DONE, READER_GONE, SOME_FAILED, UNFIT, USAGE, Failure
from spbench.launch.launcher import LaunchResult
from spbench.report.plots import figure
from spbench.report.plots.figure import Sheet
from spbench.results.hand_over import CHECKED, Checked, sample_path
from spbench.results.store import Store
from spbench.strategies.registry import expand_names, load
from spbench.sweep import devices, verification
from spbench.sweep.plan import cells, without_unfit
from spbench.sweep.request import Request, every, from_sweep_file
from spbench.sweep.run_folder import output_folder
from spbench.workload.case import Job
from spbench.workload.config_names import names

pytestmark = pytest.mark.usefixtures("work_is_made_up")

FLAGS = {
    "run": [
        "--add",
        "--device",
        "--dry-run",
        "--dtype",
        "--fresh",
        "--gpus",
        "--hang-after",
        "--join-timeout",
        "--json",
        "--launches",
        "--max-time",
        "--mesh",
        "--nnodes",
        "--node-rank",
        "--out",
        "--peak-tflops",
        "--quick",
        "--rdzv-endpoint",
        "--seed",
        "--set",
        "--compiled",
        "--graph",
        "--share",
        "--skip-invalid",
        "--small",
        "--strategy",
        "--sweep",
        "--timeout",
        "--verbose",
        "--workload",
        "-g",
        "-s",
        "-v",
        "-w",
    ],
    "resume": [
        "--hang-after",
        "--join-timeout",
        "--json",
        "--max-time",
        "--nnodes",
        "--node-rank",
        "--rdzv-endpoint",
        "--timeout",
        "--verbose",
        "-v",
        "RUN",
    ],
    "compare": [
        "--allow-mismatch",
        "--baselines",
        "--csv",
        "--json",
        "--margin",
        "--markdown",
        "--reference",
        "RUNS",
    ],
    "plot": [
        "--baselines",
        "--facet",
        "--format",
        "--gpus",
        "--json",
        "--kind",
        "--metric",
        "--out",
        "--page",
        "--strategy",
        "--workload",
        "--x",
        "-g",
        "-s",
        "-w",
        "RUN",
    ],
    "report": [
        "--baselines",
        "--gpus",
        "--json",
        "--out",
        "--page",
        "--strategy",
        "--workload",
        "-g",
        "-s",
        "-w",
        "RUN",
    ],
    "history": [
        "--baselines",
        "--gpus",
        "--json",
        "--margin",
        "--out",
        "--strategy",
        "--workload",
        "-g",
        "-s",
        "-w",
    ],
    "baseline": [],
    "check": [
        "--base-ref",
        "--baseline",
        "--baselines",
        "--device",
        "--dtype",
        "--gpus",
        "--hang-after",
        "--json",
        "--junit",
        "--launches",
        "--markdown",
        "--max-memory",
        "--max-slowdown",
        "--mesh",
        "--metrics",
        "--out",
        "--set",
        "--skip-invalid",
        "--small",
        "--strategy",
        "--strict",
        "--sweep",
        "--timeout",
        "--workload",
        "-g",
        "-s",
        "-w",
        "RUN",
    ],
    "verify": [
        "--device",
        "--dtype",
        "--gpus",
        "--hang-after",
        "--json",
        "--mesh",
        "--small",
        "--strategy",
        "--timeout",
        "--workload",
        "-g",
        "-s",
        "-w",
    ],
    "project": [
        "--against",
        "--axis",
        "-c",
        "--cluster",
        "--compiled",
        "--csv",
        "--gpus",
        "--json",
        "--kernel",
        "--mesh",
        "--out",
        "--set",
        "--share",
        "--strategy",
        "-g",
        "-s",
        "WORKLOAD",
    ],
    "recommend": [
        "--cluster",
        "--compiled",
        "--fixed",
        "--gpus",
        "--json",
        "--set",
        "--share",
        "--strategy",
        "-c",
        "-g",
        "-s",
        "WORKLOAD",
    ],
    "show": ["--gpus", "--json", "--mesh", "--set", "--strategy", "-g", "-s", "WORKLOAD"],
    "capacity": [
        "--axis",
        "--device",
        "--gpus",
        "--hang-after",
        "--json",
        "--measure",
        "--memory",
        "--mesh",
        "--out",
        "--reserve",
        "--set",
        "--strategy",
        "--timeout",
        "-g",
        "-s",
        "WORKLOAD",
    ],
    "calibrate": [
        "--device",
        "--gpus",
        "--join-timeout",
        "--nnodes",
        "--node-rank",
        "--onto",
        "--out",
        "--rdzv-endpoint",
        "--timeout",
        "--workload",
        "-g",
        "-o",
        "-w",
        "NAME",
    ],
    "init": ["--cluster", "--from", "--like", "NAMES"],
    "list": ["--json", "WHAT"],
    "doctor": ["--device", "--gpus", "--json", "--timeout", "-g"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs under results/, of which 'made-up' is the latest."""
    folder = tmp_path_factory.mktemp("place")
    for at_s, name in enumerate(("older", "made-up")):
        with Store(folder / "results" / name) as store:
            store.append(record("dsp", step_ms=10.0, compute_ms=8.0, tokens_per_s=12800.0))
            store.append(record("rsa", step_ms=20.0, compute_ms=8.0, tokens_per_s=6400.0))
            store.append(record("ulysses", status="oom", reason="rank 1: no 3 GiB"))
        os.utime(folder / "results" / name / "runs.csv", (at_s, at_s))
    return folder


BAD_YAML = "version: 1\nname: mine\naxes: {time: 4}\nhiden: 32\nheads: 4\ndepth: 1\nblock: []\n"


AT_ONCE = ["ryn", "run --set haeds=3", "run --sweep sweep.yaml", "compare nowhere"]
"""Mistakes, each noticed by another part of the program."""
MISTAKES = [
    "run --stratgy dsp",
    "run -s ulises",
    "run -w bench.yaml",
    "run --device cuda",
    "run --sweep ci-smoke -s dsp",
    "run --max-time 200d",
    "show dsp-720",
    "plot",
    "verify -w bench.yaml --small",
    "list strategy",
    "zzz",
    "verify -s dsp,ulises",
    "run -w dsp-720",
    "run -w no.yaml",
    "run --set axes.tiem=3",
    "run --dtype float8",
    "run --gpus two",
    "run --sweep dsp-weak-inta",
    "run --sweep ci-smoke -g 3",
    "run --sweep ci-smoke -w latte-1",
    "run --sweep ci-smoke --set depth=1",
    "run --sweep ci-smoke --dtype float64",
    "run --launches 0",
    "verify --timeout 0m",
    "run --timeout nan",
    "show dsp-720m -s ulises",
    "show dsp-720m --set haeds=3",
    "show dsp-720m -g 0",
    "show dsp-720m -g 2,99999",
    "run --layers 4",
    "show dsp-720m --num-heads 4",
    "compare --depth 4",
    "run my-model.yaml",
    "show",
    "compare --refrence dsp",
    "compare",
    "verify --small",
    "run -w latte-1 --workload=bert-base",
    "run -g2 -g 4",
    "check --metrics time --metrics volume",
    "compare --margin 1% --margin 2%",
    "baseline list --baselines a --baselines=b",
    "list runs --json --nowhere",
    "show dsp-720m --set depth=2 --set depth=3",
    "show dsp-720m --set axes.time=2 --set 'axes={time: 4, space: 8}'",
    "run --set dtype=float64 --dtype float32",
    "run --seed 1 --seed 1 --quick --quick -w late-1",
    "plot -w one -w two",
]


@pytest.mark.parametrize("words", AT_ONCE)
def test_a_mistake_is_answered_at_once(tmp_path: Path, words: str, golden: Golden) -> None:
    """In under twice the time that the import of the libraries takes which most commands need."""
    check_answer(tmp_path, at_once(tmp_path, *shlex.split(words), libraries=2.0), golden)


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_are_answered(tmp_path: Path, words: str, golden: Golden) -> None:
    """Exit 2, one message that names what was meant, and no torch."""
    (tmp_path / "bench.yaml").write_text(BAD_YAML)
    check_answer(tmp_path, spbench(tmp_path, *shlex.split(words)), golden)


def check_answer(folder: Path, done: Done, golden: Golden) -> None:
    assert done.code == USAGE
    assert done.out == ""
    assert done.err.startswith("Error: ")
    assert done.err.count("Error") == 1
    assert len(done.err.splitlines()) <= 2
    assert not (folder / "results").exists()
    golden(done.err)


def at_once(folder: Path, *words: str, libraries: float) -> Done:
    """What the first of three tries gives that takes less than that many imports of the
    libraries beside it: processor time, which a slow or shared core lengthens in both alike."""
    (folder / "sweep.yaml").write_text("name: mine\ngpu: 2\n")
    imports = "import time, click, pandas, pydantic; print(time.process_time())"
    taken = []
    for _ in range(3):
        imports_s = float(subprocess.check_output([sys.executable, "-c", imports]))
        done = spbench(folder, *words, fresh=True)
        taken.append(done.cpu_s / imports_s)
        if taken[-1] < libraries:
            return done
    raise AssertionError(f"{words}: {taken} imports of the libraries, not under {libraries}")


def test_help_is_there_at_once(tmp_path: Path) -> None:
    """Every command is listed, with click alone; spbench without words prints the same."""
    done = at_once(tmp_path, "--help", libraries=0.5)
    assert (done.code, done.err) == (0, "")
    assert all(f"  {name} " in done.out for name in entry.COMMANDS)
    assert spbench(tmp_path).out == done.out


def test_ranks_start_before_pandas_is_imported() -> None:
    """pandas takes 0.3 s, and the first launch of a run needs none of it."""
    program = "import sys, spbench.cli.run_command; sys.exit('pandas' in sys.modules)"
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", program], env=environ, check=False).returncode == 0


@pytest.mark.parametrize("name", list(FLAGS))
def test_the_help_of_a_command_needs_no_torch(tmp_path: Path, name: str) -> None:
    """Each command explains each of its flags in a group and fits 80 columns, with -h."""
    done = spbench(tmp_path, name, "-h")
    assert (done.code, done.err) == (0, "")
    assert "Other options" not in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    assert [flag for flag in FLAGS[name] if flag[0] == "-" and flag not in done.out] == []


def test_the_trap_for_torch_works(tmp_path: Path, golden: Golden) -> None:
    """A command that does need torch cannot run without it, so the others do without."""
    done = spbench(tmp_path, "run", "--dry-run", TMPDIR=str(tmp_path))
    assert done.code == 1
    golden(done.err, hide=TRACEBACK)


@pytest.mark.parametrize("words", [["run", "-s", "dsp"], ["verify"], ["show", "dsp-720m"]])
def test_without_torch_a_command_that_needs_it_says_so(tmp_path: Path, words: list[str]) -> None:
    """Exit 6 and one sentence with the remedy; it is not a defect of spbench."""
    done = spbench(tmp_path, *words, torch=None)
    assert (done.code, done.out) == (UNFIT, "")
    assert done.err == f"Error: {error_handling.NO_TORCH}\n"


def test_flags_are_frozen() -> None:
    """A flag that goes or changes its name breaks users' scripts."""
    assert list(FLAGS) == list(entry.COMMANDS)
    for name, flags in FLAGS.items():
        command = entry.cli.get_command(click.Context(entry.cli), name)
        assert command is not None
        found = [
            flag.upper() if isinstance(one, click.Argument) else flag
            for one in command.params
            for flag in (*one.opts, *one.secondary_opts)
        ]
        assert sorted(found) == sorted(flags)
        assert command.get_short_help_str(100) == entry.COMMANDS[name]


@pytest.mark.parametrize("what", ["strategies", "workloads", "sweeps", "runs"])
def test_lists_need_no_torch(place: Path, what: str) -> None:
    """A table, and with --json the same rows as data."""
    shown = spbench(place, "list", what)
    data = spbench(place, "list", what, "--json", torch=True)
    assert (shown.code, data.code) == (0, 0)
    rows = json.loads(data.out)
    assert len(rows) >= 2
    assert all(str(next(iter(row.values()))) in shown.out for row in rows)
    assert "\x1b" not in shown.out


def test_the_runs_that_there_are(place: Path, tmp_path: Path, golden: Golden) -> None:
    """Each has counts of ok and other launches; no run has a sentence."""
    rows = json.loads(spbench(place, "list", "runs", "--json", torch=True).out)
    assert [(row["run"], row["ok"], row["other"], row["launches"]) for row in rows] == [
        ("made-up", 2, 1, 3),
        ("older", 2, 1, 3),
    ]
    nothing = spbench(tmp_path, "list", "runs", torch=True)
    golden(nothing.out)
    (tmp_path / "results" / "odd" / "runs.csv").mkdir(parents=True)
    done = spbench(tmp_path, "list", "runs", torch=True)
    assert done.code == 0
    assert done.out == nothing.out
    golden(done.err, "unreadable")
    assert json.loads(spbench(tmp_path, "list", "runs", "--json", torch=True).out) == []


def test_compare_shows_the_latest_run(place: Path, golden: Golden) -> None:
    """Data on stdout alone, without torch: who is faster, and what failed and why."""
    done = spbench(place, "compare")
    assert (done.code, done.err) == (0, "")
    assert "0.50x" in done.out
    golden(done.out)
    assert "\x1b" not in done.out
    named = [["made-up"], ["results/made-up"], ["results/made-up/runs.csv"]]
    assert {spbench(place, "compare", *words, torch=True).out for words in named} == {done.out}


def test_compare_as_data(place: Path) -> None:
    """--json holds each line, blanks as null, relative to the named reference."""
    done = spbench(place, "compare", "--json", "--reference", "rsa")
    lines = json.loads(done.out)
    assert [line["strategy"] for line in lines] == ["dsp", "rsa", "ulysses"]
    assert [line["speedup"] for line in lines] == [pytest.approx(2.0), pytest.approx(1.0), None]
    assert lines[0]["gate"] == "not run"


def test_the_reference_of_a_sweep(place: Path, tmp_path: Path) -> None:
    """run.json names it, for the folder as for its CSV; without a row of it the first counts."""
    for name, first in (("rsa", 2.0), ("megatron-sp", 1.0)):
        shutil.copytree(place / "results" / "made-up", tmp_path / name)
        (tmp_path / name / "run.json").write_text(json.dumps({"reference": name}))
        for run in (name, f"{name}/runs.csv"):
            lines = json.loads(spbench(tmp_path, "compare", run, "--json", torch=True).out)
            assert lines[0]["speedup"] == pytest.approx(first)


def test_a_reference_that_did_not_run(place: Path, golden: Golden) -> None:
    """The strategies of the run are offered."""
    done = spbench(place, "compare", "--reference", "megatron-sp", torch=True)
    assert done.code == USAGE
    golden(done.err)


def test_plot_writes_beside_the_run(place: Path) -> None:
    """The paths on stdout, without torch."""
    done = spbench(place, "plot")
    assert (done.code, done.err) == (0, "")
    paths = [Path(line) for line in done.out.splitlines()]
    assert {path.parent for path in paths} == {Path("results/made-up/plots")}
    assert {path.suffix for path in paths} == {".png", ".svg"}
    assert all((place / path).stat().st_size > 1000 for path in paths)


def test_where_plots_go(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Beside a run or a CSV file, but not into a baseline; with --json the paths are data."""
    (tmp_path / "file").touch()
    taken = spbench(place, "plot", "older", "--out", str(tmp_path / "file"), torch=True)
    assert taken.code == UNFIT
    golden(taken.err)

    def noted(sheets: Mapping[str, Sheet], folder: Path, _: Sequence[str]) -> list[Path]:
        return [folder / name for name in sheets]

    monkeypatch.setattr(figure, "save_all", noted)
    listed = spbench(place, "plot", "--json", torch=True)
    assert {Path(name).parent for name in json.loads(listed.out)} == {Path("results/made-up/plots")}
    words = ("baseline", "set", "mine", "--force", "--baselines", "kept")
    assert spbench(place, *words, torch=True).code == 0
    done = spbench(place, "plot", "baseline:mine", torch=True, SPBENCH_BASELINES="kept")
    assert (done.code, done.err) == (0, "")
    assert Path(done.out.split()[0]).parent == Path("results/baseline-mine/plots")
    alone = place / "results" / "made-up" / "other.csv"
    alone.write_bytes((place / "results" / "made-up" / "runs.csv").read_bytes())
    done = spbench(place, "plot", "results/made-up/other.csv", torch=True)
    assert {Path(line).parent for line in done.out.split()} == {Path("results/made-up/other-plots")}
    assert "launches" not in done.out


def test_a_reader_of_plot_that_goes_away_is_no_error(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of other commands (tests/processes/test_terminals.py): the exit code alone says it."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(figure, "save_all", lambda sheets, folder, formats: [folder / "a.png"])
    reading, writing = os.pipe()
    os.close(reading)
    with contextlib.suppress(BrokenPipeError), os.fdopen(writing, "w") as nobody:
        done = inside("plot", out=nobody)
        assert (done.code, done.err) == (READER_GONE, "")


def test_plot_draws_what_is_chosen(place: Path, tmp_path: Path) -> None:
    """By strategy, workload and ranks; what the run does not have is an error with what it has."""
    words = ["plot", "--out", str(tmp_path), "-w", "axes-2d", "-s", "dsp,ulysses", "-g", "2"]
    done = spbench(place, *words, torch=True)
    assert (done.code, done.err) == (0, "")
    text = (tmp_path / "throughput.svg").read_text()
    assert "ulysses" in text
    assert "rsa" not in text
    for wrong, said in (
        (
            ["-s", "usp"],
            "the run has no 'usp'. Did you mean 'dsp'?\n  There are dsp, rsa, ulysses.",
        ),
        (["-w", "axes"], "Did you mean 'axes-2d'?"),
        (["-g", "two"], "the run has no 'two'.\n  There are 2."),
        (["--page", "2"], "--page 2: the last page is 1"),
    ):
        done = spbench(place, "plot", *wrong, torch=True)
        assert done.code == USAGE
        assert said in done.err


TORN = "1 row of torn.csv is left out: more or fewer cells than the header (line 4)\n"


def test_a_damaged_run_is_shown_as_far_as_it_goes(place: Path, tmp_path: Path) -> None:
    """Sound rows on stdout, the number of the others on stderr; no row at all is an error."""
    content = (place / "results" / "made-up" / "runs.csv").read_bytes()
    (tmp_path / "torn.csv").write_bytes(content[:-80])
    done = spbench(tmp_path, "compare", "torn.csv", torch=True)
    assert (done.code, done.err) == (0, TORN)
    assert "rsa" in done.out
    (tmp_path / "noise.csv").write_bytes(os.urandom(3000))
    for words in (["noise.csv"], ["."]):
        done = spbench(tmp_path, "compare", *words, torch=True)
        assert done.code == USAGE
        assert "Error: " in done.err
        assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "environ",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"TERM": "dumb", "COLUMNS": "40"},
        {"FORCE_COLOR": "", "NO_COLOR": "1"},
    ],
)
def test_odd_terminals_are_served(place: Path, environ: dict[str, str]) -> None:
    """A C locale, ASCII, a dumb or narrow terminal: the table comes, without escape codes."""
    done = spbench(place, "compare", **environ)
    assert (done.code, done.err) == (0, "")
    assert "0.50x" in done.out
    assert "\x1b" not in done.out


def test_a_variable_stands_in_for_a_flag(tmp_path: Path, golden: Golden) -> None:
    """SPBENCH_RUN_WORKLOAD is used where -w is not given, and only there."""
    variable = {"SPBENCH_RUN_WORKLOAD": "dsp-720m-smal"}
    golden(spbench(tmp_path, "run", **variable).err)
    flagged = spbench(tmp_path, "run", "-w", "late-1", **variable)
    golden(flagged.err, "beside a flag")


def test_a_fault_that_is_not_understood_is_refused(tmp_path: Path, golden: Golden) -> None:
    """A mistyped fault would otherwise prove nothing."""
    done = spbench(tmp_path, "run", SPBENCH_FAULT="slow@rank1:fast")
    assert (done.code, done.out) == (USAGE, "")
    golden(done.err)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("words", "launches"),
    [
        (["-s", "dsp"], 3),
        (["-s", "dsp", "--quick"], 1),
        (["-s", "dsp", "--quick", "--launches", "2"], 2),
        (["--sweep", "two.yaml"], 2),
        (["--sweep", "mine.yaml"], 3),
        (["--sweep", "two.yaml", "--quick"], 1),
        (["--sweep", "two.yaml", "--launches", "5"], 5),
    ],
)
def test_how_often_each_case_is_launched(tmp_path: Path, words: list[str], launches: int) -> None:
    """The flag beats --quick, which beats the file, which beats the default of three."""
    text = "name: mine\nworkloads: earthformer-small\nstrategies: dsp\ngpus: 2\n"
    (tmp_path / "mine.yaml").write_text(text)
    (tmp_path / "two.yaml").write_text(f"{text}launches: 2\n")
    done = spbench(tmp_path, "run", *words, "--dry-run", "--json", torch=True)
    assert {row["launch"] for row in json.loads(done.out)} == set(range(launches))


def test_what_does_not_fit_is_refused_before_any_start(tmp_path: Path, golden: Golden) -> None:
    """8 ranks on 6 heads: exit 2 within seconds, with the values that would work."""
    words = ["--strategy", "ulysses", "--gpus", "8", "--set", "heads=6"]
    done = spbench(tmp_path, "run", *words, torch=True)
    assert done.code == USAGE
    golden(done.err)
    advice = "\n  Or -g 4 (ranks that all can use), or --skip-invalid to leave such cells out.\n"
    assert done.err.endswith(advice)
    assert done.cpu_s < 5.0
    assert not (tmp_path / "results").exists()


def test_strategies_that_can_run_are_named(tmp_path: Path) -> None:
    """They are the requested strategies that can run it on every requested number of ranks."""
    words = ["run", "-w", "llama3-8b", "--gpus", "8,32", "--dry-run"]
    done = spbench(tmp_path, *words, "-s", "dsp,rsa,megatron-sp,ulysses", torch=True)
    assert done.code == USAGE
    can = "rsa,megatron-sp,ulysses"
    said = f"  Or -s {can} (those that can run it), or --skip-invalid to leave such cells out."
    assert done.err.splitlines()[-1] == said
    works = spbench(tmp_path, *words, "-s", can, torch=True)
    assert (works.code, works.err) == (0, "")


def test_a_dry_run_shows_every_cell(tmp_path: Path, golden: Golden) -> None:
    """--json parses: predicted bytes where a cell can run, the reason where it cannot."""
    words = ["-s", "dsp,ulysses", "--gpus", "2,8", "--set", "heads=6", "--skip-invalid"]
    done = spbench(tmp_path, "run", *words, "--dry-run", "--json", torch=True)
    assert (done.code, done.err) == (0, "")
    cells = {(cell["strategy"], cell["ranks"]): cell for cell in json.loads(done.out)}
    assert len(cells) == 4
    assert cells["dsp", 8]["why_not"] is None
    assert cells["dsp", 8]["sent_bytes"]["forward"] > 0
    assert cells["dsp", 8]["flops"] == {"gemm": 8 * 10**9, "attention": 10**8}  # as made up
    assert cells["dsp", 8]["kernels"] == 1234
    assert cells["dsp", 8]["peak_bytes"]["activations"] == 11 * 2**20
    assert cells["ulysses", 8]["flops"] is cells["ulysses", 8]["peak_bytes"] is None
    golden(cells["ulysses", 8]["why_not"])
    assert not (tmp_path / "results").exists()
    done = spbench(tmp_path, "run", *words, "--dry-run", "--launches", "7", torch=True)
    plan, counted = (
        [line.split() for line in part.splitlines() if line.startswith(" dsp   ") and " 8 " in line]
        for part in done.out.split("a step on the busiest rank, counted")
    )
    assert [row[:3] for row in plan] == [["dsp", "8", "7"]]
    assert [row[:2] for row in counted] == [["dsp", "8"]]


def test_a_dry_run_is_of_any_ranks_on_any_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """1,024 ranks on cuda where no GPU is are counted, with a sentence that they cannot start here;
    without --gpus it is as many as a node has."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    words = ["run", "-w", "dsp-3b", "-s", "usp", "--device", "cuda"]
    done = spbench(tmp_path, *words, "--gpus", "1024", "--dry-run", torch=True)
    assert done.code == 0, done.err
    golden(done.out)
    assert "--device cpu" not in done.out  # which would answer another question
    done = spbench(tmp_path, *words, "--dry-run", "--json", torch=True)
    assert {(row["ranks"], row["device"]) for row in json.loads(done.out)} == {(8, "cuda")}
    refused = spbench(tmp_path, *words, "--gpus", "8", torch=True)
    assert refused.code == USAGE
    golden(refused.err, "started")


SWEEP = """\
name: mine
workloads: [earthformer-small, latte-1-small]
strategies: [dsp, rsa]
gpus: 2
launches: 2
reference: rsa
set: {depth: 1}
matrix: {batch: [1, 2]}
exclude: [{strategy: rsa, batch: 2}]
"""


def test_a_dry_run_of_a_sweep_shows_every_cell(tmp_path: Path) -> None:
    """Each launch of each cell of the file, with its workload; --launches beats the file."""
    (tmp_path / "mine.yaml").write_text(SWEEP)
    words = ["run", "--sweep", "mine.yaml", "--dry-run"]
    done = spbench(tmp_path, *words, "--json", torch=True)
    assert (done.code, done.err) == (0, "")
    rows = json.loads(done.out)
    found = [(row["workload"], row["batch"], row["strategy"]) for row in rows]
    once = [
        (f"{workload} depth=1", batch, strategy)
        for workload in ("earthformer-small", "latte-1-small")
        for batch, strategy in ((1, "dsp"), (1, "rsa"), (2, "dsp"))
    ]
    assert found[:6] == once
    assert sorted(found[6:]) == sorted(once)
    assert [row["launch"] for row in rows] == [0] * 6 + [1] * 6
    assert all(row["sent_bytes"]["forward"] > 0 for row in rows)
    shown = spbench(tmp_path, *words, "--launches", "1", torch=True)
    assert shown.out.count(" dsp  ") == 2 * 4  # in the plan, and among what is counted
    assert shown.out.count("latte-1-small depth=1: ") == 2 * 2


def test_a_sweep_of_small_forms_on_few_ranks() -> None:
    """--small and --gpus make a laptop's sweep of a paper's; what does not fit is named."""
    small = from_sweep_file("dsp-weak-intra", "cpu", small=True, ranks=[1, 2])
    found = {
        (c.workload.name, *c.workload.axes.values(), c.workload.batch, c.ranks)
        for c in small.combinations
    }
    assert found == {
        *(("dsp-720m-small", 8, 512, ranks, ranks) for ranks in (1, 2)),
        *(("dsp-3b-small", 4, 1024, ranks, ranks) for ranks in (1, 2)),
    }
    with pytest.raises(Failure, match=r"--gpus 3: .* 1,2,4,8 "):
        from_sweep_file("dsp-weak-intra", "cpu", ranks=[2, 3])


@pytest.mark.parametrize("name", names("sweeps"))
def test_every_sweep_starts_in_its_small_form(
    name: str, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """Ranks that a small workload cannot use are left out for all strategies, and it is said."""
    whole = from_sweep_file(name, "cpu", small=True)
    request = without_unfit(whole)
    planned = cells(replace(request, launches=1))
    assert planned and (whole.skip_invalid or all(cell.why_not is None for cell in planned))
    left_out = {c.ranks for c in whole.combinations} - {c.ranks for c in request.combinations}
    said = capsys.readouterr().err
    assert left_out == set()  # the other workload has them
    if name in ("dsp-strong-intra", "dsp-weak-intra"):
        golden(said)
        assert len(whole.combinations) - len(request.combinations) == 5
    else:
        assert said == ""


def test_every_strategy_that_is_out_has_its_reason(tmp_path: Path, golden: Golden) -> None:
    """Those of one reason are named together; ranks that all can use are asked for, and work."""
    named = "dsp,ulysses,megatron-sp,rsa,ring,kv-gather,attention-2d,usp"
    words = ["run", "-w", "dsp-3b-small", "--dry-run", "-s", named, "-g"]
    done = spbench(tmp_path, *words, "64", torch=True)
    golden(done.err)
    assert spbench(tmp_path, *words, "4", torch=True).code == 0
    several = spbench(tmp_path, *words, "2,4,64", torch=True)
    golden(several.err, "on several numbers of ranks")


def test_of_all_strategies_each_has_a_row(tmp_path: Path, golden: Golden) -> None:
    """With -s all what declines is shown with its reason beside what runs; if none can run, the
    request is refused."""
    words = ["run", "-w", "hunyuanvideo-small", "-g", "4", "--dry-run", "--json", "--device", "cpu"]
    done = spbench(tmp_path, *words, "-s", "all", torch=True)
    assert done.code == 0
    why = {row["strategy"]: row["why_not"] for row in json.loads(done.out)}
    assert {*why} == {*expand_names(["all"])}
    assert {name for name in why if why[name]} == {"dsp", "halo"}
    refused = spbench(tmp_path, *words, "--mesh", "cfg=2", torch=True)
    assert (refused.code, refused.out) == (USAGE, "")
    golden(refused.err)


def test_a_mesh_around_strategies(tmp_path: Path, golden: Golden) -> None:
    """--mesh is repeated to compare; a mistyped one is refused with one that would work."""
    words = [
        "run",
        "-s",
        "ulysses",
        "-g",
        "4",
        "--set",
        "guidance=2",
        "--dry-run",
        "--device",
        "cpu",
    ]
    meshes = ["--mesh", "cfg=1", "--mesh", "cfg=2"]
    done = spbench(tmp_path, *words, *meshes, "--json", torch=True)
    rows = {row["case"]: row for row in json.loads(done.out)}.values()
    assert [row["strategy"] for row in rows] == ["ulysses", "ulysses cfg=2"]
    whole, half = (row["sent_bytes"]["forward"] for row in rows)
    assert whole > half > 0
    for mesh in ("cfg=0", "cfg", "ring=2", "dp=1.5", "dp=2,dp=2", "tp=2,dp=2"):
        wrong = spbench(tmp_path, *words, "--mesh", mesh, torch=True)
        assert wrong.code == USAGE
        golden(wrong.err, mesh)


def test_small_is_for_sweeps(tmp_path: Path, golden: Golden) -> None:
    """Without one the message says how a small form is named."""
    done = spbench(tmp_path, "run", "-w", "dsp-720m", "--small")
    assert done.code == USAGE
    golden(done.err)


def test_cells_of_a_sweep_that_cannot_run(tmp_path: Path, golden: Golden) -> None:
    """Exit 2 with the reason, unless the file or the flag leaves them out."""
    text = "name: mine\nworkloads: earthformer-small\nstrategies: ulysses\ngpus: [2, 8]\n"
    (tmp_path / "mine.yaml").write_text(text)
    (tmp_path / "skips.yaml").write_text(f"{text}skip_invalid: true\n")
    words = ["run", "--dry-run", "--json", "--sweep"]
    refused = spbench(tmp_path, *words, "mine.yaml", torch=True)
    assert refused.code == USAGE
    golden(refused.err)
    several = text.replace("ulysses", "[ulysses, rsa]")
    (tmp_path / "several.yaml").write_text(several)
    refused = spbench(tmp_path, *words, "several.yaml", torch=True)
    golden(refused.err, "of several strategies")
    for more in (["skips.yaml", "--quick"], ["mine.yaml", "--skip-invalid", "--launches", "1"]):
        rows = json.loads(spbench(tmp_path, *words, *more, torch=True).out)
        assert [row["why_not"] is None for row in rows] == [True, False]


class Declining:
    """A launcher of ranks that decline every check."""

    def run(self, job: Job, folder: Path) -> LaunchResult:
        folder.mkdir(parents=True)
        why = [load(check.strategy).why_not(check.workload, job.ranks) for check in job.checks]
        for rank in range(job.ranks):
            found = CHECKED.dump_json([Checked(declined=reason or "") for reason in why])
            sample_path(folder, rank).write_bytes(found)
        return LaunchResult(ok=True)

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("is_real", [False, pytest.param(True, marks=pytest.mark.long)])
def test_nothing_proved_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_real: bool, golden: Golden
) -> None:
    """Where every check is declined, the last line says so and the exit code is not 0."""
    if not is_real:
        monkeypatch.setattr(verification, "LocalLauncher", lambda _: Declining())
    words = ["verify", "-w", "bert-base-small", "-g", "2", "--device", "cpu"]
    done = spbench(tmp_path, *words, "-s", "dsp", torch=True)
    assert done.code == SOME_FAILED
    assert "declined: " in done.out
    if not is_real:
        golden(done.err)


def test_nothing_measured_is_no_success(tmp_path: Path, golden: Golden) -> None:
    """Every case is left out; the rows say why."""
    words = ["run", "-s", "dsp", "-w", "bert-base-small", "-g", "2", "--device", "cpu", "--json"]
    done = spbench(tmp_path, *words, "--skip-invalid", torch=True)
    assert done.code == SOME_FAILED
    assert [row["status"] for row in json.loads(done.out)] == ["skipped"] * 3
    golden(done.err.splitlines()[-1])


def test_a_variable_cannot_choose_cells_beside_a_sweep(tmp_path: Path, golden: Golden) -> None:
    """It is refused by its own name, as a flag is; a variable whose flag may be given is used."""
    done = spbench(tmp_path, "run", "--sweep", "ci-smoke", SPBENCH_RUN_WORKLOAD="gpt-7b")
    assert done.code == USAGE
    golden(done.err)
    words = ["run", "--sweep", "ci-smoke", "--dry-run", "--json"]
    rows = json.loads(spbench(tmp_path, *words, torch=True, SPBENCH_RUN_LAUNCHES="2").out)
    assert {row["launch"] for row in rows} == {0, 1}


def test_a_sweep_runs(tmp_path: Path, warm_launcher: None) -> None:
    """A row for each cell, lines that say of which workload, the file's reference remembered."""
    other = "{workload: earthformer-small, gpus: 8, strategies: ulysses, set: {batch: 3}}"
    text = f"""\
name: mine
workloads: earthformer-small
strategies: [dsp, rsa]
gpus: 2
reference: rsa
skip_invalid: true
set: {{depth: 1, hidden: 32, axes: {{time: 13, height: 4, width: 4}}}}
include: [{other}]
"""
    (tmp_path / "mine.yaml").write_text(text)
    words = ["run", "--sweep", "mine.yaml", "--quick", "--device", "cpu"]
    done = spbench(tmp_path, *words, torch=True)
    assert done.code == 0, done.err
    (folder,) = (tmp_path / "results").iterdir()
    assert folder.name.endswith("-mine")
    assert json.loads((folder / "run.json").read_text())["reference"] == "rsa"
    (measured,) = [line for line in done.err.splitlines() if "rsa on" in line and "step" in line]
    (skipped,) = [line for line in done.err.splitlines() if "skipped" in line]
    assert "batch 1" in measured and "gate" in measured
    assert "batch 3" in skipped and "ulysses on 8" in skipped and "4 heads" in skipped
    compared = spbench(tmp_path, "compare", torch=True)
    assert compared.out == done.out
    for words, base in (([], "rsa"), (["--reference", "dsp"], "dsp")):
        lines = json.loads(spbench(tmp_path, "compare", "--json", *words, torch=True).out)
        assert [line["speedup"] == 1.0 for line in lines if line["strategy"] == base] == [True]
        assert [line["status"] for line in lines] == ["ok", "ok", "skipped"]


def test_a_place_that_cannot_be_written_is_unfit(tmp_path: Path, golden: Golden) -> None:
    """Exit 6 before ranks are started."""
    (tmp_path / "file").touch()
    words = ["run", "-s", "dsp", "--gpus", "2", "--out"]
    done = spbench(tmp_path, *words, "file/inside", torch=True)
    assert (done.code, done.out) == (UNFIT, "")
    golden(done.err)


def test_a_place_that_is_no_run_is_refused(tmp_path: Path) -> None:
    """A file, or a folder with other things in it, is not written into."""
    (tmp_path / "file").touch()
    words = ["run", "-s", "dsp", "--gpus", "2", "--out"]
    for place, said in (("file", "is a file"), (".", "holds other things than a run")):
        done = spbench(tmp_path, *words, place, torch=True)
        assert done.code == USAGE
        assert said in done.err
    assert not (tmp_path / "runs.csv").exists()
    assert not (tmp_path / "run.json").exists()


@pytest.mark.parametrize(
    "text", ["0", "-1", "two", "", "1,,2", "1;2", "1.5", "1e3", "9" * 5000, "99999", "1,99999"]
)
def test_bad_numbers_of_ranks(text: str) -> None:
    """Zero, negative, huge or not a number: the message says what to write."""
    with pytest.raises(Failure, match=r"^--gpus .*(1,2,4|1 to 1024)") as caught:
        parse_ranks(text, "cpu")
    assert caught.value.code == USAGE


def test_good_numbers_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each counts once, in the order given; the default is all GPUs, or 2 on a CPU."""
    assert parse_ranks("4, 1,4", "cpu") == [4, 1]
    assert parse_ranks(None, "cpu") == [2]
    with_gpus(monkeypatch, 4)
    assert parse_ranks(None, "cuda") == [4]


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int, visible: str | None = None) -> None:
    """Simulates a machine with ``count`` GPUs."""
    monkeypatch.setattr(devices, "gpus_here", lambda: [{"name": "a GPU"}] * count)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 4), ("0,2", 2), ("", 0), ("-1", 0), ("0,1,2,3,4,5", 4)]
)
def test_only_visible_gpus_count(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int
) -> None:
    """CUDA_VISIBLE_DEVICES hides GPUs from spbench as it does from torch."""
    with_gpus(monkeypatch, 4, visible)
    assert len(devices.visible_gpus()) == count
    assert devices.choose_device("auto") == ("cuda" if count else "cpu")
    assert devices.choose_device("cpu") == "cpu"


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("1", ["B"]),
        ("1,0", ["B", "A"]),
        ("GPU-b", ["B"]),
        ("0,7,1", ["A"]),
        ("MIG-1", ["H100 MIG 1g.10gb"]),
        ("0,MIG-1", ["H100 MIG 1g.10gb"]),
    ],
)
def test_visible_gpus_are_those_that_are_named(
    monkeypatch: pytest.MonkeyPatch, visible: str, names: list[str]
) -> None:
    """Their facts, in the order of the variable; a name without a GPU ends it, as for CUDA."""
    facts = [{"name": "A", "uuid": "GPU-a"}, {"name": "B", "uuid": "GPU-b"}]
    monkeypatch.setattr(devices, "gpus_here", lambda: facts)
    monkeypatch.setattr(devices, "cuda_gpus", lambda: [{"name": "H100 MIG 1g.10gb"}])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu["name"] for gpu in devices.visible_gpus()] == names


@pytest.mark.parametrize("name", ["MIG-3f9c1a2e-0000-5000-8000-000000000001", "GPU-3f9c1a2e", "0"])
def test_a_gpu_that_is_named_without_a_driver(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, golden: Golden
) -> None:
    """No name makes a GPU: auto says that the driver is missing and takes the CPU, cuda refuses."""
    with_gpus(monkeypatch, 0, name)
    monkeypatch.setattr(devices, "cuda_gpus", lambda: [])
    assert devices.choose_device("auto") == "cpu"
    golden(capsys.readouterr().err, "for auto")
    with pytest.raises(Failure) as refused:
        devices.choose_device("cuda")
    golden(refused.value, "for cuda")


def test_a_container_with_cuda_and_without_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not measured on its CPU unasked: CUDA's own driver shows its GPUs."""
    with_gpus(monkeypatch, 0)
    shown = [{"name": "NVIDIA H200", "memory_bytes": 2**37, "compute_capability": (9, 0)}] * 2
    monkeypatch.setattr(devices, "cuda_gpus", lambda: shown)
    assert devices.choose_device("auto") == "cuda"
    assert parse_ranks(None, "cuda") == [2]
    assert devices.known_peak(devices.visible_gpus(), "bfloat16") == 989.0
    assert devices.least_capability(devices.visible_gpus()) == (9, 0)


def test_more_ranks_than_gpus(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """Refused with what would work; a share of a larger group needs one GPU alone."""
    with_gpus(monkeypatch, 2)
    with pytest.raises(Failure) as refused:
        parse_ranks("1,8", "cuda")
    golden(refused.value)
    assert parse_ranks("1,8", "cuda", share=True) == [1, 8]


def test_cells_that_this_machine_cannot_start(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """A sweep with skip_invalid leaves them out; a strategy's own reason comes first."""
    with_gpus(monkeypatch, 2)
    asked = [*every(CASE.workload, ["dsp"], [2, 8]), *every(CASE.workload, ["ulysses"], [16])]
    request = Request(combinations=asked, device="cuda", skip_invalid=True)
    planned = cells(request)
    assert planned[0].why_not is None
    golden(f"{planned[1].why_not}\n{planned[2].why_not}", "left out")
    with pytest.raises(Failure) as refused:
        cells(replace(request, skip_invalid=False))
    golden(refused.value, "refused")
    share = Request(combinations=asked[:2], device="cuda", kind="one_gpu_share")
    assert {cell.why_not for cell in cells(share)} == {None}


def test_a_joined_launch_has_its_own_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun the ranks are those that were started, and no others."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "16")
    assert parse_ranks(None, "cuda") == [16]
    assert parse_ranks("16", "cuda") == [16]
    with pytest.raises(Failure, match="one of 16 "):
        parse_ranks("8", "cuda")


def test_strategies_are_named_once_each() -> None:
    """Repeated, with commas, with options; 'all' is every one."""
    assert expand_names(["dsp,rsa", "dsp", "rsa:reduce-scatter"]) == [
        "dsp",
        "rsa",
        "rsa:reduce-scatter",
    ]
    everyone = expand_names(["all"])
    assert everyone[:5] == ["dsp", "ulysses", "megatron-sp", "megatron-tp", "rsa"]
    assert expand_names(["rsa,all"]) == ["rsa", *[s for s in everyone if s != "rsa"]]


def test_where_results_go(tmp_path: Path) -> None:
    """By date and workload; --out as it is; --fresh beside it; no name leads elsewhere."""
    assert output_folder(tmp_path, "w") == tmp_path
    beside = tmp_path.with_name(f"{tmp_path.name}-2")
    assert output_folder(tmp_path, "w", fresh=True) == beside
    for odd in ("../../x", "a b\n", "ä/ö"):
        folder = output_folder(None, odd)
        assert folder.parent == Path("results")
        assert folder.name.isascii()
        assert folder.name.isprintable()


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """main() takes over what asks for an end; they are given back. It leaves as if by sys.exit."""
    monkeypatch.setattr(entry, "_leave", sys.exit)
    kept = {number: signal.getsignal(number) for number in entry.ENDINGS}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (Failure("not so", UNFIT), 6, "Error: not so\n"),
        (click.UsageError("no such thing"), 2, "Error: no such thing\n"),
        (KeyboardInterrupt(), 130, "Interrupted.\n"),
        (click.Abort(), 130, "Interrupted.\n"),
    ],
)
def test_how_commands_end(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    signals: None,
    raised: BaseException,
    code: int,
    said: str,
) -> None:
    """Each way of ending has its exit code, and one message on stderr."""

    def end(**_: object) -> NoReturn:
        raise raised

    monkeypatch.setattr(entry.cli, "main", end)
    with pytest.raises(SystemExit) as caught:
        entry.main()
    out, err = capsys.readouterr()
    assert (caught.value.code, out, err) == (code, "", said)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_signal_ends_in_order(
    monkeypatch: pytest.MonkeyPatch, signals: None, number: signal.Signals, code: int
) -> None:
    """It interrupts as Ctrl-C does, and the exit code says which it was."""
    monkeypatch.setattr(entry.cli, "main", lambda **_: signal.raise_signal(number))
    with pytest.raises(SystemExit) as caught:
        entry.main()
    assert caught.value.code == code


def test_what_comes_of_an_interrupt_is_no_defect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], signals: None
) -> None:
    """A library may swallow it in its import, and fail later, or not at all."""

    def swallow(**_: object) -> NoReturn:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise RecursionError("half a library")

    monkeypatch.setattr(entry.cli, "main", swallow)
    with pytest.raises(SystemExit) as caught:
        entry.main()
    assert (caught.value.code, capsys.readouterr().err) == (130, "Interrupted.\n")


def test_a_defect_of_ours_leaves_its_traceback_in_a_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    signals: None,
    golden: Golden,
) -> None:
    """Exit 1, one line with the error, and the path of the traceback."""

    def fail(**_: object) -> NoReturn:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(entry.cli, "main", fail)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as caught:
        entry.main()
    err = capsys.readouterr().err
    (log,) = tmp_path.iterdir()
    assert caught.value.code == 1
    golden(err, hide=TRACEBACK)
    assert str(log) in err
    assert "Traceback" not in err
    assert "ZeroDivisionError: a defect" in log.read_text()


def test_a_plan_says_what_a_strategy_does_specially(tmp_path: Path, golden: Golden) -> None:
    """In DSP Ulysses attends to all axes, a masked ring shards zigzag: dry runs say so."""
    mixed = ROOT / "configs" / "verify" / "mixed.yaml"
    words = ("run", "-w", str(mixed), "-s", "dsp,rsa", "-g", "2", "--device", "cpu", "--dry-run")
    done = spbench(tmp_path, *words, torch=True)
    assert done.code == 0
    notes = [line for line in done.out.splitlines() if line.startswith(("dsp on", "rsa on"))]
    golden("\n".join(notes))
    assert "(zigzag)" in done.out


def test_the_default_workload_has_samples_for_each_group(tmp_path: Path) -> None:
    """Where none is named, and nothing is said of its batch."""
    words = ("run", "--dry-run", "--device", "cpu", "-s", "dsp", "-g", "4", "--mesh", "dp=2")
    done = spbench(tmp_path, *words, "--mesh", "dp=1", torch=True)
    assert done.code == DONE, done.err
    assert "batch=2" in done.err
    for more in (("--set", "batch=3"), ("-w", "dsp-720m-small")):
        assert "cannot make 2 equal parts" in spbench(tmp_path, *words, *more, torch=True).err
