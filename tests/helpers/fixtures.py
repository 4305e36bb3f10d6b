"""Fixtures shared by the tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from helpers.golden import _sections, golden
from helpers.made_up_work import work_is_made_up
from helpers.repository import repository
from helpers.shared_launcher import shared_agent, warm_launcher
from hypothesis import settings

from spbench.comm import threaded
from spbench.workload import catalogue
from spbench.workload.config_names import configs

__all__ = ["_sections", "golden", "repository", "shared_agent", "warm_launcher", "work_is_made_up"]

settings.register_profile("spbench", deadline=None, derandomize=True)
settings.load_profile("spbench")


def once(load: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Loads each file that comes with spbench once: what is loaded is frozen."""
    packaged = cache(load)
    return lambda path: packaged(path) if path.is_relative_to(configs()) else load(path)


catalogue.load_file = once(catalogue.load_file)


@pytest.fixture(autouse=True)
def _one_thread_each() -> None:
    """Ranks as threads share the cores; each computes with one thread."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_numbers_each_time() -> None:
    """A test that draws numbers gets the same ones, alone or among others."""
    torch.default_generator.manual_seed(0)  # the CPU's: others cost half a millisecond


@pytest.fixture(autouse=True)
def _ranks_as_threads_on_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of Python compute in turn; on several cores they fight for their turn at each
    operation, and take two to three times as long. Processes that a test starts have all cores."""

    def pool(size: int) -> ThreadPoolExecutor:
        here = (0, {psutil.Process().cpu_num()})
        return ThreadPoolExecutor(size, initializer=os.sched_setaffinity, initargs=here)

    monkeypatch.setattr(threaded, "ThreadPoolExecutor", pool)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test sees no SPBENCH_ variable and no launch of the shell that runs it."""
    for name in list(os.environ):
        if name.startswith("SPBENCH_") or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test writes need not outlive the machine."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
