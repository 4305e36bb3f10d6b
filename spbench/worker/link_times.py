"""Each collective by itself against the clock: what ``spbench calibrate`` has ranks do.

Transfers go through the transports that strategies use, and are counted there. Their tensors are
flat: nothing is packed or computed on the way, so that their time is the links' own.
"""

from collections.abc import Callable, Sequence
from itertools import product

import torch
from torch import Tensor

from spbench.comm.group import Group
from spbench.comm.packing import Cut
from spbench.comm.transport import Handle, Transport
from spbench.results.link_report import LinkTimes, LinkTiming
from spbench.worker.kernel_calls import prepared
from spbench.worker.kernel_times import KernelTimer
from spbench.worker.observer import Observer
from spbench.worker.timer import Call, Stopwatch, even_clock
from spbench.workload.case import GateCheck
from spbench.workload.sharding import Shard, shard_sizes
from spbench.workload.timed import TimedKernel, TimedTransfer

CAP_S = 0.6
"""Seconds of one size, within which it is repeated."""
LEAST, MOST = 3, 50
"""Repeats of one size: the least, even beyond the cap, and the most."""
SWEEPS, SWEEP_S, ROUNDS, MOST_OF_A_SWEEP = 3, 0.07, 5, 20
"""How often all transfers with a kernel between are timed, one after another: what disturbs the
machine meets one of them once. Each then takes about so many seconds, rounds and repeats."""
Start = Callable[[], Handle]


def time_alone(
    transfers: Sequence[TimedTransfer],
    kernels: Sequence[TimedKernel],
    steps: Sequence[GateCheck],
    group: Group,
    observer: Observer,
    *,
    is_one_node: bool = True,
) -> LinkTimes:
    """This rank's times of all transfers, kernels and steps, one after another, in phases. Steps
    with their messages are timed on the CPU of one node alone: behind a long wait for a slow wire
    computing takes longer, and behind a faster one's it does not.

    Parameters
    ----------
    transfers, kernels, steps
        What to time, in this order.
    group, observer
        The ranks, and this one's instruments.
    is_one_node
        Whether all ranks are on one machine: only there steps are timed with their messages.

    Returns
    -------
    LinkTimes
        Milliseconds of transfers, seconds of kernels and steps, of this rank.
    """
    now_s = observer.times.now_s
    even_s = even_clock(group, now_s) if kernels else now_s
    watch = Stopwatch(group=group, now_s=now_s)
    sweeps: list[list[LinkTiming]] = [[] for _ in transfers]
    for sweep, (number, transfer) in product(range(SWEEPS), enumerate(transfers)):
        # A transfer by itself is timed once: only one that has a kernel before it depends on what
        # the machine does meanwhile.
        if sweep == 0 or transfer.between is not None:
            with observer.phase(f"{transfer.op} ({number + 1} of {len(transfers)})"):
                sweeps[number].append(timed(transfer, group, watch))
    sends = is_one_node and group.device.type == "cpu"
    timer = KernelTimer(group, observer, even_s, sends=sends)
    kernels_s, steps_s, shares_s, together_s = timer.times(kernels, steps)
    return LinkTimes(
        rank=group.rank,
        timings=[*map(LinkTiming.joined, sweeps)],
        kernels_s=kernels_s,
        steps_s=steps_s,
        shares_s=shares_s,
        together_s=together_s,
        launch_s=timer.launch() if kernels else None,
        cpu_gflop_per_s=timer.cpu_gflop_per_s,
    )


def timed(transfer: TimedTransfer, group: Group, watch: Stopwatch, most: int = MOST) -> LinkTiming:
    """Counted and warmed up first, then repeated as often as the cap allows, up to ``most``.

    Parameters
    ----------
    transfer
        The collective and its sizes; with a kernel between, what it adds to that.
    group
        The ranks, all of which call.
    watch
        The clock.
    most
        Repeats at most.

    Returns
    -------
    LinkTiming
        Bytes of one repeat, counted by the transport, and milliseconds of each.
    """
    transports = group.transports
    transport = transports.gradients if transfer.gradients else transports.strategy
    start = started(transfer, transport, group.device)

    def send() -> object:
        return start().wait()

    def repeats(call: Call, most: int, cap_s: float) -> int:
        (slowest_ms,) = group.largest(watch.once(call)[:1])
        # 0.6 s of 20 ms are 30 repeats; the slowest rank decides, so that all send as often.
        return min(most, max(LEAST, int(cap_s * 1e3 / max(slowest_ms, 1e-3))))

    transport.reset()
    watch.once(send)
    sent = float(sum(transport.sent.values()))
    if transfer.between is None:
        times = {"ms": watch.time(send, repeats(send, most, CAP_S))[0]}
    else:
        kernel = prepared(transfer.between, group.device)
        kernel()
        count = repeats(lambda: (kernel(), send()), MOST_OF_A_SWEEP, SWEEP_S)
        times = _in_step(start, kernel, watch, count, transfer)
    transport.reset()
    return LinkTiming(sent_bytes=sent, **times)


def _in_step(
    start: Start, kernel: Call, watch: Stopwatch, repeats: int, transfer: TimedTransfer
) -> dict[str, list[float]]:
    """What a transfer adds to a kernel before it: means of a few rows, which ranks begin
    together."""
    rounds, in_a_row = min(ROUNDS, repeats), transfer.in_a_row
    count = in_a_row * (rows := max(1, repeats // rounds // in_a_row))

    def alone() -> None:
        for _ in range(count):
            kernel()

    def after() -> None:
        for _ in range(rows):
            for _ in range(in_a_row):
                kernel()
            for _ in range(in_a_row):
                start().wait()

    taken = [[watch.once(call)[0] / count for call in (alone, after)] for _ in range(rounds)]
    # Alone and after in turn: a machine that slows down slows both of a pair.
    added_ms = [after_ms - kernel_ms for kernel_ms, after_ms in taken]
    return {"kernel_ms": [kernel_ms for kernel_ms, _ in taken], "ms": added_ms}


def started(transfer: TimedTransfer, transport: Transport, device: torch.device) -> Start:
    """The call that starts to move flat tensors of these sizes once."""
    rank, size, held = transport.rank, transport.size, transfer.elements

    def new(count: int) -> Tensor:
        return torch.zeros(count, dtype=getattr(torch, transfer.dtype), device=device)

    def cut(sizes: Sequence[int]) -> Cut:
        return Cut(new(sum(sizes)), 0, Shard.of_sizes(0, tuple(sizes)))

    match transfer.op:
        case "all_to_all":
            leave = _to_each(held[rank], rank, size)
            come = [_to_each(held[other], other, size)[rank] for other in range(size)]
            sent, received = (cut(sizes) for sizes in (leave, come))
            return lambda: transport.all_to_all([received], [sent])
        case "all_gather" | "reduce_scatter":
            mine, parts = new(held[rank]), cut(held)
            if transfer.op == "all_gather":
                return lambda: transport.all_gather(parts, mine)
            return lambda: transport.reduce_scatter(mine, parts)
        case "all_reduce":
            whole = new(held[0])
            return lambda: transport.all_reduce(whole)
        case "p2p":
            # What comes is as long as what the rank before holds; before rank 0 is the last: [-1].
            mine, next_block = new(held[rank]), new(held[rank - 1])
            return lambda: transport.shift(next_block, mine)


def _to_each(count: int, rank: int, size: int) -> list[int]:
    """Elements that ``rank`` sends to each, ``count`` in all; as many stay as one of them gets."""
    # 10 elements from rank 1 of 3: 5 to each other one, and 5 stay: 5, 5, 5.
    others = list(shard_sizes(count, size - 1))
    return [*others[:rank], others[-1], *others[rank:]]
