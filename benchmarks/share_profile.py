"""Shows where the time of one rank's share goes on a GPU: its kernels by kind, and a lower bound.

    python benchmarks/share_profile.py --workload dsp-720m --strategy dsp,rsa --ranks 8

The lower bound is the step's operations at the rate of one large product, measured first. A step
takes longer because of attention, which is slower than a product, and of kernels that move bytes.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

import torch
from device_clock import ms_of
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from spbench.comm.group import ShareOfGroup
from spbench.layers.kernels import fastest_kernels
from spbench.strategies.registry import load
from spbench.worker.step import Step
from spbench.workload.catalogue import find, with_settings
from spbench.workload.flops import executed_flops
from spbench.workload.workload import Workload

KINDS = {
    "attention": ("flash", "fmha", "attention", "sdpa"),
    "products": ("nvjet", "gemm", "cutlass", "xmma", "cublas", "splitK"),
    "norms": ("layer_norm", "layernorm", "LayerNorm", "GammaBeta", "rms_norm"),
    "copies": ("Memcpy", "copy_kernel", "CatArray", "Memset", "fill"),
    "sums": ("reduce_kernel",),
    "element by element": ("elementwise",),
}
"""Parts of kernel names; the first kind with a part that occurs in a name is the kernel's."""
STEPS = 3


def ceilings(dtype: torch.dtype) -> tuple[float, float]:
    """FLOP/s of a large product, and bytes/s of a large copy, read and written."""
    n = 8192
    a, b = (torch.randn(n, n, device="cuda", dtype=dtype) for _ in range(2))
    product_ms = ms_of(lambda: a @ b)
    source = torch.randn(2**30, device="cuda")
    target = torch.empty_like(source)
    copy_ms = ms_of(lambda: target.copy_(source))
    return 2 * n**3 / product_ms * 1e3, 2 * source.nbytes / copy_ms * 1e3


def kind_of(kernel: str) -> str:
    for kind, parts in KINDS.items():
        if any(part in kernel for part in parts):
            return kind
    return "other"


def report(work: Workload, strategy: str, ranks: int, flop_per_s: float) -> None:
    device = torch.device("cuda", 0)
    group = ShareOfGroup(device, ranks)
    loaded = load(strategy)
    step = Step(loaded.on(loaded.flattened(work), group.size), group.transports, device)
    inputs, cotangent = step.seeded_inputs()
    step_ms = ms_of(lambda: step(inputs, cotangent), 5)
    began_s = time.perf_counter()
    step(inputs, cotangent)
    issued_ms = (time.perf_counter() - began_s) * 1e3
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(STEPS):
            step(inputs, cotangent)
        torch.cuda.synchronize()
    kernels = [kernel for kernel in seen.key_averages() if kernel.device_type == DeviceType.CUDA]
    by_kind: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        by_kind[kind_of(kernel.key)] += kernel.self_device_time_total / 1e3 / STEPS
    busy_ms = sum(by_kind.values())
    floor_ms = executed_flops(work) / ranks / flop_per_s * 1e3
    print(
        f"\n{work.name}, {strategy} on {ranks}: step {step_ms:.1f} ms, issued in {issued_ms:.1f}; "
        f"kernels {busy_ms:.1f}; at {flop_per_s / 1e12:.0f} TFLOP/s {floor_ms:.1f}"
    )
    for kind, spent_ms in sorted(by_kind.items(), key=lambda pair: -pair[1]):
        print(f"  {spent_ms:8.2f} ms {spent_ms / busy_ms:6.1%}  {kind}")
    for kernel in sorted(kernels, key=lambda kernel: -kernel.self_device_time_total)[:14]:
        spent_ms = kernel.self_device_time_total / 1e3 / STEPS
        print(f"    {spent_ms:8.2f} ms {kernel.count // STEPS:5d}x  {kernel.key[:110]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", default="dsp-720m")
    parser.add_argument("--strategy", default="dsp,ulysses,megatron-sp,rsa")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--set", action="append", default=[])
    flags = parser.parse_args()
    work = with_settings(find(flags.workload), flags.set)
    flop_per_s, bytes_per_s = ceilings(getattr(torch, work.dtype))
    print(
        f"{torch.cuda.get_device_name()}: a product of 8192 cubed {flop_per_s / 1e12:.0f} TFLOP/s, "
        f"a copy {bytes_per_s / 1e12:.2f} TB/s"
    )
    for strategy in flags.strategy.split(","):
        with fastest_kernels(torch.device("cuda", 0)):
            report(work, strategy, flags.ranks, flop_per_s)


if __name__ == "__main__":
    main()
