"""Fixtures shared by the tests."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from hypothesis import settings

# A shell starts what is to run in the background, such as these tests, deaf to Ctrl-C, and nohup
# to hanging up; what they start would be so too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
settings.register_profile("spbench", deadline=None, derandomize=True)
settings.load_profile("spbench")


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
