"""Projected cases as rows of runs.csv, so that plots and comparisons show them beside launches.

A row says that it is projected, and of which cluster; it has no launches, nothing was sent, and
its bytes are those of the formulas.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spbench.projection.advise.project import KIND, Projection
from spbench.projection.advise.published import share_of_wins
from spbench.projection.costmodel.step_time import BUBBLE, COMPUTE, HOST, Mode
from spbench.results.machine import environment
from spbench.results.record import USABLE, Record
from spbench.results.store import Store
from spbench.strategies.registry import meshed
from spbench.workload.case import Case
from spbench.workload.flops import step_flops
from spbench.workload.mesh import CaseMesh, Mesh
from spbench.workload.traffic import by_busiest
from spbench.workload.workload import Workload


def write_rows(
    projected: Sequence[Projection], folder: Path, mode: Mode, argv: Sequence[str]
) -> None:
    """Writes the cases into a results directory, which may hold a run. Raises CannotWriteError."""
    facts = environment()
    known = {
        "run_id": folder.resolve().name,
        "started_utc": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "torch": facts["versions"]["torch"],
        "git_commit": facts["git"].get("commit", ""),
    }
    shares = zip(projected, _slower_shares(projected), strict=True)
    with Store(folder) as store:
        if not (folder / "run.json").exists():
            store.write_run({"argv": list(argv), **facts})
        store.copy([row_of(each, mode, slower_share=share, **known) for each, share in shares])


def _slower_shares(projected: Sequence[Projection]) -> list[float | None]:
    """For each case the share of draws in which it is slower than the fastest of its workload and
    ranks that fits, for that itself than any other that fits; None for what cannot run."""
    fitting: dict[tuple[Workload, int], list[Projection]] = {}
    for case in projected:
        if case.cost is not None and (case.peak_bytes or 0) <= USABLE * case.limit_bytes:
            fitting.setdefault((case.workload, case.ranks), []).append(case)
    shares: list[float | None] = []
    for case in projected:
        rivals = fitting.get((case.workload, case.ranks), [])
        best = min(rivals, key=lambda rival: rival.took.step_s, default=None)
        if case.cost is None or best is None:
            shares.append(None)
        elif case is best:
            others = [rival for rival in rivals if rival is not best]
            shares.append(1 - share_of_wins(best, others))
        else:
            shares.append(share_of_wins(best, [case]))
    return shares


def row_of(each: Projection, mode: Mode, **more: Any) -> Record:
    """The case's row: skipped with its reason, or a step time with its interval."""
    device = each.cluster.device
    is_gpu = device.kind == "gpu"
    strategy, mesh = CaseMesh.split(each.strategy)
    case = Case(
        workload=each.workload,
        strategy=strategy,
        mesh=mesh,
        ranks=each.ranks,
        device=device.runs_on,
        kind=KIND,
    )
    how = ["compiled"] * mode.compiled + ["measured share"] * (each.share is not None)
    place = ", ".join([each.cluster.name, *how, *filter(None, [mode.attention_kernel])])
    known = more | {
        "cluster": place,
        "gpu": device.name if is_gpu else "",
        "hardware": f"cluster {place}",
        "memory_limit_bytes": round(each.limit_bytes),
    }
    if each.cost is None:
        known |= {"status": "skipped", "reason": each.why_not}
    else:
        known |= {"status": "ok", **_figures(each, is_gpu=is_gpu)}
    # The key of a case knows no cluster.
    key = hashlib.sha256(f"{case.key} {place}".encode()).hexdigest()[:16]
    return replace(Record.of_case(case, **known), case=key)


def _figures(each: Projection, *, is_gpu: bool) -> dict[str, Any]:
    """Columns of a step: those that a measured row has, and the interval."""
    step, work, known = each.took, each.workload, each.data
    strategy = meshed(each.strategy)
    predicted = by_busiest(strategy.on(strategy.flattened(work), each.ranks).traffic)
    same = "step_ms", "step_ms_low", "step_ms_high", "samples_per_s", "tokens_per_s"
    return {
        **{name: known[name] for name in same},
        "tokens_per_s_per_rank": known["tokens_per_s"] / each.ranks,
        "tflops_per_rank": step_flops(work) / step.step_s / each.ranks / 1e12,
        **_split(step.step_s, step.terms, is_gpu=is_gpu),
        "peak_allocated_bytes": each.peak_bytes,
        "mesh": str(Mesh(each.work.mesh)) if each.work else "",
        **{f"predicted_bytes_{phase}": sent for phase, sent in predicted.items()},
    }


def _split(step_s: float, terms: Mapping[str, float], *, is_gpu: bool) -> dict[str, float | None]:
    """The step without communication, what that and a bubble add to it, and what is hidden. A
    GPU computes while the host launches, so that the longer of the two counts."""
    device_s, host_s = sum(terms.get(kind, 0.0) for kind in COMPUTE), terms[HOST]
    compute_s = min(max(device_s, host_s) if is_gpu else device_s + host_s, step_s)
    exposed_s = step_s - terms.get(BUBBLE, 0.0) - compute_s
    ends = (" exposed", " hidden")
    sent_s = sum(seconds for name, seconds in terms.items() if name.endswith(ends))
    return {
        "compute_ms": 1e3 * compute_s,
        "exposed_comm_ms": 1e3 * step_s - 1e3 * compute_s,
        "bubble_ms": 1e3 * terms[BUBBLE] if BUBBLE in terms else None,
        "hidden_comm_ms": 1e3 * max(sent_s - exposed_s, 0.0),
    }
