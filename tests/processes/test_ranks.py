"""A fault of one rank becomes a row that names it, and no process of the launch is left."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from helpers.spbench_process import PATHS, PLUGINS, alive
from helpers.sweeps import run_all, sweep_into

from spbench.launch.launcher import Deadlines, LaunchResult
from spbench.launch.local import LocalLauncher
from spbench.results.record import Record
from spbench.sweep.plan import cells
from spbench.sweep.request import Request, every
from spbench.worker.fault_injection import VARIABLE
from spbench.workload.case import QUICK, Job
from spbench.workload.catalogue import find

pytestmark = pytest.mark.serial  # hang limits of seconds

PLANTED = RuntimeError.__name__ + ": planted by SPBENCH_FAULT"
STACK = r'File ".*fault_injection\.py", line \d+ in strike'
FAULTS = {
    "oom@rank1:step3": ("oom", "rank 1: out of memory when it asked for 2.00 GiB", ""),
    "raise@rank1:step3": ("crash", f"rank 1: {PLANTED}", "Traceback"),
    "raise@rank0:init": ("crash", f"rank 0: {PLANTED}", "Traceback"),
    "exit@rank1:step3": ("crash", "rank 1 ended with exit code 7 and left no result", ""),
    "kill@rank1:step3": ("crash", "rank 1 was ended by SIGKILL", ""),
    "kill@rank0:init": ("crash", "rank 0 was ended by SIGKILL", ""),
    "kill@rank1:teardown": ("crash", "rank 1 was ended by SIGKILL", ""),
    "hang@rank1:init": ("hang", "rank 1 stopped in starting, the others in joining", STACK),
    "hang@rank1:step3": ("hang", "rank 1 stopped in step 3 (warm-up), the others in step 3", STACK),
    "hang@rank0:teardown": ("hang", "stopped in leaving", STACK),
    "corrupt@rank1:step0": ("wrong_result", "rank 1: output differs from one device by", ""),
    "": ("ok", "", ""),
}
"""Status, reason, and a pattern in the log of the rank to blame."""
OF_STRATEGIES = {
    "aborts": ("crash", "rank 1 was ended by SIGABRT", "Fatal Python error: Aborted"),
    "segfaults": ("crash", "rank 1 was ended by SIGSEGV", "Segmentation fault"),
    "deaf": ("hang", "rank 1 stopped in step 0 (gate)", "in fault"),
    "mismatches": ("hang", "rank 1 stopped in step 0 (gate)", "in fault"),
}
"""The same of strategies whose rank 1 goes wrong in its first attention."""
BY_DAY = [
    *("oom@rank1:step3", "raise@rank1:step3", "kill@rank1:step3", "hang@rank1:step3"),
    *("corrupt@rank1:step0", ""),
]
LONG = [fault for fault in FAULTS if fault not in BY_DAY]
EACH_FAULT = [*BY_DAY, *(pytest.param(fault, marks=pytest.mark.long) for fault in LONG)]
HANG_S, PAUSE_S = 5.0, 10.0
"""The hang limit of launches that hang, and of others, which a loaded machine may hold up."""


@dataclass
class FaultLauncher:
    """Plants a fault into each launch, and counts the processes that each launch left."""

    inner: LocalLauncher
    faults: Sequence[str]
    left: list[int] = field(default_factory=list)

    def run(self, job: Job, folder: Path) -> LaunchResult:
        fault = self.faults[len(self.left)]
        limit_s = HANG_S if fault.startswith("hang") else PAUSE_S
        planted = {"environment": {VARIABLE: fault}, "hang_s": limit_s}
        result = self.inner.run(job.model_copy(update=planted), folder)
        ranks = [
            rank
            for launcher in psutil.Process().children()
            for server in launcher.children()
            for rank in server.children()
        ]
        self.left.append(len(alive(ranks)))
        return result

    def close(self) -> None:
        self.inner.close()


@dataclass(frozen=True)
class Launched:
    """A sweep with one launch for each fault: its folder, rows, and processes left."""

    folder: Path
    records: dict[str, Record]
    left: dict[str, int]


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Launched]:
    """The sweep that has a launch with this fault: that of the short run, or of the long one."""
    sweeps = functools.cache(lambda faults: launch(tmp_path_factory.mktemp("faults"), faults))
    return lambda fault: sweeps(tuple(BY_DAY if fault in BY_DAY else LONG))


def launch(folder: Path, faults: Sequence[str]) -> Launched:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PATHS)
        request = Request(
            combinations=every(find("axes-2d", "verify"), ["dsp"], [2]),
            device="cpu",
            budget=QUICK,
            launches=len(faults),
        )
        before = psutil.Process().children(recursive=True)
        launcher = FaultLauncher(
            LocalLauncher(folder / "logs" / "launcher.log", grace_s=1.0), faults
        )
        deadlines = Deadlines(launch_s=60.0, hang_s=HANG_S)
        with sweep_into(folder, launcher, deadlines=deadlines) as sweep:
            # An oom case is not tried again; here each launch is another fault.
            records = []
            for record in run_all(sweep, cells(request)):
                sweep.memory.starved.clear()
                records.append(record)
            launcher.close()
        after = [one for one in psutil.Process().children(recursive=True) if one not in before]
        assert alive(after) == []
    rows = dict(zip(faults, records, strict=True))
    return Launched(folder, rows, dict(zip(faults, launcher.left, strict=True)))


@pytest.mark.parametrize("fault", EACH_FAULT)
def test_a_fault_of_one_rank_is_a_row(launched: Callable[[str], Launched], fault: str) -> None:
    """The row has the status, the rank to blame and its log, and no figures; no process is left,
    and the sweep goes on."""
    sweep = launched(fault)
    status, reason, logged = FAULTS[fault]
    record = sweep.records[fault]
    assert (record.status, reason in record.reason) == (status, True), record.reason
    assert (record.step_ms is not None) == (status == "ok")
    assert sweep.left[fault] == 0
    if logged:
        text = (sweep.folder / record.log).read_text(errors="replace")
        assert re.search(logged, text), f"{record.log}: {text[-2000:]}"


@pytest.mark.parametrize("part", [BY_DAY[0], pytest.param(LONG[0], marks=pytest.mark.long)])
def test_a_hang_is_noticed_in_time(launched: Callable[[str], Launched], part: str) -> None:
    """It ends within the limit and the time to end ranks."""
    for fault, record in launched(part).records.items():
        if record.status == "hang":
            assert "nothing moved for" in record.reason
            assert record.launch_s is not None
            assert record.launch_s < 12, fault


@pytest.mark.long
def test_ranks_that_their_strategy_ends_or_stops(tmp_path: Path) -> None:
    """Signals of a rank's own code, one that ignores SIGTERM, which takes its grace, and one that
    waits for what nobody sends: each has its row and log, and no process is left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PLUGINS))
        patch.setenv("PYTHONPATH", PATHS)
        work = find("axes-2d", "verify")
        request = Request(
            combinations=every(work, [*OF_STRATEGIES], [2]), device="cpu", budget=QUICK
        )
        launcher = FaultLauncher(
            LocalLauncher(tmp_path / "logs" / "launcher.log", grace_s=1.0),
            [""] * len(OF_STRATEGIES),
        )
        deadlines = Deadlines(launch_s=60.0, hang_s=PAUSE_S)
        with sweep_into(tmp_path, launcher, deadlines=deadlines) as sweep:
            records = list(run_all(sweep, cells(request)))
        launcher.close()
    assert launcher.left == [0] * len(OF_STRATEGIES)
    for record in records:
        status, reason, logged = OF_STRATEGIES[record.strategy]
        assert (record.status, reason in record.reason) == (status, True), record.reason
        text = (tmp_path / record.log).read_text(errors="replace")
        assert re.search(logged, text), f"{record.log}: {text[-2000:]}"
        assert record.launch_s is not None and record.launch_s < 30, record.strategy


def test_no_file_of_another_launch_is_read(launched: Callable[[str], Launched]) -> None:
    """Each launch has its own folder; a rank that could still write names its fault in the row."""
    records = launched("").records
    assert len({record.log for record in records.values() if record.log}) == len(BY_DAY) - 1
    assert records["corrupt@rank1:step0"].environment == "SPBENCH_FAULT=corrupt@rank1:step0"
    assert os.environ.get(VARIABLE) is None
