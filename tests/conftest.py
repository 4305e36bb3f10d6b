"""How the tests run: what they begin with, and in which order files are.

Fixtures are in ``helpers/fixtures.py``. The process that hands tests to workers runs none, and
loads neither them nor torch.
"""

from __future__ import annotations

import atexit
import gc
import signal
from importlib import import_module
from itertools import zip_longest

import pytest

# A shell starts what is to run in the background, such as these tests, deaf to Ctrl-C, and nohup
# to hanging up; what they start would be so too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# What is imported stays: garbage is looked for neither meanwhile nor in it, nor in all at the end.
gc.disable()
atexit.register(gc.freeze)
WAITING = "tests/processes"
"""Here tests wait for processes most of their time; serial tests are here alone."""
LONGEST = (
    *("tests/conformance", "tests/cli", "tests/unit/own_model", "tests/unit/projection"),
    *("tests/unit/benchmarks", "tests/unit/report", "tests/unit/worker/test_optimizer.py"),
    *("tests/unit/workload/test_validate.py", "tests/unit/results", "tests/unit/regression"),
    "tests/unit/launch",
)
"""Folders and files that compute longest: begun last, one would be waited for in the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The switch of ``helpers/golden.py``."""
    parser.addoption("--rewrite-golden", action="store_true", help="keep texts as they are now")


def pytest_configure(config: pytest.Config) -> None:
    """Fixtures come in where tests run."""
    only_hands_out = getattr(config.option, "dist", "no") != "no" and not hasattr(
        config, "workerinput"
    )
    if not only_hands_out:
        config.pluginmanager.register(import_module("helpers.fixtures"), "fixtures of all tests")


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
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 20)
