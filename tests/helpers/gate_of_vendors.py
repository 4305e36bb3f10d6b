"""A program of ranks that gates the adapters of vendors, as they are and with faults planted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from helpers.fake_packages import install
from helpers.variants import suited
from torch import Tensor

from spbench.comm.group import ProcessGroup
from spbench.comm.kv_store import MeetingFile
from spbench.comm.transport import Transports
from spbench.strategies.registry import BUILT_IN, in_mesh, load
from spbench.vendors import vendor
from spbench.vendors.torch_kv_gather import TorchKVGather
from spbench.vendors.vendor import Call
from spbench.worker.gate import run_gate
from spbench.worker.observer import Observer
from spbench.worker.reference import one_device
from spbench.worker.step import Step
from spbench.worker.witness import Witness
from spbench.workload.catalogue import find
from spbench.workload.mesh import ALL, CaseMesh
from spbench.workload.traffic import by_phase
from spbench.workload.workload import Workload

CPU = torch.device("cpu")
SHORT = {"axes": {"sequence": 24}}
Exchange = Callable[[TorchKVGather, Tensor, Tensor, Tensor, Call], Tensor]
right = TorchKVGather.exchange


def heads_in_wrong_order(own: TorchKVGather, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
    return right(own, q, k.flip(1), v, call)


def gather_left_out(own: TorchKVGather, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
    return vendor.plain(*(x.transpose(1, 2) for x in (q, k, v)), causal=False).transpose(1, 2)


def gradient_scaled(own: TorchKVGather, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
    out = right(own, q, k, v, call)
    out.register_hook(lambda grad: grad / call.group.size())
    return out


def sent_twice(own: TorchKVGather, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
    right(own, q, k, v, call)
    return right(own, q, k, v, call)


FAULTS: dict[str, Exchange] = {
    fault.__name__: fault
    for fault in (heads_in_wrong_order, gather_left_out, gradient_scaled, sent_twice)
}


@contextmanager
def planted(fault: Exchange) -> Iterator[None]:
    """Inside, the adapter of torch's gather has a fault."""
    TorchKVGather.exchange = fault  # type: ignore[method-assign]
    try:
        yield
    finally:
        TorchKVGather.exchange = right  # type: ignore[method-assign]


class Unmarked:
    """A transport as one who does not know it sees it: nothing says when it moves something."""

    is_moving = False

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    @property
    def phase_now(self) -> Any:
        return self._transport.phase_now


def gate_vendors(rank: int, ranks: int, folder: str) -> None:
    """Writes why each adapter, and each fault, is wrong, and what a witness counts of others."""
    torch.set_num_threads(1)
    place = Path(folder)
    meeting = MeetingFile(path=place / "meeting", rank=rank, ranks=ranks)
    group = ProcessGroup(CPU, 60.0, meeting=meeting)
    group.warm()
    works = {
        name: find(f"attention-alone{name}", "verify").model_copy(update=SHORT)
        for name in ("", "-causal", "-grouped")
    }
    results: dict[str, Any] = {"wrong": {}, "faults": {}, "seen": {}}
    for strategy in ("torch-cp", "torch-cp:alltoall", "torch-kv-gather"):
        for name, work in works.items():
            declined = load(strategy).declines(work, ranks)
            results["wrong"][f"{strategy}{name}"] = declined or _why_wrong(strategy, work, group)
    install()
    short = {"dtype": "bfloat16"}
    for strategy in ("te-cp", "xfuser-usp"):
        for name, work in works.items():
            if strategy == "te-cp" or name != "-causal":
                case = work.model_copy(update=short)
                results["wrong"][f"{strategy}{name}"] = _why_wrong(strategy, case, group)
    if ranks % 2 == 0:
        guided = works[""].model_copy(update={"guidance": 2})
        results["wrong"]["in two groups"] = _why_wrong("torch-cp", guided, group, cfg=2)
    for name, fault in FAULTS.items():
        with planted(fault):
            results["faults"][name] = _why_wrong("torch-kv-gather", works[""], group)
    results["seen"] = {name: _seen(name, group) for name in BUILT_IN}
    (place / f"{rank}.json").write_text(json.dumps(results))
    group.close()


def _why_wrong(strategy: str, work: Workload, group: ProcessGroup, cfg: int = 1) -> str | None:
    reference = one_device(work, CPU)
    plan = in_mesh(strategy, CaseMesh(cfg=cfg)).on(work, group.size)
    return run_gate(plan, group.transports, CPU, reference, Observer()).why_wrong()


def _seen(strategy: str, group: ProcessGroup) -> list[dict[str, int]]:
    """Bytes of a step of spbench's own, by phase: as counted, and as a witness sees them."""
    work = suited(strategy, find("axes-2d", "verify"))
    step = Step(load(strategy).on(work, group.size), group.transports, CPU)
    inputs = step.seeded_inputs()
    step(*inputs)
    group.transports.reset()
    both = group.transports
    blind: Any = Transports(
        strategy=Unmarked(both.strategy),  # type: ignore[arg-type]
        gradients=Unmarked(both.gradients),  # type: ignore[arg-type]
    )
    with Witness(blind, counts_as=ALL) as witness:
        step(*inputs)
    # A witness knows of one phase at a time, and sums of gradients go beside backward.
    counted, seen = by_phase(both.sent()), by_phase(witness.sent)
    for phases in (counted, seen):
        phases["backward"] += phases.pop("gradients")
    return [counted, seen]
