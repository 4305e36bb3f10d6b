"""Writes docs/papers.md: what two papers publish, beside what is counted and projected here.

    python scripts/papers [FILE]

Nothing is measured: volumes are counted, memory is that of dry runs, times are projected.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from paper_facts import PAGE, facts


def main(path: Path) -> None:
    """Works out all of it on all cores, and writes the page."""
    # What is wrong with the words of the command is said before these load torch.
    import torch
    from dsp_figure import projected_point
    from dsp_scaling import cells, steps_of
    from page import page
    from rsa_capacity import largest, questions

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


def file_of(text: str) -> Path:
    """The file to write. Raises ArgumentTypeError for one that cannot be written."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no folder {path.parent}")
    return path


def parsed(words: list[str] | None = None) -> Path:
    """The file that the command names, by default the page in docs/."""
    parser = argparse.ArgumentParser(
        prog="python scripts/papers",
        description="Write the page on what two papers publish, beside what is counted and "
        "projected here. Nothing is measured. It takes minutes, on all cores.",
    )
    parser.add_argument(
        "file",
        nargs="?",
        type=file_of,
        default=PAGE,
        metavar="FILE",
        help="the file to write  [default: docs/papers.md]",
    )
    path: Path = parser.parse_args(words).file
    return path


if __name__ == "__main__":
    main(parsed())
