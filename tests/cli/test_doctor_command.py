"""``spbench doctor`` as its user meets it: its checks on this machine, and its messages."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from helpers.command_line import spbench
from helpers.golden import Golden
from helpers.machines import CPU_BUILD, CUDA_BUILD, fake_nvml
from helpers.terminal import STYLED, Terminal

from spbench.cli import machine_command
from spbench.comm.nccl_gloo import available_backends
from spbench.doctor import examine as examining
from spbench.doctor import torch_probe
from spbench.doctor.examine import examine
from spbench.doctor.machine_checks import Diagnosis, TorchFacts, fail, ok, skipped, warn
from spbench.doctor.torch_probe import probe
from spbench.errors import DONE, UNFIT, USAGE, Failure
from spbench.report import doctor_table, tables
from spbench.results.nvml import NvmlReport, read_nvml

NOBODY = NvmlReport(error="NVML Shared Library Not Found", code=12)


def test_the_doctor_on_this_machine(tmp_path: Path, warm_launcher: None, golden: Golden) -> None:
    """Two and then three real ranks on the CPU get every exchange right."""
    words = ["doctor", "--device", "cpu", "--gpus", "3", "--json"]
    done = spbench(tmp_path, *words, torch=True, TMPDIR=str(tmp_path))
    found = {one["check"]: one for one in json.loads(done.out)}
    for check in ("2 ranks", "3 ranks", "python", "torch", "gloo"):
        assert found[check]["status"] == "ok", found[check]
    assert "20 exchanges" in found["3 ranks"]["found"]
    assert {"cores", "memory", "variables", "this folder"} <= found.keys()
    assert not {"gpus", "cuda", "driver"} & found.keys()
    failed = [one for one in found.values() if one["status"] == "fail"]
    assert (done.code == UNFIT) == bool(failed)
    assert [bool(one["remedy"]) for one in found.values()] == [
        one["status"] in ("warn", "fail") for one in found.values()
    ]
    golden(done.err)
    assert not list(tmp_path.glob("spbench-doctor-*"))


def test_the_doctor_where_torch_does_not_load(tmp_path: Path, golden: Golden) -> None:
    """A torch that does not load is a failure with a remedy and exit code 6; no rank starts."""
    done = spbench(tmp_path, "doctor", "--device", "cpu", torch=None)
    assert done.code == UNFIT
    lines = done.out.splitlines()
    assert lines[-1].startswith("unfit: torch")
    (at,) = (i for i, line in enumerate(lines) if line.split()[:2] == ["fail", "torch"])
    golden("\n".join(lines[at : at + 2]), hide={" {2,}": "  "})
    assert any(line.split()[:1] == ["skipped"] and "torch failed" in line for line in lines)
    assert "\x1b" not in done.out


def examined(**more: Any) -> list[Diagnosis]:
    known: dict[str, Any] = {
        "choice": "auto",
        "ranks": 8,
        "timeout_s": 5.0,
        "environ": {},
        "driver": NOBODY,
        "usable": [],
    }
    return examine(**known | more)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A quiet machine with the torch that the test names, where no rank is ever started."""
    facts: dict[str, Any] = {"version": "2.12.0", "loaded": CPU_BUILD, "asked": [], "tried": []}

    def loaded(device: str, timeout_s: float) -> TorchFacts | str:
        facts["asked"].append(device)
        return facts["loaded"]

    def tried(sizes: list[int], device: str, *_: object) -> list[Diagnosis]:
        facts["tried"].append((sizes, device))
        return [ok(f"{size} ranks", "right") for size in sizes]

    monkeypatch.setattr(examining, "package_version", lambda _: facts["version"])
    monkeypatch.setattr(examining, "probe", loaded)
    monkeypatch.setattr(examining, "try_sizes", tried)
    return facts


def test_without_torch(elsewhere: dict[str, Any], golden: Golden) -> None:
    """torch is a failure with a remedy, ranks are skipped, and the other checks run."""
    elsewhere["version"] = ""
    found = {one.check: one for one in examined()}
    assert (found["torch"].status, found["torch"].found) == ("fail", "not installed")
    golden(found["torch"].remedy)
    assert (found["2 ranks"].status, found["8 ranks"].status) == ("skipped", "skipped")
    assert found["2 ranks"].found == "torch failed"
    assert found["memory"].found
    assert elsewhere["asked"] == elsewhere["tried"] == []


def test_a_machine_without_gpus(elsewhere: dict[str, Any]) -> None:
    """auto tries the CPU; with --device cuda the missing GPU is a failure, and no rank is tried."""
    found = {one.check: one for one in examined()}
    assert found["gpus"].status == "ok"
    assert elsewhere["tried"] == [([2, 8], "cpu")]
    found = {one.check: one for one in examined(choice="cuda")}
    assert (found["gpus"].status, found["8 ranks"].status) == ("fail", "skipped")
    assert "--gpus all" in found["gpus"].remedy
    assert len(elsewhere["tried"]) == 1
    assert elsewhere["asked"] == ["cpu", "cpu"]


def test_a_machine_with_gpus(elsewhere: dict[str, Any]) -> None:
    """Each check of GPUs has a line; two ranks and then one for each GPU are tried."""
    elsewhere["loaded"] = CUDA_BUILD
    report = read_nvml(fake_nvml())
    three = examined(driver=report, usable=report.gpus, ranks=None)
    found = {one.check: one for one in three}
    assert [name for name in found if name.startswith(("gpu", "cuda", "driver", "nccl"))] == [
        *("nccl", "gpus", "driver", "cuda", "gpus idle", "gpu clocks", "gpu links")
    ]
    assert found["gpus"].found == "3 x NVIDIA H200"
    assert elsewhere["tried"] == [([2, 3], "cuda")]
    assert elsewhere["asked"] == ["cuda"]
    examined(driver=report, usable=report.gpus, choice="cpu")
    assert (elsewhere["tried"][-1], elsewhere["asked"][-1]) == (([2, 8], "cpu"), "cpu")


def test_a_torch_for_the_cpu_beside_gpus(elsewhere: dict[str, Any]) -> None:
    """auto warns and tries the CPU; --device cuda fails and tries nothing."""
    report = read_nvml(fake_nvml())
    found = {one.check: one for one in examined(driver=report, usable=report.gpus)}
    assert (found["cuda"].status, found["driver"].status) == ("warn", "skipped")
    assert elsewhere["tried"] == [([2, 8], "cpu")]
    asked = examined(driver=report, usable=report.gpus, choice="cuda")
    found = {one.check: one for one in asked}
    assert (found["cuda"].status, found["8 ranks"].found) == ("fail", "cuda failed")
    assert len(elsewhere["tried"]) == 1


def test_one_gpu_has_nobody_to_send_to(elsewhere: dict[str, Any], golden: Golden) -> None:
    """With a single GPU, ranks and the links between GPUs are skipped."""
    elsewhere["loaded"] = CUDA_BUILD
    report = read_nvml(fake_nvml())
    alone = examined(driver=report, usable=report.gpus[:1], ranks=None)
    found = {one.check: one for one in alone}
    assert found["ranks"].status == "skipped"
    golden(found["ranks"].found)
    assert "gpu links" not in found
    assert elsewhere["tried"] == []


def test_what_torch_says_of_itself() -> None:
    """The facts are those of the torch that is loaded here."""
    import torch

    found = torch_probe.torch_facts("cpu")
    assert (found.version, found.cuda) == (torch.__version__, torch.version.cuda or "")
    assert (found.gpus, found.troubles) == (0, [])
    assert found.backends == available_backends()
    assert "gloo" in found.backends


def test_gpus_that_torch_cannot_use(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """The reason is torch's warning, its error, or a first sum that is wrong."""
    import warnings

    import torch

    def too_old() -> bool:
        warnings.warn("The NVIDIA driver on your system is too old\nmore", stacklevel=1)
        return False

    def broken() -> None:
        raise RuntimeError("No CUDA GPUs are available")

    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", too_old)
    found = torch_probe.torch_facts("cuda")
    assert (found.gpus, found.cuda) == (0, "12.8")
    golden(*found.troubles)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", broken)
    golden(*torch_probe.torch_facts("cuda").troubles, "none is available")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    sums = {"cuda:0": torch.ones(8), "cuda:1": torch.ones(7)}
    monkeypatch.setattr(torch, "ones", lambda _, device: sums[device])
    found = torch_probe.torch_facts("cuda")
    assert found.gpus == 1
    golden(*found.troubles, "a wrong sum")
    del sums["cuda:0"]
    assert torch_probe.torch_facts("cuda").troubles[0].startswith("GPU 0: ")


def says(script: str) -> tuple[str, ...]:
    return (sys.executable, "-c", script)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("import sys; sys.exit('ImportError: no such file')", "ImportError: no such file"),
        ("raise SystemExit(3)", "loading it ended with exit code 3"),
        ("import os; os.kill(os.getpid(), 11)", "loading it ended by SIGSEGV"),
        ("print('hello')", "instead of its facts it printed 'hello'"),
        ("pass", "instead of its facts it printed ''"),
    ],
)
def test_a_torch_that_cannot_be_asked(script: str, why: str) -> None:
    """An error, a crash and any output that is not facts are reported."""
    assert probe("cpu", 30.0, says(script)) == why


def test_a_torch_that_answers(golden: Golden) -> None:
    """The last line counts, whatever stands above it; a torch that is too slow is given up."""
    text = CUDA_BUILD.model_dump_json()
    assert probe("cuda", 30.0, says(f"print('a library greets'); print({text!r})")) == CUDA_BUILD
    found = probe("cpu", 0.2, says("import time; time.sleep(30)"))
    golden(found)


@pytest.mark.parametrize(("status", "code"), [("ok", DONE), ("warn", DONE), ("fail", UNFIT)])
def test_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: Any, code: int
) -> None:
    """The exit code is 6 if a check failed and 0 otherwise; --json prints the diagnoses as data."""
    found = [Diagnosis("torch", "so", "do", status=status)]
    monkeypatch.setattr(machine_command, "examine", lambda *_: found)
    assert machine_command.doctor_command.main(["--json"], standalone_mode=False) == code
    (one,) = json.loads(capsys.readouterr().out)
    assert one == {"check": "torch", "status": status, "found": "so", "remedy": "do"}
    assert machine_command.doctor_command.main([], standalone_mode=False) == code


def test_what_it_refuses(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """More ranks than GPUs, and a start under torchrun, are refused before any check."""
    monkeypatch.setattr(machine_command, "read_nvml", lambda _: read_nvml(fake_nvml()))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(Failure) as caught:
        machine_command.doctor_command.main(["-g", "8"], standalone_mode=False)
    golden(caught.value)
    assert caught.value.code == USAGE
    with pytest.raises(click.BadParameter, match="0 is not"):
        machine_command.doctor_command.main(["-g", "0"], standalone_mode=False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(Failure, match="without torchrun"):
        machine_command.doctor_command.main([], standalone_mode=False)


FOUND = [
    ok("python", "3.12.1"),
    warn("/dev/shm", "32 MiB of 64 MiB free, which NCCL may fill", "docker run --shm-size=8g"),
    fail("torch", "2.12.0 cannot be loaded: " + "very " * 30 + "long reason", "install it afresh"),
    skipped("2 ranks", "torch failed"),
]


def shown(
    monkeypatch: pytest.MonkeyPatch, columns: int | None, found: list[Diagnosis] = FOUND
) -> str:
    """The output in a terminal of that width; or, with None, in a pipe."""
    stream = io.StringIO() if columns is None else Terminal()
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(columns or 40))
    plain = tables.console(stream)
    monkeypatch.setattr(doctor_table.tables, "console", lambda: plain)
    doctor_table.show_diagnoses(found)
    return stream.getvalue()


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_lines_fit_the_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int, golden: Golden
) -> None:
    """No line is wider than the terminal, and each check follows its coloured status."""
    styled = shown(monkeypatch, columns)
    assert "\x1b[" in styled
    lines = STYLED.sub("", styled).splitlines()
    assert max(map(len, lines)) <= columns
    begins = [line.split()[:2] for line in lines]
    for one in FOUND:
        assert [one.status, one.check.split()[0]] in begins
    golden("\n".join(lines))
    assert "long reason" in " ".join(" ".join(lines).split())


def test_lines_behind_a_pipe_are_whole(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """In a pipe, a line is never folded and has no colour."""
    lines = shown(monkeypatch, None).splitlines()
    assert "\x1b" not in "".join(lines)
    begin = lines[0].index("found")
    golden("\n".join(line[begin:] for line in lines[2:-2]))
    assert all(line == line.rstrip() for line in lines)


def test_the_whole_in_a_line(golden: Golden) -> None:
    """The headline names failed checks and warnings."""
    assert doctor_table.headline(FOUND[:1]) == "fit"
    two = [*FOUND[:2], warn("cores", "no", "wait")]
    golden(doctor_table.headline(two))
    assert doctor_table.headline([FOUND[2]]) == "unfit: torch"
