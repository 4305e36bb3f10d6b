"""Programs that ranks of real process groups run in tests."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from helpers.variants import suited
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import spbench
from spbench.comm.collectives import Collectives
from spbench.comm.group import ProcessGroup
from spbench.comm.kv_store import MeetingFile
from spbench.strategies.registry import load, places
from spbench.worker.step import Step
from spbench.workload.catalogue import find
from spbench.workload.mesh import Mesh
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Transfer, by_op, count


class SentOverC10d(TorchDispatchMode):
    """Counts the bytes handed to c10d operations, independently of spbench's own counts."""

    def __init__(self, rank: int, ranks: int) -> None:
        super().__init__()
        self.rank, self.ranks = rank, ranks
        self.sent = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        if name.startswith("c10d::"):
            self.sent += self._bytes(name.removeprefix("c10d::"), args)
        return func(*args, **(kwargs or {}))

    def _bytes(self, name: str, args: Any) -> float:
        if name == "alltoall_base_":
            x, group, splits = args[1], dist.ProcessGroup.unbox(args[2]), args[4]
            row = x.nbytes / max(1, x.shape[0])
            own = splits[group.rank()] * row if splits else x.nbytes / group.size()
            return x.nbytes - own
        if name == "send":
            return sum(x.nbytes for x in args[0])
        if name == "allreduce_":
            return sum(2 * (self.ranks - 1) / self.ranks * x.nbytes for x in args[0])
        assert name in ("recv_", "barrier"), f"an operation that is not counted: {name}"
        return 0.0


def check_network(rank: int, ranks: int, folder: str) -> None:
    """Runs every collective over gloo and a step of every strategy; counts the bytes at c10d."""
    torch.set_num_threads(1)
    place = Path(folder)
    meeting = MeetingFile(path=place / "meeting", rank=rank, ranks=ranks)
    group = ProcessGroup(torch.device("cpu"), 60.0, meeting=meeting)
    group.warm()
    results: dict[str, Any] = {"steps": {}}
    results["collectives"] = _collectives(group)
    for name in places():
        work = suited(name, find("axes-2d-uneven", "verify"))
        transports = group.transports
        step = Step(load(name).on(work, group.size), transports, group.device)
        inputs = step.seeded_inputs()
        step(*inputs)
        transports.reset()
        with SentOverC10d(rank, ranks) as seen:
            step(*inputs)
        counted = sum(float(n) for n in transports.sent().values())
        predicted = sum(float(n) for n in count(load(name).on(work, ranks).traffic, rank).values())
        results["steps"][name] = {"seen": seen.sent, "counted": counted, "predicted": predicted}
    results["largest"] = group.largest([rank, -rank])
    results["texts"] = group.gather_text("é" * rank)
    results["blank"] = group.gather_text("")
    (place / f"{rank}.json").write_text(json.dumps(results))
    group.close()


def prove_own_models(rank: int, ranks: int, folder: str) -> None:
    """Runs examples/own_model.py as torchrun would, then a model on a mesh of one's own."""
    torch.set_num_threads(1)
    place = Path(folder)
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    example = import_module("own_model")
    stores = [dist.FileStore(str(place / f"meeting {i}"), ranks) for i in range(2)]
    join = dist.init_process_group
    dist.init_process_group = partial(join, store=stores[0], rank=rank, world_size=ranks)
    with (place / f"{rank}.txt").open("w") as said, redirect_stdout(said):
        example.main()
    join("gloo", store=stores[1], rank=rank, world_size=ranks)
    (place / f"{rank}.json").write_text(json.dumps(_beside_data_parallelism(ranks)))
    dist.destroy_process_group()


def _beside_data_parallelism(ranks: int) -> dict[str, Any]:
    """A proof in each group of two, and how far DistributedDataParallel over all is from the mean
    over data of the sum over the sequence."""
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("data", "sequence"))
    form, plain_form = (
        import_module(name) for name in ("video_transformer_dsp", "video_transformer")
    )
    sizes = {"frames": 5, "patches": 3, "channels": 2, "hidden": 8, "heads": 2}
    sp = spbench.SequenceGroup({1: 5, 2: 3}, mesh["sequence"].get_group())
    torch.manual_seed(0)
    plain, batch = plain_form.VideoTransformer(**sizes), torch.randn(ranks // 2, 5, 3, 2)
    proof = spbench.prove(plain, form.VideoTransformer(**sizes, sp=sp), batch[:1], group=sp)
    unsummed = type("Unsummed", (), {"shard": sp.shard, "switch": sp.switch})()
    unsummed.sum_gradients = lambda module: module
    model = form.VideoTransformer(**sizes, sp=unsummed)
    model.load_state_dict(plain.state_dict())
    reduced = DistributedDataParallel(model)
    mine = reduced(batch[mesh["data"].get_local_rank()][None])
    (mine.square().sum() / batch[:1].numel() * sp.size).backward()
    (plain(batch).square().mean()).backward()
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    errors = [(mine.grad - whole.grad).norm() / whole.grad.norm() for mine, whole in pairs]
    return {"ranks": proof.ranks, "worst": float(max(errors)), "uncounted": proof.uncounted}


def _collectives(group: ProcessGroup) -> dict[str, bool]:
    comm = Collectives(group.transports.strategy)
    x = torch.arange(2 * 7 * 5 * 3, dtype=torch.float64).view(2, 7, 5, 3)
    shard, other = Shard.even(1, 7, comm.size), Shard.even(2, 5, comm.size)
    mine = comm.take(x, shard).contiguous()
    group.transports.strategy.reset()
    (switched,) = comm.switch(mine, before=shard, after=other)
    gathered = comm.all_gather(mine, shard)
    scattered = comm.reduce_scatter(x * (comm.rank + 1), shard)
    total = x.clone()
    comm.all_reduce_(total).wait()
    ringed = comm.ring(mine, shard)
    expected = [
        Transfer.all_to_all(x.nbytes, shard.sizes, other.sizes),
        Transfer.all_gather(x.nbytes, shard.sizes),
        Transfer.reduce_scatter(x.nbytes, shard.sizes),
        Transfer.all_reduce(x.nbytes, comm.size),
        Transfer.ring(x.nbytes, shard.sizes),
    ]
    weights = sum(range(1, comm.size + 1))
    mesh = Mesh.of({"ring": 2, "heads": 2} if comm.size == 4 else {"ring": 1, "heads": comm.size})
    meshed = Collectives(group.transports.strategy, mesh)
    members = {axis: mesh.members(comm.rank, axis) for axis, _ in mesh.axes}
    return {
        "switch": torch.equal(switched, comm.take(x, other)),
        "all_gather": torch.equal(gathered, x),
        "reduce_scatter": torch.equal(scattered, comm.take(x, shard) * weights),
        "all_reduce": torch.equal(total, x * comm.size),
        "ring": torch.equal(ringed, x),
        "counted": by_op(group.transports.strategy.sent) == by_op(count(expected, comm.rank)),
    } | {
        f"along {axis}": torch.equal(
            meshed.along(axis).all_reduce(torch.tensor([comm.rank])), torch.tensor([sum(group)])
        )
        for axis, group in members.items()
    }
