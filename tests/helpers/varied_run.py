"""A run with all that a run can hold: many strategies and ranks, failed, skipped, noisy and
projected cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from helpers.example_rows import row

from spbench.results.record import Record
from spbench.strategies.registry import BUILT_IN

MIB = 2**20
TOKENS = 128
"""Positions of the workload of example rows."""
RANKS = (1, 2, 4, 8, 16)
HOSTILE = "rank 1: <script>alert('x')</script> & \"more\" ]]> </svg>"
NOISE = "others used 1.2 of 2 cores"


def varied_run(
    strategies: Sequence[str] = (*BUILT_IN, "usp:ulysses=2"),
    ranks: Sequence[int] = RANKS,
    launches: int = 3,
) -> list[Record]:
    """Three launches of each case; of the last four strategies one failed, one was skipped, one
    noisy, and one is projected, too, each on the most ranks."""
    rows: list[Record] = []
    for launch in range(launches):
        for count in ranks:
            for place, name in enumerate(strategies):
                step_ms = (100 + 7 * place) / count**0.8 * (1 + 0.004 * launch)
                rows.append(timed(name, count, launch, step_ms))
    last = {name: (name, ranks[-1]) for name in strategies[-3:]}
    failed, skipped, noisy = [*last.values(), *[("", 0)] * 3][:3]
    made = []
    for each in rows:
        case = each.strategy, each.world_size
        if case in (failed, skipped):
            made.append(blank(each, "crash" if case == failed else "skipped"))
        else:
            made.append(replace(each, noisy=NOISE, others_cores=1.2) if case == noisy else each)
    return made + [projected(name, 64) for name in strategies[:4]]


def timed(strategy: str, ranks: int, launch: int, step_ms: float, **more: Any) -> Record:
    """A launch with every figure."""
    figures: dict[str, Any] = {
        "run_id": "varied",
        "started_utc": "2030-01-01T00:00:00Z",
        "case": f"{strategy} {ranks}",
        "launch": launch,
        "world_size": ranks,
        "sp_size": ranks,
        "step_ms": step_ms,
        "step_ms_p10": 0.99 * step_ms,
        "step_ms_p90": 1.02 * step_ms,
        "iterations": 12,
        "warmup": 5,
        "tokens_per_s": 1e3 * TOKENS / step_ms,
        "compute_ms": 0.75 * step_ms,
        "exposed_comm_ms": 0.25 * step_ms,
        "peak_allocated_bytes": 640 * MIB // ranks,
        "output_error": 1.2e-6,
        "gradient_error": 2.1e-6,
        "torch": "2.13.0",
        "backend": "gloo",
        "hardware": "2 cores of a processor",
        "load_average": 0.5,
        "others_cores": 0.02,
    }
    size = MIB if ranks > 1 else 0
    for phase, count in (("forward", 3), ("backward", 6), ("gradients", 1)):
        figures |= {f"{of}_bytes_{phase}": count * size for of in ("sent", "predicted")}
    figures |= {"all_to_all_bytes": 10 * size, "collectives": "forward.all_to_all=4" * (size > 0)}
    return row(strategy, **figures | more)


def blank(record: Record, status: Any) -> Record:
    """The same launch where it did not finish, for a reason that tries to break out of a page."""
    return row(
        record.strategy,
        run_id=record.run_id,
        started_utc=record.started_utc,
        case=record.case,
        launch=record.launch,
        world_size=record.world_size,
        sp_size=record.sp_size,
        status=status,
        reason=HOSTILE,
        tolerance=None,
        log="" if status == "skipped" else f"logs/{record.strategy}-launch{record.launch}.log",
    )


def projected(strategy: str, ranks: int) -> Record:
    """A step of a cost model, with its interval."""
    return row(
        strategy,
        run_id="varied",
        started_utc="2030-01-01T00:00:00Z",
        case=f"{strategy} projected",
        kind="projected",
        world_size=ranks,
        sp_size=ranks,
        device="cuda",
        cluster="hgx-h100",
        tolerance=None,
        round="",
        step_ms=5.0 + len(strategy),
        step_ms_low=4.0,
        step_ms_high=7.0 + len(strategy),
    )
