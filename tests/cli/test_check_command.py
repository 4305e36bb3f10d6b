"""``compare A B``, ``baseline`` and ``check`` on recorded rows: words and exit codes."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import click
import pandas
import pytest
from click.testing import CliRunner, Result
from helpers.builders import a_case
from helpers.example_rows import rows
from helpers.golden import Golden
from helpers.kept_runs import SENT, STEPS, kept, side, spbench

from spbench.cli.main import cli
from spbench.cli.options import percent
from spbench.errors import CANNOT_JUDGE, DONE, REGRESSION, UNFIT, USAGE
from spbench.report import tables
from spbench.results.record import Record
from spbench.results.store import Store


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_compare_two_runs_says_what_changed() -> None:
    """Slower, with the ratio and its interval; the same is named, too."""
    before = kept("before", side("a"), side("a", strategy="rsa"))
    after = kept("after", side("b", 1.2), side("b", strategy="rsa"))
    done = spbench("compare", before, after)
    assert done.exit_code == DONE
    dsp, rsa = (
        line.split() for line in done.stdout.splitlines() if line.startswith((" dsp", " rsa"))
    )
    assert dsp[:6] == ["dsp", "2", "100", "120", "+20.0", "%"]
    assert dsp[-3:] == ["slower", "same", "same"]
    assert rsa[-3:] == ["same", "same", "same"]


def test_compare_two_runs_as_data() -> None:
    """Every finding with its verdict, figures and interval."""
    before, after = kept("before", side("a")), kept("after", side("b", 0.8))
    found = {
        one["metric"]: one for one in json.loads(spbench("compare", before, after, "--json").stdout)
    }
    assert found["time"]["verdict"] == "faster"
    assert found["time"]["ratio"] == pytest.approx(0.8)
    assert found["time"]["comparison"]["high"] < 0.81
    assert (found["volume"]["verdict"], found["volume"]["before"]) == ("same", 900)


def test_comparisons_as_csv_and_as_markdown(golden: Golden) -> None:
    """CSV has a row for each strategy, or each metric; Markdown is what a pull request shows."""
    before = kept("before", side("a"), side("a", 1.2, strategy="rsa"))
    after = kept("after", side("b", 1.1), side("b", 1.2, strategy="rsa"))
    table = pandas.read_csv(io.StringIO(spbench("compare", before, "--csv").stdout))
    assert [*table["strategy"]] == ["dsp", "rsa"]
    assert [*table["step_ms.mean"].round()] == [100, 120]
    table = pandas.read_csv(io.StringIO(spbench("compare", before, after, "--csv").stdout))
    assert len(table) == 8 and set(table["verdict"]) == {"same", "slower"}
    text = spbench("compare", before, after, "--markdown").stdout
    golden(text)
    assert "| dsp | 2 | **slower** | 100 → 110 |" in text
    assert "| dsp | 2 | 100 |" in spbench("compare", before, "--markdown").stdout


def test_another_gpu_is_said_once_and_not_compared(golden: Golden) -> None:
    """Exit 5 with the reason; --allow-mismatch shows the figures, without verdicts."""
    before = kept("before", side("a"), side("a", strategy="rsa"))
    after = kept("after", *(side("b", strategy=s, gpu="another GPU") for s in ("dsp", "rsa")))
    done = spbench("compare", before, after)
    assert done.exit_code == CANNOT_JUDGE
    reason = "time not comparable: gpu another GPU, was a GPU"
    assert done.stdout.count(reason) == 1
    golden(done.stdout)
    allowed = spbench("compare", before, after, "--allow-mismatch")
    assert allowed.exit_code == DONE
    assert "+0.0 %" in allowed.stdout and "not comparable" in allowed.stdout


@pytest.mark.parametrize(
    "words",
    [
        "compare a b c",
        "compare a b --reference dsp",
        "compare a baseline:x",
        "compare a baseline:../x",
        "compare a --csv --json",
        "check",
        "check --baseline x --base-ref y",
        "check --baseline x -s dsp",
        "check --base-ref HEAD a",
        "check --base-ref HEAD",
        "check --baseline x --metrics tiem",
        "check --baseline x a --metrics ''",
    ],
)
def test_mistakes_are_answered(words: str, golden: Golden) -> None:
    """Exit 2, and the message says what would work."""
    kept("a", side("a"))
    kept("b", side("b"))
    done = spbench(*shlex.split(words))
    assert done.exit_code == USAGE
    golden(done.stderr)


def test_a_baseline_is_kept_listed_and_shown(golden: Golden) -> None:
    """Its rows are kept, and its name works wherever a run does."""
    kept("mine", side("a"))
    done = spbench("baseline", "set", "main")
    assert done.exit_code == 0
    golden(done.stdout)
    (row,) = json.loads(spbench("baseline", "list", "--json").stdout)
    assert (row["baseline"], row["run"], row["cases"], row["launches"]) == ("main", "mine", 1, 5)
    assert "a GPU" in spbench("baseline", "show", "main").stdout
    assert spbench("compare", "baseline:main", "mine").exit_code == DONE
    assert sorted(path.name for path in Path("baselines/main").iterdir()) == [
        "run.json",
        "runs.csv",
    ]


@pytest.mark.parametrize(
    "launches",
    [STEPS, [94.0, 106.0, 100.0, 97.0, 103.0], STEPS[:2]],
    ids=["steady", "shaky", "too few"],
)
def test_a_baseline_says_what_can_be_found_against_it(
    launches: list[float], golden: Golden
) -> None:
    """The detectable slowdown is named; with two launches there is none."""
    kept("mine", rows("dsp", launches, session="a", **SENT))
    golden(spbench("baseline", "set", "main").stdout)


def test_noisy_launches_make_no_baseline_for_times(golden: Golden) -> None:
    """With --force their rows are kept all the same."""
    kept("mine", side("a", noisy="a neighbour"))
    done = spbench("baseline", "set", "main", "--force")
    assert done.exit_code == DONE
    golden(done.stderr)
    assert "hardest" not in done.stdout


def test_a_baseline_is_not_overwritten_in_passing(golden: Golden) -> None:
    """With --replace the new rows are those of the run."""
    kept("one", side("a"))
    kept("two", side("b")[:3])
    assert spbench("baseline", "set", "main", "one").exit_code == DONE
    done = spbench("baseline", "set", "main", "two")
    assert done.exit_code == USAGE
    golden(done.stderr)
    assert spbench("baseline", "set", "main", "two", "--replace").exit_code == DONE
    (row,) = json.loads(spbench("baseline", "list", "--json").stdout)
    assert (row["run"], row["launches"]) == ("two", 3)


@pytest.mark.parametrize(
    ("broken", "launches", "said"),
    [
        ({"status": "oom"}, 1, "1 launch failed (dsp: oom)"),
        ({"noisy": "a neighbour"}, 3, "3 launches noisy (a neighbour)"),
    ],
)
def test_a_failed_or_noisy_run_is_no_baseline(
    broken: dict[str, Any], launches: int, said: str
) -> None:
    """It is kept with --force alone."""
    good, bad = side("a")[:-launches], side("a")[-launches:]
    kept("mine", [*good, *(replace(record, **broken) for record in bad)])
    done = spbench("baseline", "set", "main")
    assert (done.exit_code, said in done.stderr) == (USAGE, True)
    assert not Path("baselines").exists()
    assert spbench("baseline", "set", "main", "--force").exit_code == DONE


def test_noisy_launches_beside_three_quiet_ones_do_no_harm() -> None:
    """``run`` measures noisy rounds again, and what was disturbed stays in runs.csv."""
    records = side("a")
    kept("mine", [*(replace(each, noisy="a neighbour") for each in records[:2]), *records[2:]])
    assert spbench("baseline", "set", "main").exit_code == DONE


def test_an_unfinished_run_is_no_baseline(golden: Golden) -> None:
    """Launches that run.json lists and runs.csv does not hold are missing."""
    kept("mine", side("a"))
    with Store(Path("results/mine")) as store:
        store.write_run({"cases": [{"key": "other", "launch": 0}]})
    for run in ("mine", "results/mine/runs.csv"):
        done = spbench("baseline", "set", "main", run)
        assert done.exit_code == USAGE
        golden(done.stderr, run)


def test_a_baseline_keeps_history_and_its_link() -> None:
    """A resumed run's commands are all kept; a link stays, and its target is replaced."""
    kept("mine", side("a"))
    with Store(Path("results/mine")) as store:
        for words in (["run"], ["run", "-v"]):
            store.write_run({"argv": words, "cases": []})
    assert spbench("baseline", "set", "main", "mine").exit_code == DONE
    facts = json.loads(Path("baselines/main/run.json").read_text())
    assert (facts["argv"], facts["history"]) == (["run", "-v"], [["run"]])
    Path("baselines/main").rename("elsewhere")
    Path("baselines/main").symlink_to(Path("elsewhere").resolve())
    for _ in range(2):
        assert spbench("baseline", "set", "main", "mine", "--replace").exit_code == DONE
    assert Path("baselines/main").is_symlink()
    assert sorted(path.name for path in Path("baselines").iterdir()) == ["main"]
    assert sorted(path.name for path in Path().iterdir()) == ["baselines", "elsewhere", "results"]


@pytest.mark.parametrize(
    "words", [["run", "-s", "dsp", "--out", "elsewhere"], ["check", "--base-ref", "HEAD"]], ids=str
)
def test_how_an_unfinished_run_goes_on(words: list[str], golden: Golden) -> None:
    """Only the command that began it measures the same cells."""
    kept("mine", side("a"))
    with Store(Path("results/mine")) as store:
        cases = [{"key": "other", "launch": 0}]
        store.write_run({"argv": ["/bin/spbench", *words], "cases": cases})
    done = spbench("baseline", "set", "main", "mine")
    golden(done.stderr)


def test_a_folder_of_two_sides_names_them() -> None:
    """A check leaves a folder with two runs, base and head."""
    for name in ("base", "now"):
        kept(f"checked/{name}", side("a"))
    done = spbench("compare", "results/checked")
    said = "results/checked is not a run, but holds some: results/checked/base, results/checked/now"
    assert (done.exit_code, said in done.stderr) == (USAGE, True)


def test_a_baseline_of_more_ranks_than_can_be_started(golden: Golden) -> None:
    """The message names another machine, or a run from there; no flag would work."""
    case = a_case(ranks=5000)
    kept("before", side("a", case=case.key, world_size=5000, sp_size=5000))
    with Store(Path("results/before")) as store:
        facts = case.model_dump(mode="json", by_alias=True)
        store.write_run({"cases": [{"key": case.key, **facts}]})
    assert spbench("baseline", "set", "large", "before").exit_code == DONE
    done = spbench("check", "--baseline", "large")
    assert done.exit_code == CANNOT_JUDGE
    golden(done.stderr)
    assert "--nnodes" not in done.stderr


def test_few_launches_are_said(golden: Golden) -> None:
    """With few launches a check judges bytes and memory, and no time."""
    kept("mine", side("a")[:1])
    golden(spbench("baseline", "set", "x").stderr)


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "x" * 65, "a b"])
def test_names_that_are_no_folders(name: str) -> None:
    """A baseline is a folder beside others."""
    kept("mine", side("a"))
    done = spbench("baseline", "set", name)
    assert repr(name) in done.stderr


def test_a_folder_that_cannot_be_written_is_unfit() -> None:
    """The message names it."""
    kept("mine", side("a"))
    Path("file").touch()
    done = spbench("baseline", "set", "x", "--baselines", "file/baselines")
    assert (done.exit_code, "file" in done.stderr) == (UNFIT, True)


def checked(*after: Sequence[Record], words: Sequence[str] = ()) -> Result:
    kept("before", side("a"), side("a", strategy="rsa"))
    assert spbench("baseline", "set", "main", "before").exit_code == DONE
    return spbench("check", "--baseline", "main", kept("after", *after), *words)


def test_a_check_that_passes() -> None:
    """Exit 0, a table and a last line."""
    done = checked(side("b"), side("b", strategy="rsa"))
    assert done.exit_code == DONE
    assert done.stdout.splitlines()[-1] == "passed: 2 cases"


def test_a_check_that_fails_on_time(golden: Golden) -> None:
    """Exit 4, and the output names the strategy; the command that it ends with makes it pass."""
    done = checked(side("b", 1.1), side("b", strategy="rsa"))
    assert done.exit_code == REGRESSION
    golden(done.stdout)
    _, _, advice = done.stderr.splitlines()[-1].partition("make it the baseline: spbench ")
    assert spbench(*advice.split()).exit_code == DONE
    assert spbench("check", "--baseline", "main", "after").exit_code == DONE


def test_a_check_that_fails_on_bytes(golden: Golden) -> None:
    """Exit 4, and the output names strategy, phase, operation and bytes."""
    more = side(
        "b",
        sent_bytes_forward=500,
        all_to_all_bytes=900,
        collectives="forward.all_to_all=5 backward.all_to_all=4",
    )
    done = checked(more, side("b", strategy="rsa"))
    assert done.exit_code == REGRESSION
    golden(done.stdout)


def test_a_check_that_cannot_judge(golden: Golden) -> None:
    """Exit 5 with the reason: rows of another GPU, or a case that is not there."""
    done = checked(*(side("b", strategy=s, gpu="another GPU") for s in ("dsp", "rsa")))
    assert done.exit_code == CANNOT_JUDGE
    golden(done.stdout)
    done = spbench("check", "--baseline", "main", kept("half", side("b")))
    assert done.exit_code == CANNOT_JUDGE
    golden(done.stdout, "2")


def test_bytes_alone_may_be_checked_anywhere() -> None:
    """Bytes are exact on another GPU, too."""
    words = ("--metrics", "volume")
    other = [side("b", strategy=s, gpu="another GPU") for s in ("dsp", "rsa")]
    assert checked(*other, words=words).exit_code == DONE


def test_what_is_missing_of_the_bytes_is_not_advised(golden: Golden) -> None:
    """Where bytes cannot be judged, the message does not advise to judge them alone."""
    uncounted = {name: None for name in SENT if name.startswith("sent_")} | {"collectives": ""}
    after = [side("b", strategy=s, **uncounted) for s in ("dsp", "rsa")]
    done = checked(*after)
    assert done.exit_code == CANNOT_JUDGE
    golden(done.stdout)


def test_what_stays_open_passes_unless_strict(golden: Golden) -> None:
    """Exit 0 with a sentence; with --strict exit 5."""
    after = [side("b", 1.03), side("b", strategy="rsa")]
    done = checked(*after)
    assert done.exit_code == DONE
    golden(done.stdout)
    done = spbench("check", "--baseline", "main", "after", "--strict")
    assert done.exit_code == CANNOT_JUDGE
    golden(done.stdout, "2")


def test_what_had_no_figures_before_is_counted(golden: Golden) -> None:
    """A base that failed, and a case that is new, pass without a word on time or bytes."""
    broken = side("a", strategy="rsa", status="crash")
    kept("before", side("a"), broken)
    assert spbench("baseline", "set", "main", "before", "--force").exit_code == DONE
    after = kept("after", *(side("b", strategy=s) for s in ("dsp", "rsa", "ulysses")))
    done = spbench("check", "--baseline", "main", after)
    assert done.exit_code == DONE
    golden(done.stdout)


def test_a_check_of_a_run_that_broke(golden: Golden) -> None:
    """Exit 4, with status and reason."""
    done = checked(side("b", status="hang", reason="rank 1 waits"), side("b", strategy="rsa"))
    assert done.exit_code == REGRESSION
    golden(done.stdout)


def test_a_new_case_that_fails_fails_the_check(golden: Golden) -> None:
    """Other cases pass beside it."""
    fails = side("b", strategy="ulysses", status="wrong_result", reason="2.0 off")
    done = checked(side("b"), side("b", strategy="rsa"), fails)
    assert done.exit_code == REGRESSION
    golden(done.stdout)


def test_a_check_as_data(golden: Golden) -> None:
    """Findings with their outcome, the last line and the exit code."""
    found = json.loads(checked(side("b", 1.1), words=("--json",)).stdout)
    assert found["exit_code"] == REGRESSION
    assert found["exit_code"] == REGRESSION
    golden(found["summary"])
    outcomes = {(one["strategy"], one["metric"]): one["outcome"] for one in found["findings"]}
    assert outcomes["dsp", "time"] == "fail"
    assert outcomes["rsa", "status"] == "undecided"


def test_a_check_for_a_review_and_for_a_ci(golden: Golden) -> None:
    """Markdown has a row for each case; JUnit a test for each metric, failed or skipped."""
    words = ("--markdown", "out/check.md", "--junit", "out/check.xml")
    after = [side("b", 1.1), side("b", 1.03, strategy="rsa", peak_allocated_bytes=20_000)]
    assert checked(*after, words=words).exit_code == REGRESSION
    text = Path("out/check.md").read_text()
    golden(text)
    assert [
        line
        for line in text.splitlines()
        if line.startswith("| dsp | 2 | **slower** | 100 → 110 | +10.0 % (")
    ]
    suite = ET.parse("out/check.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("8", "2", "1")
    failed = [one for one in suite if one.find("failure") is not None]
    golden("\n".join(one.get("name") or "" for one in failed), "failures in JUnit")
    why = failed[1].find("failure")
    assert why is not None and "was" in (why.get("message") or "")


def test_texts_that_mean_something_to_markdown_and_xml() -> None:
    """A reason may hold any characters."""
    odd = side("b", status="crash", reason="a | b <c> & \x07 \x1b[1m")
    words = ("--markdown", "m.md", "--junit", "j.xml")
    assert checked(odd, side("b", strategy="rsa"), words=words).exit_code == REGRESSION
    assert "a \\| b &lt;c>" in Path("m.md").read_text()
    assert "a | b <c> &" in ET.tostring(ET.parse("j.xml").getroot(), encoding="unicode").replace(
        "&lt;", "<"
    ).replace("&gt;", ">").replace("&amp;", "&")


def test_an_export_that_cannot_be_written_is_unfit(golden: Golden) -> None:
    """Exit 6 and the file's name, before anything is judged or measured."""
    done = checked(side("b"), side("b", strategy="rsa"), words=("--junit", "."))
    assert done.exit_code == UNFIT
    golden(done.stderr)
    assert done.stdout == ""


@pytest.mark.parametrize("flag", [("--launches", "9"), ("--timeout", "9"), ("--out", "x")])
def test_flags_without_effect_are_refused(flag: tuple[str, str]) -> None:
    """A recorded run is judged as it is."""
    done = checked(side("b"), side("b", strategy="rsa"), words=flag)
    assert done.exit_code == USAGE
    assert done.stderr.startswith(flag[0])


def test_what_fails_on_both_sides_cannot_be_judged(golden: Golden) -> None:
    """A check in which nothing worked in base and head judges nothing."""
    kept("before", side("a", status="oom", reason="no"))
    assert spbench("baseline", "set", "main", "before", "--force").exit_code == DONE
    done = spbench(
        "check", "--baseline", "main", kept("after", side("b", status="oom", reason="no"))
    )
    assert done.exit_code == CANNOT_JUDGE
    golden(done.stdout)


def test_a_baseline_with_cases_that_were_left_out_is_still_a_baseline() -> None:
    """A case that a strategy declined then cannot be missing now."""
    declined = rows("rsa", [0.0], session="a", status="skipped", reason="one axis")
    kept("before", side("a"), declined)
    assert spbench("baseline", "set", "main", "before").exit_code == DONE
    assert spbench("check", "--baseline", "main", kept("after", side("b"))).exit_code == DONE


def test_two_workloads_of_one_name_have_a_row_each() -> None:
    """The table, the headline and JUnit name both."""

    def both(name: str, factor: float) -> list[Record]:
        one = side(name, factor, workload_key="1", case="one")
        return [*one, *side(name, workload_key="2", case="two")]

    kept("before", both("a", 1.0))
    assert spbench("baseline", "set", "main", "before").exit_code == DONE
    done = spbench("check", "--baseline", "main", kept("after", both("b", 1.2)), "--junit", "j.xml")
    assert done.exit_code == REGRESSION
    assert "workload 1" in done.stdout and "workload 2" in done.stdout
    assert sum(line.startswith(" dsp") for line in done.stdout.splitlines()) == 2
    assert (
        len({(one.get("classname"), one.get("name")) for one in ET.parse("j.xml").getroot()}) == 8
    )


@pytest.mark.parametrize(
    ("text", "share"),
    [("3%", 0.03), ("3 %", 0.03), ("0.03", 0.03), ("0", 0.0), ("250%", None)]
    + [(bad, None) for bad in ("3", "1", "0.5", ".5", "-1%", "nan%", "inf%", "x", "", "%")],
)
def test_shares_are_written_as_percentages(text: str, share: float | None) -> None:
    """A bare 0.5 or 3 could mean either."""
    if share is not None:
        assert percent(text) == share
        return
    with pytest.raises(click.BadParameter, match=r"write 3% or 0\.03"):
        percent(text)


def test_what_lies_among_baselines_and_is_none(tmp_path: Path) -> None:
    """Other folders are not listed; an unreadable baseline is reported."""
    kept("mine", side("a"))
    assert spbench("baseline", "set", "main").exit_code == DONE
    for name in (".main.new", "foo bar", "broken"):
        Path("baselines", name).mkdir()
        Path("baselines", name, "runs.csv").mkdir()
    done = spbench("baseline", "list", "--json")
    assert [one["baseline"] for one in json.loads(done.stdout)] == ["main"]
    assert "baselines/broken" in done.stderr


def test_junit_is_not_green_where_nothing_can_be_judged() -> None:
    """A case without a counterpart is an error; an inconclusive case is skipped."""
    other = [side("b", strategy=s, gpu="another GPU") for s in ("dsp", "rsa")]
    assert checked(*other, words=("--junit", "j.xml")).exit_code == CANNOT_JUDGE
    suite = ET.parse("j.xml").getroot()
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("0", "4", "0")


def test_junit_is_red_where_the_exit_code_is(golden: Golden) -> None:
    """It is for inconclusive cases under --strict, and where base or head failed in all."""
    kept("before", side("a"))
    assert spbench("baseline", "set", "main", "before").exit_code == DONE
    strict = ("--strict", "--junit", "j.xml")
    done = spbench("check", "--baseline", "main", kept("after", side("b", 1.03)), *strict)
    assert done.exit_code == CANNOT_JUDGE
    suite = ET.parse("j.xml").getroot()
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == [
        "5", "0", "1", "1",
    ]  # fmt: skip
    (said,) = (error.get("message") for error in suite.iter("error"))
    golden(said)
    kept("broken", side("c", status="oom"))
    assert spbench("baseline", "set", "oom", "broken", "--force").exit_code == DONE
    done = spbench("check", "--baseline", "oom", "after", "--junit", "j.xml")
    assert done.exit_code == CANNOT_JUDGE
    assert ET.parse("j.xml").getroot().get("errors") == "1"


def test_a_slower_case_says_by_how_much(golden: Golden) -> None:
    """Both times, the ratio, its interval and the launches stand in the table and in JUnit."""
    done = checked(side("b", 1.1), side("b", strategy="rsa"), words=("--junit", "j.xml"))
    said = "time slower: 110 ms, was 100 (+10.0 %, "
    golden(done.stdout)
    assert said in ET.tostring(ET.parse("j.xml").getroot(), encoding="unicode")


def test_bytes_that_change_are_counted_in_the_table() -> None:
    """One byte is no per cent; where only calls change it says so."""
    done = checked(side("b", sent_bytes_forward=401), side("b", strategy="rsa"))
    assert "+1 B changed" in done.stdout
    calls = SENT["collectives"].replace("=4", "=5")
    done = spbench("compare", "before", kept("calls", side("c", collectives=calls)))
    assert "calls changed" in done.stdout


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_a_narrow_terminal_leaves_columns_out(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """Verdicts and figures are never broken in two."""
    monkeypatch.setattr(tables, "room", lambda _: columns)
    done = checked(side("b", 1.1), side("b", strategy="rsa"))
    (row,) = (line for line in done.stdout.splitlines() if line.startswith(" dsp "))
    assert len(row) <= columns
    assert row.split()[-3:] == ["slower", "same", "same"]
    assert "+10.0 %" in row
    assert (".." in row) == (columns >= 100)


def test_two_exports_want_two_files(golden: Golden) -> None:
    """The second export would overwrite the first."""
    done = checked(side("b"), words=("--markdown", "out", "--junit", "./out"))
    assert done.exit_code == USAGE
    golden(done.stderr)


def test_a_name_that_xml_cannot_hold() -> None:
    """A CSV may hold any strategy's name."""
    after = [side("b", strategy=name) for name in ("dsp", "rsa", "a\x07b")]
    assert checked(*after, words=("--junit", "j.xml")).exit_code == DONE
    assert any("a b on 2" in (one.get("name") or "") for one in ET.parse("j.xml").getroot())


def test_runs_without_a_case_in_common(golden: Golden) -> None:
    """No flag is advised, as none would show figures."""
    one, other = kept("one", side("a")), kept("other", side("b", strategy="rsa"))
    for words in ((), ("--allow-mismatch",)):
        done = spbench("compare", one, other, *words)
        assert done.exit_code == CANNOT_JUDGE
        golden(done.stderr)


def test_help_shows_no_range_of_a_share() -> None:
    """Without its own type, click would show x<=None."""
    shown = CliRunner().invoke(cli, ["check", "--help"]).output
    assert "[default: 3%]" in shown
    assert "None" not in shown
