"""Several sheets at once, one on each core.

A sheet holds functions that cannot be sent to another process, so processes inherit it: they are
forked, and only where no other thread of Python's, nor torch, could hold a lock that they would
wait for.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from functools import partial
from pathlib import Path

import psutil

from spbench.report.plots.figure import Sheet, save
from spbench.worker.parent_death import die_with_parent

_inherited: Mapping[Path, Sheet] = {}
"""Filled in the processes that draw."""


def save_all(sheets: Mapping[Path, Sheet]) -> Iterator[Path]:
    """Draws and writes each, by its path without the ending; yields the paths in order."""
    workers = min(len(sheets), psutil.cpu_count() or 1)
    has_threads = threading.active_count() > 1 or "torch" in sys.modules
    if workers < 2 or has_threads or sys.platform != "linux":
        for stem, sheet in sheets.items():
            yield from save(sheet, stem)
        return
    forked = multiprocessing.get_context("fork")
    begin = partial(_begin, sheets, os.getpid())
    with ProcessPoolExecutor(workers, forked, initializer=begin) as pool:
        # The last ones hold most: a short one should be what is waited for.
        saved = {stem: pool.submit(_save, stem) for stem in reversed(list(sheets))}
        try:
            for one in wait(saved.values(), return_when=FIRST_EXCEPTION).done:
                one.result()
            for stem in sheets:
                yield from saved[stem].result()
        finally:
            pool.shutdown(cancel_futures=True)


def _save(stem: Path) -> list[Path]:
    return list(save(_inherited[stem], stem))


def _begin(sheets: Mapping[Path, Sheet], parent: int) -> None:
    """Ctrl-C reaches all of a terminal's processes; what it means is the parent's to say."""
    global _inherited  # noqa: PLW0603
    _inherited = sheets
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()  # what was inherited is kept: to look through it would also copy it
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    die_with_parent(parent)
