"""Meaning of each column of runs.csv, in the order of the file."""

from __future__ import annotations

from typing import Final

from spbench.results.hand_over import STATUSES

MEANINGS: Final = {
    "schema_version": "Version of this list of columns.",
    "run_id": "Name of the results directory.",
    "started_utc": "Start of the launch, as `2026-01-31T12:00:00Z`.",
    "case": "Key of the case: a hash of workload, strategy, ranks, mesh, device and kind.",
    "strategy": "Strategy with its options, and the mesh around it, as `ulysses cfg=2`.",
    "workload": "Workload with its settings.",
    "axes": "Sequence axes in tensor order, as `time=16xspace=256`.",
    "batch": "Samples of one step, over all ranks together.",
    "dtype": "Number format of weights and activations.",
    "mode": "`train` or `forward`.",
    "checkpointing": "`none` or `full`.",
    "device": "`cuda` or `cpu`.",
    "backend": "`nccl`, `gloo`, or `fake` for one GPU's share.",
    "kind": (
        "`measured`; `one_gpu_share`, which computes and sends nothing; `dry_run`, counted on "
        "tensors without data; or `projected`, by a cost model. Blank in older files: measured, "
        "or a share where `backend` is `fake`. Kinds are never judged against each other, and "
        "shares are not ranked: they are no steps."
    ),
    "world_size": "Ranks of the launch.",
    "sp_size": "Ranks that share one sequence.",
    "dp_size": "Groups of ranks that hold other samples, or other branches of guidance.",
    "launch": "Number of the launch of its case, from 0.",
    "status": f"`ok`, or what failed: {', '.join(STATUSES[1:])}.",
    "reason": "Why the status is not ok, in one line.",
    "step_ms": "Milliseconds of a step on its slowest rank: the mean without a tenth at each end.",
    "step_ms_p10": "Tenth percentile of the iterations.",
    "step_ms_p90": "Ninetieth percentile of the iterations.",
    "iterations": "Timed steps.",
    "warmup": "Steps before the timed ones.",
    "samples_per_s": "Samples a second, of all ranks together.",
    "tokens_per_s": "Positions a second, of all ranks together.",
    "tokens_per_s_per_rank": "Positions a second and rank.",
    "tflops_per_rank": (
        "Achieved 10^12 operations a second and rank, without recomputation. Under a causal mask "
        "attention along S positions counts (S + 1) / 2 keys of a position in place of S, those "
        "that it attends to: half of what is counted without the mask."
    ),
    "mfu": (
        "Achieved operations, counted as in `tflops_per_rank` (attention under a causal mask by "
        "half), over the device's peak; blank where the peak is not known."
    ),
    "compute_ms": "Milliseconds of the same step with silent collectives; `step_ms` if none sends.",
    "exposed_comm_ms": (
        "Milliseconds that communication adds: step_ms less compute_ms; below 0: not told apart "
        "from 0; blank where `compute_note` says why."
    ),
    "peak_allocated_bytes": "Largest allocated memory of a rank in one step.",
    "peak_reserved_bytes": "Largest memory of a rank that the allocator reserved; GPUs only.",
    "device_used_bytes": "Memory in use on the device, NCCL's buffers included; GPUs only.",
    "host_rss_bytes": "Resident memory of the largest rank's process.",
    "sent_bytes_forward": "Counted bytes that the busiest rank sends in forward.",
    "sent_bytes_backward": "Counted bytes in backward, recomputation included.",
    "sent_bytes_gradients": "Counted bytes in the sum of replicated weights' gradients.",
    "predicted_bytes_forward": "Bytes by formula; other than the counted: `wrong_result`.",
    "predicted_bytes_backward": "Bytes by formula in backward.",
    "predicted_bytes_gradients": "Bytes by formula in the sum of gradients.",
    "all_to_all_bytes": "Counted bytes in all-to-alls.",
    "all_gather_bytes": "Counted bytes in all-gathers.",
    "reduce_scatter_bytes": "Counted bytes in reduce-scatters.",
    "all_reduce_bytes": "Counted bytes in all-reduces.",
    "p2p_bytes": "Counted bytes from rank to rank, in rings.",
    "output_error": "Relative difference of the output from one device's.",
    "gradient_error": (
        "Largest relative difference of a gradient, or of a weight that the optimizer updated, "
        "from one device's."
    ),
    "tolerance": "Largest error that the gate lets pass.",
    "torch": "Version of torch.",
    "cuda": "Version of CUDA that torch was built for.",
    "nccl": "Version of NCCL.",
    "gpu": "Product name of the GPU.",
    "git_commit": "Commit of spbench's repository, or of the tree that was checked.",
    "gated_on": (
        "Workload of the gate; in brackets what it has of the full one, where that does not fit "
        "one device."
    ),
    "log": "Log of the rank to blame, relative to the results directory.",
    "workload_key": "Hash of the workload's fields.",
    "environment": (
        "Variables that the strategy asks for on GPUs, as ranks saw them, and planted faults."
    ),
    "effort": "Measurement budget: `full` (or blank), `quick`, `counted`, or seconds.",
    "round": "Name of the round: its launches ran in one pass and saw the same machine.",
    "stopped_by": "What ended sampling: `precision`, `seconds` or `iterations`.",
    "noisy": "What disturbed the timed pass; blank when it was quiet.",
    "load_average": "Load of the machine over a minute.",
    "others_cores": "Cores of a host that anything but the ranks used during the timed pass.",
    "gpu_clock_mhz": "Lowest processor clock of a GPU after a timed block.",
    "gpu_power_w": "Highest power of a GPU after a timed block.",
    "gpu_temperature_c": "Highest temperature of a GPU after a timed block.",
    "gpu_throttle": "What held a GPU's clock down.",
    "gpu_neighbours": "Processes on one of the GPUs that are not ranks of the launch.",
    "hardware": "Stable facts of the machine: launches on other hardware are not comparable.",
    "collectives": "Calls of the busiest rank in one step, as `forward.all_to_all=55`.",
    "launch_s": "Seconds of the whole launch, start to exit.",
    "steps_s": "Seconds inside steps of rank 0, untimed ones included.",
    "placement": "Ranks on each machine, as `node-a 0-3, node-b 4-7`; blank on one machine.",
    "turns": "Turns taken behind the other launch of a check; blank: the launch ran alone.",
    "attention_kernel": (
        "Kernels of torch that served attention, as `cudnn+flash`: `cudnn`, `flash`, "
        "`efficient`, `math`; blank where a strategy's own products did."
    ),
    "issue_ms": "Until the call of a timed step returned, trimmed mean over iterations; on a GPU.",
    "host_bound": "`yes` where issuing takes 0.97 of the step or more: the time is the host's.",
    "alloc_retries": "How often a GPU's allocator emptied its cache in the timed pass.",
    "timed_clock_mhz": "Median clock behind timed blocks, of the GPU whose clocks differ most.",
    "silent_clock_mhz": "Median clock of the same GPU behind silent blocks.",
    "exposed_comm_ms_low": "Least exposed communication, where clocks differ by more than 2 %.",
    "exposed_comm_ms_high": "Most exposed communication, where clocks differ by more than 2 %.",
    "compute_note": "Why `compute_ms` or `exposed_comm_ms` is blank although steps were timed.",
    "optimizer": "What a train step ends with: `adamw`; blank where nothing updates the weights.",
    "optimizer_bytes": (
        "What the optimizer keeps from step to step on the fullest rank, counted from its tensors."
    ),
    "repeat_error": (
        "Largest relative difference of a tensor of the last step of a timed block, or of one more "
        "behind all, from the first step on the same inputs: the noise floor."
    ),
    "agreement_error": (
        "Largest relative difference of a full-size step, on either inputs, from `agreed_with`."
    ),
    "agreed_with": (
        "What the whole workload's step was compared with: `one device`, or another "
        "case of the run, as `dsp on 2 ranks`; blank: nothing yet."
    ),
    "variables": (
        "Variables of CUDA, NCCL, torch and OpenMP as ranks had them, `NAME@rank1=value` where "
        "ranks differ; `none`: there were none. Launches with other values are not comparable."
    ),
    "numa": (
        "NUMA nodes to whose cores ranks of GPUs were bound, as `numa0 0-3, numa1 4-7`; `any`: "
        "not bound; blank on a CPU, on a machine with one node, or where it is not known."
    ),
    "steady": (
        "`no` where the warm-up ended at its limit before steps were steady, as that of `--quick` "
        "mostly does: they may have drifted while they were timed."
    ),
    "float32_error": (
        "Largest relative difference from one device's of the gate's step computed in float32, "
        "held to 1e-4; of workloads in 16 bits."
    ),
    "mesh": "Groups of ranks, as `cfg=2 heads=4`, neighbours last; blank: one group of all.",
    "bytes_by_mesh_axis": "Bytes over each axis of it and all ranks, as `all=64 heads=512`.",
    "mesh_across_nodes": "Axes of the mesh with a group on several nodes.",
    "guidance": "Branches of classifier-free guidance, each a batch; blank: no guidance.",
    "cluster": "Cluster of a projected row, and what of its model is not the default's.",
    "step_ms_low": "Lower end of the 90 % interval of a projected step.",
    "step_ms_high": "Upper end of the 90 % interval of a projected step.",
    "hidden_comm_ms": "Milliseconds of communication behind computation; projected rows only.",
    "memory_limit_bytes": "Memory of one device of the cluster; projected rows only.",
    "tokens": "Positions of a sample: the product of its axes, text apart.",
    "hidden": "Width of the activation.",
    "heads": "Query heads of an attention.",
    "exposed_gb_per_s": (
        "Achieved 10^9 bytes a second: what the busiest rank sends in a step over "
        "`exposed_comm_ms`. The rate of the links is lower where some of it is hidden. Blank where "
        "a step waits for less than a tenth of its time."
    ),
    "slower_share": (
        "Share of a projection's draws in which the case is slower than the fastest that fits, "
        "of those projected with it; blank for the fastest itself, and for measured rows."
    ),
    "cpu_gflop_per_s": (
        "10^9 operations a second of one fixed product on a rank, between blocks of steps, the "
        "median rank's: how fast the processor was. Blank on GPUs."
    ),
    "compiled": (
        "Graphs of `torch.compile` that a rank runs in a step, as counted in the step behind the "
        "timed ones: a function compiled in three parts is three each time it is called. 0: the "
        "timed steps ran eagerly. Where it is more, `peak_allocated_bytes` is blank on a CPU: "
        "nothing tells what compiled code allocates there."
    ),
    "unseen_operators": (
        "Operators that packages have added to torch as compiled code, or that call code outside "
        "torch, and how often a step calls each. What they send themselves, nobody counts: "
        "`benchmarks/wire.py` holds counted bytes against those on the wire. Blank: there are none."
    ),
}
