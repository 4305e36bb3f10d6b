"""Figures become files: PNG and SVG of each, two figures at a time."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import matplotlib as mpl

from spbench.report.plots.figure import TITLE, Sheet, draw
from spbench.worker.parent_death import die_with_parent

PROCESSES = 2
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": TITLE,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "figure.dpi": 110,
    "text.hinting": "none",
    "svg.hashsalt": "spbench",
}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "png": {"pil_kwargs": {"compress_level": 3}},
    "svg": {"metadata": {"Date": None}},
}
"""Options by the ending of a file: a PNG of level 3 takes half the time of level 6."""


def save_all(sheets: Mapping[str, Sheet], folder: Path) -> list[Path]:
    """Writes every sheet under its name; returns the paths in order.

    The processes are forked, so that they need not load matplotlib again; not where a thread could
    hold a lock that they would wait for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stems = {folder / name: sheet for name, sheet in sheets.items()}
    if sys.platform != "linux" or threading.active_count() > 1:
        return [path for stem, sheet in stems.items() for path in save(sheet, stem)]
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(PROCESSES, fork, _begin, (os.getpid(),)) as pool:
        # The last sheet takes longest, so it is begun first.
        drawn = {stem: pool.submit(save, stems[stem], stem) for stem in reversed(stems)}
        try:
            for figure in as_completed(drawn.values()):
                figure.result()
        finally:
            pool.shutdown(cancel_futures=True)
    return [path for stem in stems for path in drawn[stem].result()]


def _begin(parent: int) -> None:
    """Ctrl-C reaches all processes of a terminal; the parent answers it. A figure is many objects,
    all in use: looking for garbage finds none."""
    gc.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent)


def save(sheet: Sheet, stem: Path) -> list[Path]:
    """Draws the sheet and writes a file of each kind; returns their paths."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in KINDS]
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        figure = draw(sheet)
        for path, options in zip(paths, KINDS.values(), strict=True):
            figure.savefig(path, **options)
    return paths
