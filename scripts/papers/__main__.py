"""Writes docs/papers.md: what two papers publish, beside what is counted and projected here.

    python scripts/papers [FILE]

Nothing is measured: volumes are counted, memory is that of dry runs, times are projected.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from dsp_figure import projected_point
from dsp_scaling import cells, steps_of
from page import page
from paper_facts import PAGE, facts
from rsa_capacity import largest, questions


def main(path: Path) -> None:
    """Works out all of it on all cores, and writes the page."""
    began_s = time.monotonic()
    scaling, asked = cells(), questions()
    distinct = {cell.size: cell for cell in scaling}
    with ProcessPoolExecutor(
        os.cpu_count(), multiprocessing.get_context("spawn"), partial(torch.set_num_threads, 1)
    ) as pool:

        def started(work: Callable[[Any], Any], each: Any) -> Future[Any]:
            return pool.submit(work, each)

        answers = [(each, started(largest, each)) for each in reversed(asked)]
        steps = {size: started(steps_of, cell) for size, cell in reversed(distinct.items())}
        points = [started(projected_point, each) for each in facts("dsp")["figure"]["points"]]
        text = page(
            [each.result() for each in points],
            [(cell, steps[cell.size].result()) for cell in scaling],
            {each: answer.result() for each, answer in answers},
        )
    path.write_text(text, encoding="utf-8")
    print(f"{path}: {time.monotonic() - began_s:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else PAGE)
