"""Fixtures shared by the tests."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from helpers.repository import repository
from hypothesis import settings

__all__ = ["repository"]

# A shell starts what is to run in the background, such as these tests, deaf to Ctrl-C, and nohup
# to hanging up; what they start would be so too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
settings.register_profile("spbench", deadline=None, derandomize=True)
settings.load_profile("spbench")
FIRST = (
    *("tests/processes", "tests/conformance", "tests/cli"),
    *("tests/unit/regression", "tests/unit/launch", "tests/unit/benchmarks", "tests/unit/report"),
)
"""Folders whose files take longest: begun last, one of them would be waited for in the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts files by folder: those of ``FIRST``, then all others. Serial tests are of the first
    of them: ``make test`` looks for them there alone."""
    astray = [item.nodeid for item in items if item.get_closest_marker("serial")]
    assert all(name.startswith(FIRST[0]) for name in astray), f"not in {FIRST[0]}: {astray}"

    def place(item: pytest.Item) -> int:
        found = (i for i, name in enumerate(FIRST) if item.nodeid.startswith(name))
        return next(found, len(FIRST))

    items.sort(key=place)


@pytest.fixture(autouse=True)
def _one_thread_each() -> None:
    """Ranks as threads share the cores; each computes with one thread."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test sees no SPBENCH_ variable and no launch of the shell that runs it."""
    for name in list(os.environ):
        if name.startswith("SPBENCH_") or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
