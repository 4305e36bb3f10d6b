"""Planted faults: what is understood, what is refused, and that they do what they say."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from helpers.golden import Golden

from spbench.cli.main import command_of
from spbench.errors import USAGE, Failure
from spbench.worker.fault_injection import VARIABLE, Fault, check_hits
from spbench.workload.case import COUNTED, Case, Kind
from spbench.workload.catalogue import find


class FakeTime:
    """Seconds that pass in a step, and a little with each look at the clock."""

    def __init__(self, step_s: float) -> None:
        self.now, self.step_s = 0.0, step_s
        self.synchronised = 0

    def step(self) -> None:
        self.now += self.step_s

    def synchronise(self) -> None:
        self.synchronised += 1

    def now_s(self) -> float:
        self.now += 1e-6
        return self.now


def test_a_slow_rank_is_read() -> None:
    """The text gives kind, rank and share; without the variable no fault is planted."""
    fault = Fault.of({VARIABLE: "slow@rank1:5%"})
    assert fault == Fault(text="slow@rank1:5%", kind="slow", rank=1, share=0.05)
    assert fault.environment == {"SPBENCH_FAULT": "slow@rank1:5%"}
    assert Fault.parse("slow@rank12:0.5%").share == pytest.approx(0.005)
    assert Fault.of({}) is None
    assert Fault.of({VARIABLE: ""}) is None


MISTAKES = (
    *("slow", "slow@rank:5%", "slow@1:5%", "slow@rank-1:5%", "slow@rank1:", "slow@rank1:5% "),
    *("slow@rank1:5", "slow@rank1:-5%", "slow@rank1:nan%", "slow@rank1:step3", "melt@rank1:step3"),
    *("kill@rank1:5%", "kill@rank1:step", "kill@rank1:step-1", "corrupt@rank1:init"),
    "slow@rank\u0661:5%",
)


def test_faults_that_are_not_understood(golden: Golden) -> None:
    """The message names the variable, its value, the mistake and what would work."""
    messages = []
    for text in MISTAKES:
        with pytest.raises(ValueError) as caught:
            Fault.parse(text)
        messages.append(str(caught.value))
    golden("\n".join(messages))


def cases(*ranks: int, kind: Kind = "measured") -> list[Case]:
    work = find("axes-2d", "verify")
    return [
        Case(workload=work, strategy="dsp", ranks=count, device="cpu", kind=kind) for count in ranks
    ]


@pytest.mark.parametrize(
    ("rank", "of_cases", "works"),
    [
        (4, cases(2, 4), "rank 4, which no case has; rank0 to rank3 would work"),
        (1, cases(1), "rank 1, which no case has; rank0 would work"),
        (1, cases(8, kind="one_gpu_share"), "rank 1, which no case has; rank0 would work"),
    ],
)
def test_a_fault_that_hits_nobody_is_refused(rank: int, of_cases: list[Case], works: str) -> None:
    """The message names what would work instead; one rank less is a hit in some case."""
    with pytest.raises(Failure) as caught:
        check_hits(Fault.parse(f"slow@rank{rank}:5%"), of_cases)
    assert str(caught.value) == f"SPBENCH_FAULT='slow@rank{rank}:5%' names {works}"
    assert caught.value.code == USAGE
    check_hits(Fault.parse(f"slow@rank{rank - 1}:5%"), of_cases)


def test_a_fault_in_a_step_that_never_comes_is_refused(golden: Golden) -> None:
    """A launch that only counts bytes and memory has seven steps."""
    (counted,) = cases(2)
    counted = counted.model_copy(update={"budget": COUNTED})
    with pytest.raises(Failure) as refused:
        check_hits(Fault.parse("kill@rank1:step7"), [counted])
    golden(refused.value)
    check_hits(Fault.parse("kill@rank1:step6"), [counted])
    check_hits(Fault.parse("kill@rank1:step7"), [counted, *cases(2)])


def test_without_a_case_there_is_nobody_to_hit(golden: Golden) -> None:
    """A fault is refused where no case can run."""
    with pytest.raises(Failure) as refused:
        check_hits(Fault.parse("slow@rank0:5%"), [])
    golden(refused.value)


@pytest.mark.parametrize(
    ("words", "value", "message"),
    [
        (["run", "-g", "2"], "slow@rank2:5%", "names rank 2, which no case has; rank0 to rank1"),
        (["run", "-g", "4", "--share"], "slow@rank1:5%", "names rank 1, which no case has; rank0"),
        (["check", "--base-ref", "HEAD"], "slow@rank9:5%", "names rank 9, which no case has"),
        (
            ["check", "--base-ref", "HEAD", "-g", "2,999", "--skip-invalid"],
            "slow@rank2:5%",
            "no case",
        ),
        (["verify"], "slow@rank1", "is not KIND@rankR:WHERE"),
        (["verify"], "slow@rank1:5%", "verify has no row that says so; leave it out, or use run"),
        (["calibrate", "-g", "1,2"], "bogus", "is not KIND@rankR:WHERE"),
        (["calibrate", "-g", "1,2"], "kill@rank1:init", "calibrate has no row"),
        (["capacity", "dsp-720m", "-g", "2", "--measure"], "kill@rank1:init", "--measure has no"),
    ],
)
def test_commands_refuse_a_fault_that_would_not_show(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], value: str, message: str
) -> None:
    """Commands refuse it with exit code 2, before anything is written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, value)
    name, *flags = words
    command = command_of(name)
    selection = ["-w", "earthformer-small", "-s", "dsp"] if name in ("run", "check") else []
    with pytest.raises(Failure) as caught:
        command.main([*flags, *selection, "--device", "cpu"], standalone_mode=False)
    assert caught.value.code == USAGE
    assert f"SPBENCH_FAULT={value!r}" in str(caught.value) and message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step_s", [0.4, 0.002])
def test_each_step_takes_that_much_longer(step_s: float) -> None:
    """The step is lengthened by its share, after the device has finished."""
    fake = FakeTime(step_s)
    fault = Fault.parse("slow@rank1:10%")
    slow = fault.slowed(1, fake.step, fake.synchronise, fake.now_s)
    slow()
    assert fake.now == pytest.approx(1.1 * step_s, abs=1e-5)
    assert fake.synchronised == 1


def test_other_ranks_run_as_ever() -> None:
    """A rank without the fault runs its own step, unwrapped."""
    fake = FakeTime(1.0)
    assert Fault.parse("slow@rank1:10%").slowed(0, fake.step, fake.synchronise) == fake.step


def test_on_a_real_clock() -> None:
    """A step of 20 ms that is slowed by 100 % takes at least 40 ms."""
    slow = Fault.parse("slow@rank0:100%").slowed(0, lambda: time.sleep(0.02), lambda: None)
    start = time.perf_counter()
    slow()
    assert time.perf_counter() - start >= 0.04


def test_a_fault_strikes_in_its_place_alone(golden: Golden) -> None:
    """A fault does nothing in another rank, in another step, or as another kind."""
    raises = Fault.parse("raise@rank1:step3")
    for rank, place in ((0, "step3"), (1, "step2"), (1, "init"), (1, "teardown")):
        raises.strike(rank, place)
    with pytest.raises(RuntimeError) as refused:
        raises.strike(1, "step3")
    golden(refused.value)
    with pytest.raises(torch.OutOfMemoryError) as refused:
        Fault.parse("oom@rank0:init").strike(0, "init")
    golden(refused.value, "second")
    assert raises.tampered(1, 1.5) == 1.5
    assert raises.slowed(1, print, print) == print


def test_wrong_numbers_are_wrong_on_one_rank() -> None:
    """corrupt doubles the output, and strikes in no other way."""
    corrupt = Fault.parse("corrupt@rank1:step0")
    assert [corrupt.tampered(rank, 1.5) for rank in (0, 1)] == [1.5, 3.0]
    corrupt.strike(1, "step0")
