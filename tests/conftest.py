"""Fixtures shared by the tests."""

from __future__ import annotations

import gc
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest

import psutil
import pytest
import torch
from helpers.made_up_work import work_is_made_up
from helpers.repository import repository
from helpers.shared_launcher import shared_agent, warm_launcher
from hypothesis import settings

from spbench.comm import threaded

__all__ = ["repository", "shared_agent", "warm_launcher", "work_is_made_up"]

# A shell starts what is to run in the background, such as these tests, deaf to Ctrl-C, and nohup
# to hanging up; what they start would be so too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
settings.register_profile("spbench", deadline=None, derandomize=True)
settings.load_profile("spbench")
WAITING = "tests/processes"
"""Here tests wait for processes most of their time; serial tests are here alone."""
LONGEST = (
    *("tests/conformance", "tests/cli", "tests/unit/benchmarks", "tests/unit/report"),
    *("tests/unit/results", "tests/unit/regression", "tests/unit/launch"),
)
"""Folders whose files compute longest: begun last, one of them would be waited for in the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts files so that some workers wait while others compute, and short files come last."""
    astray = [item.nodeid for item in items if item.get_closest_marker("serial")]
    assert all(name.startswith(WAITING) for name in astray), f"not in {WAITING}: {astray}"
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)

    def place(file: str) -> int:
        found = (i for i, folder in enumerate(LONGEST) if file.startswith(folder))
        return next(found, len(LONGEST))

    waiting = [file for file in files if file.startswith(WAITING)]
    computing = sorted((file for file in files if not file.startswith(WAITING)), key=place)
    in_turn = [file for pair in zip_longest(computing, waiting) for file in pair if file]
    items[:] = [item for file in in_turn for item in files[file]]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Garbage is looked for a thirtieth as often, and not in what was imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


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
