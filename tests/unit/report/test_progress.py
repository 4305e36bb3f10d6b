"""The lines of a run on each launch: figures, noise, and seconds by phase."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.golden import Golden

from spbench.errors import Failure
from spbench.report.progress import Screen, header
from spbench.results.record import Record
from spbench.workload.case import Case
from spbench.workload.catalogue import find

CASE = Case(workload=find("axes-2d", "verify"), strategy="dsp", ranks=2, device="cpu")
ROW = Record.of_case(CASE, run_id="r", started_utc="now", status="ok")
GOOD = replace(ROW, step_ms=12.0, output_error=0.0, launch_s=4.0, steps_s=3.25)
TIMES = {r"(?m)^\S+Z ": "", r"launch(es)? in \d+ s": "launches in N s", r"torch \S+": "torch"}
SPENT = {"start": 0.25, "gate": 1.0, "end": 0.5}


def printed(folder: Path, capsys: pytest.CaptureFixture[str], *records: Record, **how: bool) -> str:
    """The lines after the header, without time stamps; phases of the first record are known."""
    with Screen(folder, [CASE] * len(records), **how) as screen:
        capsys.readouterr()
        for i, record in enumerate(records):
            screen.started(CASE)
            screen.finished(record, phases_s=SPENT if i == 0 else None)
        lines = capsys.readouterr().err.splitlines()
    return "\n".join(line.partition(" ")[2] for line in lines)


def test_where_the_time_of_a_launch_went(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """With --verbose: each phase and the overhead; the whole time alone for a crash."""
    crash = replace(ROW, status="crash", reason="rank 1 was ended by SIGKILL", launch_s=0.5)
    skipped = replace(ROW, status="skipped", reason="8 heads")
    golden(
        "\n".join(printed(tmp_path, capsys, GOOD, crash, skipped, verbose=True).splitlines()[1:])
    )
    assert "took" not in printed(tmp_path, capsys, GOOD, crash)


def test_steps_that_were_only_counted_have_no_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing judges the time of two steps, which would look like one that was measured."""
    assert "step 12 ms" in printed(tmp_path, capsys, GOOD)
    assert "step" not in printed(tmp_path, capsys, replace(GOOD, effort="counted"))


def test_what_disturbed_a_launch_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """The noise stands below the figures, also without --verbose."""
    noisy = replace(GOOD, noisy="others used 0.9 of 2 cores")
    golden(printed(tmp_path, capsys, noisy), hide=TIMES)


def test_operators_that_nothing_looks_into_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """With what counts their bytes all the same."""
    unseen = replace(GOOD, unseen_operators="mine::gather (4 calls)")
    golden(printed(tmp_path, capsys, unseen), hide=TIMES)


def test_a_doubt_is_said_in_full_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """Twelve launches of a busy machine do not say twelve times what uses it."""
    noisy = replace(GOOD, noisy="others used 0.9 of 2 cores", compute_note="clocks differ")
    later = replace(GOOD, noisy="others used 1.1 of 2 cores", compute_note="clocks differ")
    golden("\n".join(printed(tmp_path, capsys, noisy, GOOD, later).splitlines()))
    with Screen(tmp_path, [CASE] * 2) as screen:
        for record in (noisy, later):
            screen.finished(record)
    golden(capsys.readouterr().err, "in the end", TIMES)


def test_launches_that_are_left_over_have_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """The command names the folder, quoted; without run.json it is the flag alone. An error that
    ends a run leaves it, too."""
    folder = tmp_path / "my run"
    folder.mkdir()
    for argv, again in (
        (None, f"the same command and --out '{folder}'"),
        (["spbench", "run", "-s", "dsp"], f"spbench resume '{folder}'"),
        (["spbench", "resume", "x"], f"spbench resume '{folder}'"),
    ):
        if argv is not None:
            facts = {"argv": argv, "cases": [{"key": CASE.key, "launch": 0}]}
            (folder / "run.json").write_text(json.dumps(facts))
        with Screen(folder, [CASE, CASE]) as screen:
            screen.started(CASE)
            screen.finished(GOOD)
        err = capsys.readouterr().err
        golden(err, f"left over, {argv}", TIMES)
        assert f"resume with: {again}\n" in err
        with pytest.raises(KeyboardInterrupt), Screen(folder, [CASE]):
            raise KeyboardInterrupt
        err = capsys.readouterr().err
        golden(err, f"interrupted, {argv}", TIMES)
        assert f"resume with: {again}\n" in err
        with pytest.raises(Failure), Screen(folder, [CASE]):
            raise Failure("a node is lost")
        assert f"resume with: {again}\n" in capsys.readouterr().err


def test_a_share_is_not_said_to_send(golden: Golden) -> None:
    """A share is one process, whatever the number of ranks, and sends nothing."""
    share = CASE.model_copy(update={"kind": "one_gpu_share"})
    golden(header([share])[-1], hide=TIMES)
    golden(header([CASE])[-1], "a step", TIMES)
    golden(header([share, CASE])[-1], "both", TIMES)


def test_a_log_is_told_what_the_first_launch_makes_of_the_estimate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, and only where there was an estimate."""
    with Screen(tmp_path, [CASE] * 3, launch_s={CASE.key: 40.0}) as screen:
        for _ in range(3):
            screen.started(CASE, tmp_path)
            screen.finished(GOOD)
    corrections = [line for line in capsys.readouterr().err.splitlines() if "by the first" in line]
    assert len(corrections) == 1
