"""A launcher process that tests share: torch is imported once for the ranks of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.spbench_process import PATHS

from spbench.launch import local
from spbench.launch.process import AgentProcess


class SharedAgent:
    """Stands in for the class AgentProcess: whoever makes one has the same, which goes on when its
    launcher is closed; a launcher that ends it while ranks run ends it for all, and it is started
    again."""

    def __init__(self, log: Path) -> None:
        self.agent = AgentProcess(log, {"PYTHONPATH": PATHS, "CUDA_VISIBLE_DEVICES": ""})

    def __call__(self, log: Path, environment: object, words: object, grace_s: float) -> Any:
        assert not environment and not words, "this needs a launcher process of its own"
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.agent, name)

    def end(self, *, now: bool) -> None:
        if now:
            self.agent.end(now=True)


@pytest.fixture(scope="session")
def shared_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedAgent]:
    """Ends with the tests of this process."""
    shared = SharedAgent(tmp_path_factory.mktemp("launcher") / "launcher.log")
    yield shared
    shared.agent.end(now=False)


@pytest.fixture
def warm_launcher(shared_agent: SharedAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers that a test starts find their process started."""
    monkeypatch.setattr(local, "AgentProcess", shared_agent)
