"""Runs with everything a figure may meet: failed, skipped, noisy, blank and projected cases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from helpers.example_rows import lines_of, row

from spbench.report.plots.frame import Asked, Run
from spbench.report.plots.pages import Page, page_of
from spbench.results.record import Record
from spbench.results.runs_csv import frame_of

TEN = (
    *("dsp", "ulysses", "megatron-sp", "megatron-tp", "rsa", "ring", "kv-gather"),
    *("attention-2d", "usp:ulysses=2", "usp:ulysses=2:across=kv-gather"),
)
TWENTY = (*TEN, *(f"{name}:option={n}" for n in (1, 2) for name in TEN[:5]))
RANKS = (1, 2, 4, 8, 16)
GIB = 2**30
USUAL = Asked()


def run_of(
    strategies: Sequence[str] = TEN,
    ranks: Sequence[int] = RANKS,
    spaces: Sequence[int] = (4096,),
    launches: int = 3,
    **more: Any,
) -> list[Record]:
    """Times that fall with ranks, less for each further strategy; some cases failed, some noisy."""
    return [
        record
        for space, n, (place, name) in product(spaces, ranks, enumerate(strategies))
        for record in _case(name, place, space, n, launches, more)
    ]


def plotted(records: Sequence[Record], folder: Path, asked: Asked = USUAL) -> Run:
    """What is drawn of these rows, whose samples lie in the folder."""
    return Run(lines=lines_of(records), launches=frame_of(records), folder=folder, asked=asked)


def page(records: Sequence[Record], folder: Path, number: int = 1, *kinds: str) -> Page:
    """The figures of these rows."""
    return page_of(plotted(records, folder), number, kinds)


def projected_of(**more: Any) -> list[Record]:
    """The same cases, projected on a cluster, with intervals of their own."""
    known = {"kind": "projected", "device": "cuda", "cluster": "hgx-h100", "gpu": "H100-SXM-80GB"}
    return run_of(launches=1, **{**known, "memory_limit_bytes": 80 * 10**9, **more})


def _case(
    name: str, place: int, space: int, ranks: int, launches: int, more: dict[str, Any]
) -> Iterator[Record]:
    known = {"axes": f"time=64xspace={space}", "world_size": ranks, "dtype": "bfloat16"}
    known |= {"workload": "dsp-720m", "case": f"{name} {space} {ranks} {more.get('kind', '')}"}
    known |= {"torch": "2.11.0", "git_commit": "0123456789abcdef", **more}
    status = _status(place, space, ranks)
    if status != "ok":
        yield row(name, **known, status=status, reason=f"it ended with {status}")
        return
    work, sent = 64 * space / 1000, (1 - 1 / ranks) * (place + 1) / 8
    if place == 2 and ranks == 2:
        sent = 0.13  # nearly the time of the one before
    for launch in range(launches):
        compute_ms = work / ranks * (1 + 0.004 * launch)
        exposed_ms = (
            work * sent / ranks * (1 + 0.05 * launch) * (1.0 if space > 1024 else 3 - place)
        )
        exposed_ms = max(exposed_ms, 0.02 * compute_ms * place if ranks > 1 else 0.0)
        yield row(
            name,
            **known,
            launch=launch,
            **_figures(compute_ms, exposed_ms, space, ranks, place),
            noisy="a neighbour" if place == 4 and ranks == 4 else "",
            **_projection(compute_ms + exposed_ms, place, more),
        )


def _status(place: int, space: int, ranks: int) -> str:
    if place in (1, 2) and ranks == 16:
        return "skipped"
    if place == 3 and ranks < 4 and space > 1024:
        return "oom"
    return "hang" if place == 5 and ranks == 8 else "ok"


def _figures(
    compute_ms: float, exposed_ms: float, space: int, ranks: int, place: int
) -> dict[str, Any]:
    step_ms, tokens = compute_ms + exposed_ms, 64 * space
    sent = int(tokens * 1000 * (place + 1) * (1 - 1 / ranks))
    phases = {"forward": 1, "backward": 2, "gradients": 1}
    return {
        "step_ms": step_ms,
        "compute_ms": compute_ms,
        "exposed_comm_ms": exposed_ms,
        "tokens_per_s": tokens / step_ms * 1e3,
        "tokens_per_s_per_rank": tokens / step_ms * 1e3 / ranks,
        "samples_per_s": 1e3 / step_ms,
        "peak_allocated_bytes": int((40 / ranks + 3 + place) * GIB * space / 4096),
        **{f"sent_bytes_{phase}": sent * n for phase, n in phases.items()},
        **{f"predicted_bytes_{phase}": sent * n for phase, n in phases.items()},
    }


def _projection(step_ms: float, place: int, more: dict[str, Any]) -> dict[str, Any]:
    if more.get("kind") != "projected":
        return {}
    ends = {"step_ms_low": 0.85 * step_ms, "step_ms_high": 1.2 * step_ms}
    return ends | {"slower_share": (0.5 + 0.1 * place) if place else None}
