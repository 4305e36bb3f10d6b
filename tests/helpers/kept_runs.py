"""Recorded runs in the current folder, and the command on them, inside of this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from helpers.example_rows import rows

from spbench.cli.main import cli
from spbench.errors import Failure
from spbench.results.record import Record
from spbench.results.store import Store

STEPS = [100.0, 100.5, 99.5, 100.2, 99.8]
SENT: dict[str, Any] = {
    "sent_bytes_forward": 400,
    "sent_bytes_backward": 400,
    "sent_bytes_gradients": 100,
    "all_to_all_bytes": 800,
    "peak_allocated_bytes": 10_000,
    "collectives": "forward.all_to_all=4 backward.all_to_all=4",
    "gpu": "a GPU",
    "torch": "2.13.0",
}


def kept(name: str, *records: Sequence[Record]) -> str:
    """A run under results/."""
    with Store(Path("results") / name) as store:
        for record in (one for some in records for one in some):
            store.append(replace(record, run_id=name))
    return name


def side(name: str, factor: float = 1.0, strategy: str = "dsp", **more: Any) -> list[Record]:
    return rows(strategy, [ms * factor for ms in STEPS], session=name, **SENT | more)


def spbench(*words: str) -> Result:
    """The command, with a Failure's message and code as ``main`` would give them."""
    result = CliRunner().invoke(cli, words, standalone_mode=False)
    if isinstance(result.exception, Failure):
        result.exit_code, result.stderr_bytes = (
            result.exception.code,
            str(result.exception).encode(),
        )
    elif result.exception is not None:
        raise result.exception
    elif isinstance(result.return_value, int):
        result.exit_code = result.return_value
    return result
