"""The environment in run.json: nothing secret, and nothing that must be installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pynvml
import pytest
from helpers.golden import Golden

from spbench.regression.checkout import CheckoutError, work_tree
from spbench.results.machine import environment, git_state, gpu_memory, gpus, package_version


def no_library(*_: object) -> NoReturn:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


def mismatch(*_: object) -> NoReturn:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)


def not_loaded(*_: object) -> NoReturn:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)


@pytest.mark.parametrize("fault", [no_library, not_loaded, mismatch])
def test_without_nvml_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch, fault: Any) -> None:
    """No library, no driver, or one that does not match it, is a machine without GPUs."""
    monkeypatch.setattr(pynvml, "nvmlInit", fault)
    assert gpus() == []


@pytest.mark.parametrize("place", [None, SimpleNamespace()])
def test_without_pynvml_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch, place: Any) -> None:
    """It cannot be imported, or another package has its name."""
    monkeypatch.setitem(sys.modules, "pynvml", place)
    assert gpus() == []


def fake_nvml(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two GPUs, of which the second does not tell its power limit; what was shut down."""
    said: list[str] = []

    def power_limit(index: int) -> int:
        if index:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 700_000

    answers: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: said.append("shut down"),
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda index: f"GPU model {index}",
        "nvmlDeviceGetUUID": lambda index: f"GPU-{index}",
        "nvmlSystemGetDriverVersion": lambda: "570.1",
        "nvmlDeviceGetMemoryInfo": lambda index: SimpleNamespace(total=2**37, used=2**30 + index),
        "nvmlDeviceGetPowerManagementLimit": power_limit,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    return said


@pytest.mark.parametrize(
    ("shown", "used"),
    [(None, [0, 1]), ("0,1", [0, 1]), ("1", [1]), ("GPU-0", [0]), ("", []), ("-1", [])],
)
def test_memory_in_use_is_that_of_the_gpus_that_are_shown(
    monkeypatch: pytest.MonkeyPatch, shown: str | None, used: list[int]
) -> None:
    """By number or identity; NVML is closed."""
    said = fake_nvml(monkeypatch)
    assert gpu_memory(shown) == [2**30 + index for index in used]
    assert said == ["shut down"]


def test_gpus_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name, identity, driver, memory, and the power limit where there is one; NVML is closed."""
    said = fake_nvml(monkeypatch)
    first, second = gpus()
    assert first == {
        "name": "GPU model 0",
        "uuid": "GPU-0",
        "driver": "570.1",
        "memory_bytes": 2**37,
        "power_limit_w": 700.0,
    }
    assert (second["name"], "power_limit_w" in second) == ("GPU model 1", False)
    assert said == ["shut down"]


def put_git(folder: Path, script: str) -> None:
    path = folder / "git"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(("changes", "dirty"), [("", False), ("' M a.py'", True)])
def test_git_says_commit_and_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: str, dirty: bool
) -> None:
    """Anything that 'git status' prints makes the work tree differ."""
    put_git(tmp_path, f'[ "$1" = rev-parse ] && echo abc123 || printf {changes or "%s"}')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert git_state() == {"commit": "abc123", "dirty": dirty}


@pytest.mark.parametrize("script", [None, "exit 128"])
def test_without_git_or_a_checkout_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None
) -> None:
    """No git on the path, or no checkout to ask about."""
    if script:
        put_git(tmp_path, script)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state() == {}


def test_the_whole_is_plain_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes into JSON as it is, also on a machine without GPU and git."""
    monkeypatch.setattr(pynvml, "nvmlInit", no_library)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TORCH_TOKEN", "hunter2")
    found = environment()
    text = json.dumps(found)
    assert "hunter2" not in text
    assert (found["gpus"], found["git"]) == ([], {})
    assert found["versions"]["torch"]
    assert found["cpus"] >= 1
    assert found["memory_bytes"] > 2**20


def test_a_package_that_is_not_there_has_no_version() -> None:
    """A blank, not an error."""
    assert package_version("no-such-package-anywhere") == ""
    assert package_version("numpy")[0].isdigit()


def test_a_message_of_git_has_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """A partial clone may fetch, and git then names the remote with all of its URL."""
    put_git(tmp_path, "echo fatal: unable to access https://me:hunter2@host/x >&2; exit 128")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(CheckoutError) as refused:
        work_tree()
    golden(refused.value)
