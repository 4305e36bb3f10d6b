"""How a check measures: in stages, base and head alternately, and another commit for real."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.command_line import ROOT
from helpers.example_rows import findings_of, rows
from helpers.golden import Golden
from helpers.repository import git

from spbench.analysis.compare import Comparison
from spbench.analysis.findings import METRICS, Finding, Margins, Metric
from spbench.analysis.verdict import ALPHA, SHARES, Judgement
from spbench.launch.launcher import Deadlines
from spbench.regression.base_and_head import (
    CheckOptions,
    LiveMeasurement,
    Runner,
    in_stages,
    run_alternately,
)
from spbench.regression.check import BASE_AND_HEAD_BUDGET, budgeted
from spbench.regression.checkout import CheckoutError, checked_out, work_tree
from spbench.results.hand_over import RowStatus
from spbench.results.record import Record
from spbench.sweep.run_folder import as_in_run_json
from spbench.workload.case import QUICK, Case, Cell, MeasurementBudget
from spbench.workload.catalogue import find

COMMIT = {"^[0-9a-f]{12} ": "COMMIT "}

CASE = Case(workload=find("axes-2d", "verify"), strategy="dsp", ranks=2, device="cpu")
MARGINS = Margins(time=0.03)
Asked = list[tuple[list[int], list[str] | None]]
"""The launches that were asked for, and their cases; None: all cases."""


@dataclass
class FakeBench:
    """A base and a head with given times, which records the launches that a check asks for."""

    before: Mapping[str, list[float]]
    after: Mapping[str, list[float]]
    old: dict[str, Any] = field(default_factory=dict)
    new: dict[str, Any] = field(default_factory=dict)
    metrics: Sequence[Metric] = METRICS
    kept: int | None = None
    """Launches of a baseline, where base is not measured."""
    asked: Asked = field(default_factory=list)

    def measure(self, launches: Iterable[int], only: Iterable[str] | None = None) -> None:
        self.asked.append((list(launches), None if only is None else list(only)))

    def findings(self) -> list[Finding]:
        there: dict[str, int] = {}
        for launches, only in self.asked:
            for name in self.before if only is None else only:
                there[name] = there.get(name, 0) + len(launches)
        old = {"git_commit": "base"} | self.old
        sides = [
            [
                row
                for name, n in there.items()
                for row in rows(name, side[name][: kept or n], session=where, **more)
            ]
            for side, more, kept, where in (
                (self.before, old, self.kept, "kept" if self.kept else "s"),
                (self.after, self.new, None, "s"),
            )
        ]
        return findings_of(*sides, MARGINS, metrics=self.metrics)

    def baseline_launches(self) -> Mapping[str, int] | None:
        return None if self.kept is None else dict.fromkeys(self.before, self.kept)

    def judgement(self) -> Judgement:
        return in_stages(self, 5, MARGINS)


FLAT = [100.0, 100.2, 99.8, 100.1, 99.9] * 6
SLOW = [ms * 1.1 for ms in (*FLAT[1:], FLAT[0])]


def test_what_passes_is_measured_once() -> None:
    """A first launch of each case comes before the others."""
    bench = FakeBench({"a": FLAT}, {"a": FLAT})
    assert bench.judgement().of("fail") == []
    assert bench.asked == [([0], None), ([1, 2, 3, 4], ["a"])]


def test_what_would_fail_is_measured_again_and_judged_on_all() -> None:
    """Only the case in doubt is measured again."""
    bench = FakeBench({"a": FLAT, "b": FLAT}, {"a": SLOW, "b": FLAT})
    judgement = bench.judgement()
    assert bench.asked[2:] == [([5, 6, 7, 8, 9], ["a"])]
    (failed,) = judgement.of("fail")
    assert failed.comparison is not None
    assert (failed.strategy, failed.comparison.launches) == ("a", 10)


def test_a_false_alarm_is_taken_back() -> None:
    """Five launches are slow by chance, and the next five are not."""
    bench = FakeBench({"a": FLAT}, {"a": [*SLOW[:5], *FLAT[5:]]})
    assert bench.judgement().of("fail") == []


def test_what_stays_open_is_measured_until_it_is_settled() -> None:
    """A head about 4 % slower, by much in half of the launches, takes up to twenty of each."""
    rough = [ms * (1.04 + 0.06 * (-1) ** i) for i, ms in enumerate(FLAT)]
    bench = FakeBench({"a": FLAT}, {"a": rough})
    bench.judgement()
    launches = [launch for of_stage, _ in bench.asked for launch in of_stage]
    assert launches == list(range(len(launches)))
    assert len(bench.asked) > 3 and len(launches) <= 20


@pytest.mark.parametrize(("kept", "stages"), [(1, 1), (2, 1), (3, 2)])
def test_a_baseline_that_is_too_short_is_not_measured_against(
    kept: int, stages: int, golden: Golden
) -> None:
    """No number of launches of head would give an interval; bytes and memory are judged."""
    bench = FakeBench({"a": FLAT}, {"a": FLAT}, kept=kept)
    judgement = bench.judgement()
    assert len(bench.asked) == stages
    reasons = {graded.metric: graded.reason for graded in judgement.of("undecided")}
    if kept < 3:
        assert [*reasons] == ["time"]
        golden(reasons["time"])


@dataclass
class GivenBench:
    """Cases whose probability at each look is given, in parts of ``ALPHA``."""

    p: Mapping[str, Sequence[float]]
    """The probabilities of each case after 5, 10, 15 and 20 launches."""
    launches: dict[str, int] = field(default_factory=dict)
    asked: list[list[str]] = field(default_factory=list)
    """The cases of each stage."""

    def measure(self, launches: Iterable[int], only: Iterable[str] | None = None) -> None:
        self.asked.append(list(self.p if only is None else only))
        for name in self.asked[-1]:
            self.launches[name] = self.launches.get(name, 0) + len(list(launches))

    def findings(self) -> list[Finding]:
        return [
            Finding(
                case=name,
                panel="",
                strategy=name,
                ranks=2,
                metric="time",
                verdict="slower",
                comparison=Comparison(
                    verdict="slower", high=1.1, p_slower=p[self.launches[name] // 6] * ALPHA
                ),
            )
            for name, p in self.p.items()
        ]

    def baseline_launches(self) -> None:
        return None


@pytest.mark.parametrize(
    ("p", "launches", "fails"),
    [
        ((0.01, 0.24, 9, 9), 10, True),
        ((0.01, 0.26, 0.24, 9), 15, True),
        ((0.01, 0.26, 0.26, 0.49), 20, True),
        ((0.01, 0.26, 0.26, 0.51), 20, False),
        ((0.99, 0.99, 0.99, 0.99), 20, False),
    ],
)
def test_looks_share_the_error(p: tuple[float, ...], launches: int, fails: bool) -> None:
    """Looks spend nothing, a quarter, a quarter and a half of ``ALPHA``: all of it, and no more."""
    bench = GivenBench({"a": p})
    judgement = in_stages(bench, 5, MARGINS)
    assert (bench.launches["a"], bool(judgement.of("fail"))) == (launches, fails)


def test_what_has_failed_stays_failed() -> None:
    """A failed case is not measured again, and later looks at other cases do not need it."""
    bench = GivenBench({"a": (0.01, 0.12, 9, 9), "b": (9, 9, 9, 9)})
    judgement = in_stages(bench, 5, MARGINS)
    assert bench.launches == {"a": 10, "b": 20}
    assert bench.asked[2:] == [["a", "b"], ["b"], ["b"]]
    assert [graded.case for graded in judgement.of("fail")] == ["a"]
    assert sorted(SHARES) == [*SHARES] and sum(SHARES) == 1.0


@pytest.mark.parametrize("launches", [1, 2])
def test_few_launches_are_measured_up_to_four_times_too(launches: int) -> None:
    """With fewer than three launches there is no interval, so the check goes on."""
    bench = FakeBench({"a": FLAT}, {"a": SLOW})
    judgement = in_stages(bench, launches, MARGINS)
    assert judgement.of("fail")
    assert 3 <= sum(len(of_stage) for of_stage, _ in bench.asked) <= 4 * launches


@pytest.mark.parametrize(
    ("metrics", "gpu"), [(("volume",), "a GPU"), (("time", "volume"), "another GPU")]
)
def test_what_no_launch_would_tell_is_not_launched(metrics: tuple[Metric, ...], gpu: str) -> None:
    """One launch shows the bytes, and times of different GPUs are never comparable."""
    bench = FakeBench({"a": FLAT}, {"a": FLAT}, {"gpu": "a GPU"}, {"gpu": gpu}, metrics)
    bench.judgement()
    assert bench.asked == [([0], None)]


@pytest.mark.parametrize(("old", "new"), [("ok", "wrong_result"), ("crash", "ok"), ("oom", "oom")])
def test_a_case_that_fails_on_a_side_is_launched_once(old: str, new: str) -> None:
    """The time of a failed case has no counterpart."""
    bench = FakeBench({"a": FLAT}, {"a": FLAT}, {"status": old}, {"status": new})
    assert bench.judgement().timed == []
    assert bench.asked == [([0], None)]


class Order:
    """Stands in for a Sweep and logs which runner ran which launch."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def run(self, cell: Cell) -> tuple[Record, Mapping[str, float]]:
        self.log.append(f"{self.name}{cell.case.launch}")
        (record,) = rows("dsp", [1.0], case=cell.case.key)
        return replace(record, launch=cell.case.launch), {}


def test_sides_alternate_and_neither_always_follows() -> None:
    """The order is A B, then B A."""
    log: list[str] = []
    sides = [Runner(name=name, sweep=Order(name, log)) for name in "AB"]  # type: ignore[arg-type]
    cells = [
        Cell(case=CASE.model_copy(update={"launch": launch}), why_not=None) for launch in range(3)
    ]
    seen = [side.name for cell in cells for side, _ in run_alternately(sides, cell)]
    assert log == ["A0", "B0", "B1", "A1", "A2", "B2"]
    assert seen == list("ABBAAB")


class Renewed(Order):
    """Logs when its launcher is closed."""

    @property
    def launcher(self) -> SimpleNamespace:
        return SimpleNamespace(close=lambda: self.log.append(f"{self.name} closed"))


def test_launchers_are_renewed_behind_each_pair() -> None:
    """Launchers end after both launches: an end between them would disturb the other's steps."""
    log: list[str] = []
    sides = [Runner(name=name, sweep=Renewed(name, log), renews_launcher=True) for name in "AB"]  # type: ignore[arg-type]
    cells = [
        Cell(case=CASE.model_copy(update={"launch": launch}), why_not=None) for launch in range(2)
    ]
    for cell in cells:
        run_alternately(sides, cell)
    closed = ["A closed", "B closed"]
    assert log == ["A0", "B0", *closed, "B1", "A1", *reversed(closed)]


class Failing(Order):
    """The first tries of one of its launches end with a given status."""

    def __init__(
        self, name: str, log: list[str], launch: int, status: RowStatus, tries: int = 1
    ) -> None:
        super().__init__(name, log)
        self.failing, self.status, self.tries = f"{name}{launch}", status, tries

    def run(self, cell: Cell) -> tuple[Record, Mapping[str, float]]:
        record, phases_s = super().run(cell)
        fails = self.log[-1] == self.failing and self.log.count(self.failing) <= self.tries
        return (replace(record, status=self.status) if fails else record), phases_s


@pytest.mark.parametrize(
    ("side", "launch", "status", "tries", "again"),
    [
        ("A", 0, "crash", 1, ["A0", "B0"]),
        ("B", 0, "hang", 1, ["A0", "B0"]),
        ("B", 1, "comm_error", 1, ["B1", "A1"]),
        ("A", 1, "timeout", 9, ["B1", "A1"]),
        ("A", 0, "oom", 1, []),
        ("B", 0, "wrong_result", 1, []),
    ],
)
def test_what_may_be_chance_is_tried_once_more(
    tmp_path: Path, side: str, launch: int, status: RowStatus, tries: int, again: list[str]
) -> None:
    """A failure that may be chance is retried once, with the other launch of its round."""
    log: list[str] = []
    sweeps: list[Any] = [
        Failing(name, log, launch, status, tries) if name == side else Order(name, log)
        for name in "AB"
    ]
    runners = [Runner(name=sweep.name, sweep=sweep) for sweep in sweeps]
    options = CheckOptions(margins=MARGINS, metrics=METRICS, launches=5, deadlines=Deadlines())
    measurement = LiveMeasurement(folder=tmp_path, runners=runners, cases=[CASE], options=options)
    measurement.measure(range(2))
    assert log == ["A0", "B0", "B1", "A1", *again]


def test_a_measurement_beyond_the_launches_asked_for_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is of cases in doubt; the first stages are of all and need no reason."""
    runners = [Runner(name="A", sweep=Order("A", []))]  # type: ignore[arg-type]
    options = CheckOptions(margins=MARGINS, metrics=METRICS, launches=2, deadlines=Deadlines())
    measurement = LiveMeasurement(folder=tmp_path, runners=runners, cases=[CASE], options=options)
    said = []
    for launches in (range(1), range(1, 2), range(2, 4)):
        measurement.measure(launches, [CASE.key])
        said.append("1 case in doubt: measured again\n" in capsys.readouterr().err)
    assert said == [False, False, True]


def test_a_commit_is_checked_out_whole(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkout is what was committed, also from a subfolder, and is removed afterwards."""
    file = repository / "spbench" / "__init__.py"
    was = file.read_text()
    file.write_text(was + "\nchanged = True\n")
    monkeypatch.chdir(repository / "spbench" / "regression")
    with checked_out("HEAD") as base:
        assert (base.tree / "spbench" / "__init__.py").read_text() == was
        assert base.environment()["PYTHONPATH"].split(os.pathsep)[0] == str(base.tree)
        assert base.commit == git(repository, "rev-parse", "HEAD") == work_tree().commit
    assert not base.tree.exists()
    assert work_tree().tree.resolve() == repository.resolve()


def test_a_checkout_leaves_the_repository_as_it_is(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Staged files stay staged, and a broken link does no harm."""
    (repository / "link").symlink_to("/nowhere/at/all")
    git(repository, "add", "link")
    git(repository, "commit", "-q", "-m", "a link")
    (repository / "new.py").write_text("staged = True\n")
    git(repository, "add", "new.py")
    before = git(repository, "status", "--porcelain")
    monkeypatch.chdir(repository)
    with checked_out("HEAD") as base:
        assert (base.tree / "link").is_symlink()
        assert not (base.tree / "new.py").exists()
    assert git(repository, "status", "--porcelain") == before == "A  new.py"


@pytest.mark.parametrize("revision", ["no-such-branch", "--help", "HEAD~9"])
def test_a_revision_that_is_none(
    repository: Path, monkeypatch: pytest.MonkeyPatch, revision: str
) -> None:
    """The message names the most common cause: a CI that fetches only the latest commit."""
    monkeypatch.chdir(repository)
    with pytest.raises(CheckoutError, match="fetch-depth: 0"), checked_out(revision):
        pass


def test_a_commit_without_packages_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Otherwise the installed code would be compared with itself."""
    git(tmp_path, "init", "-q", ".")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "empty")
    monkeypatch.chdir(tmp_path)
    with checked_out("HEAD") as base, pytest.raises(CheckoutError) as refused:
        base.environment()
    golden(refused.value, hide=COMMIT)
    (tmp_path / "README").write_text("code elsewhere\n")
    (tmp_path / "setup.py").write_text("import setuptools\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "a file")
    with checked_out("HEAD") as base, pytest.raises(CheckoutError) as refused:
        base.environment()
    golden(refused.value, "a folder without code", COMMIT)


@pytest.mark.parametrize("folder", [".", "src"])
def test_a_plug_in_of_a_single_module_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """The layout of examples/strategy_plugin, with tests in a package of their own beside it."""
    plug_in = ROOT / "examples" / "strategy_plugin"
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").touch()
    (tmp_path / folder).mkdir(exist_ok=True)
    shutil.copy(plug_in / "plain_gather.py", tmp_path / folder)
    shutil.copy(plug_in / "pyproject.toml", tmp_path)
    git(tmp_path, "init", "-q", ".")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "first")
    monkeypatch.chdir(tmp_path)
    with checked_out("HEAD") as base:
        base.check_own(["spbench", "plain_gather"])
        if folder == ".":
            (base.tree / "tests" / "__init__.py").unlink()
            base.check_own(["spbench", "plain_gather"])


def test_code_that_is_installed_is_not_compared_with_itself(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """A package of tests at the top does not hold the code that is measured."""
    modules = ["no.such.module", "spbench", "spbench.strategies.dsp"]
    monkeypatch.chdir(repository)
    with checked_out("HEAD") as base:
        base.check_own(modules)
    other = tmp_path / "other"
    (other / "tests").mkdir(parents=True)
    (other / "tests" / "__init__.py").touch()
    git(tmp_path, "init", "-q", "other")
    git(other, "add", "-A")
    git(other, "commit", "-q", "-m", "first")
    monkeypatch.chdir(other)
    with checked_out("HEAD") as base, pytest.raises(CheckoutError) as refused:
        base.check_own(modules)
    golden(refused.value, hide=COMMIT)


def test_what_a_tree_would_run(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tree's own code answers; a tree that cannot answer runs nothing."""
    monkeypatch.chdir(repository)
    unknown = CASE.model_copy(update={"strategy": "nobody"})
    too_many = CASE.model_copy(update={"strategy": "ulysses", "ranks": 999})
    tree = work_tree()
    assert tree.accepted([unknown, CASE, too_many]) == [CASE]
    (repository / "spbench" / "strategies" / "registry.py").unlink()
    assert tree.accepted([CASE]) == []
    assert tree.accepted([]) == []


def test_a_baseline_is_measured_again_as_it_was() -> None:
    """The budget in run.json counts if its label is that of the rows."""
    known = CASE.model_copy(update={"budget": BASE_AND_HEAD_BUDGET})
    described = {"key": CASE.key, "why_not": None, **known.model_dump(mode="json", by_alias=True)}
    assert BASE_AND_HEAD_BUDGET.label == "30 s, none silent"
    assert budgeted(described, "30 s, none silent").budget == BASE_AND_HEAD_BUDGET
    assert budgeted(described, "quick").budget == QUICK
    for blank in ("", "full"):
        assert budgeted(described, blank).budget == MeasurementBudget()
    compiled = CASE.model_copy(update={"execution": "compiled"})
    described = as_in_run_json(Cell(case=compiled, why_not=None))
    again = budgeted(described, compiled.budget.label)
    assert (again.execution, again.key) == ("compiled", compiled.key)
