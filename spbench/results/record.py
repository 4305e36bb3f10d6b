"""One flat row for each launch of a case; its fields are the columns of ``runs.csv``.

The schema only grows at its end. Blank is not measured; bytes are what a rank sends in a step.

A new column is a field at the end of ``Record``, with its meaning and a default. Its figure is made
in ``sweep/row.py``: from the case, or from what each rank wrote, a ``Sample`` of
``results/hand_over.py``. ``python scripts/columns_page.py > docs/columns.md`` writes the page anew.
``SCHEMA_VERSION`` grows only where a column changes its meaning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, Self, get_type_hints

from spbench.results.hand_over import RowStatus
from spbench.workload.case import Case


def axes_text(axes: Mapping[str, int]) -> str:
    """Lengths as a row has them: time=8xspace=512."""
    return "x".join(f"{name}={length}" for name, length in axes.items())


def columns_of_case(case: Case) -> dict[str, Any]:
    """The columns that are known before anything ran."""
    work = case.workload
    of_work = ("tokens", "hidden", "heads", "batch", "dtype", "mode", "checkpointing")
    return {
        "case": case.key,
        "strategy": case.name,
        "workload": work.name,
        "axes": axes_text(work.axes),
        **{name: getattr(work, name) for name in of_work},
        "optimizer": "" if work.optimizer == "none" else work.optimizer,
        "guidance": "" if work.guidance == 1 else str(work.guidance),
        **{name: getattr(case, name) for name in ("device", "kind", "launch", "workload_key")},
        "world_size": case.ranks,
        **case.mesh.sizes(case.ranks),
        "mesh": str(case.mesh),
        "execution": "" if case.is_eager else case.execution,
        "effort": case.budget.label,
    }


def larger_error(*errors: float | None) -> float | None:
    """The larger of errors, of which None was not measured; infinite where one is no number."""
    known = [error for error in errors if error is not None]
    return math.inf if any(map(math.isnan, known)) else max(known, default=None)


SCHEMA_VERSION = 4
MUCH = 0.1
"""Share of a step below which waiting is not worth a warning or a rate, and may be noise."""
SURE = 0.9
"""Share of a projection's draws in which a strategy must be slower to be told apart."""
USABLE = 0.92
"""Part of a device's memory that tensors may take."""


@dataclass(frozen=True)
class Column:
    """What a column holds, as docs/columns.md says it: Markdown, one sentence or more."""

    meaning: str
    unit: str = ""
    """Blank for a text, a count, a rate or a ratio."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """A launch, measured or failed, to be written; each column is described beside its field."""

    schema_version: Annotated[int, Column("Version of this list of columns.")] = SCHEMA_VERSION
    run_id: Annotated[str, Column("Name of the results directory.")]
    started_utc: Annotated[str, Column("Start of the launch, as `2026-01-31T12:00:00Z`.")]
    case: Annotated[
        str, Column("Key of the case: a hash of workload, strategy, ranks, mesh, device and kind.")
    ]
    strategy: Annotated[
        str, Column("Strategy with its options, and the mesh around it, as `ulysses cfg=2`.")
    ]
    workload: Annotated[str, Column("Workload with its settings.")]
    axes: Annotated[str, Column("Sequence axes in tensor order, as `time=16xspace=256`.")]
    batch: Annotated[int, Column("Samples of one step, over all ranks together.")]
    dtype: Annotated[str, Column("Number format of weights and activations.")]
    mode: Annotated[str, Column("`train` or `forward`.")]
    checkpointing: Annotated[
        str,
        Column(
            "`none`, `full` (backward computes each block again) or `selective` (it computes each "
            "self-attention again, from q, k and v on)."
        ),
    ]
    device: Annotated[str, Column("`cuda` or `cpu`.")]
    backend: Annotated[str, Column("`nccl`, `gloo`, or `fake` for one GPU's share.")] = ""
    kind: Annotated[
        str,
        Column(
            "`measured`; `one_gpu_share`, which computes and sends nothing; `dry_run`, counted "
            "on tensors without data; or `projected`, by a cost model. Blank in older files: "
            "measured, or a share where `backend` is `fake`. Kinds are never judged against each "
            "other, and shares are not ranked: they are no steps."
        ),
    ] = "measured"
    world_size: Annotated[int, Column("Ranks of the launch.")]
    sp_size: Annotated[int, Column("Ranks that share one sequence.")]
    dp_size: Annotated[
        int, Column("Groups of ranks that hold other samples, or other branches of guidance.")
    ] = 1
    launch: Annotated[int, Column("Number of the launch of its case, from 0.")]
    status: Annotated[
        RowStatus,
        Column(
            "`ok`, or what failed: oom, timeout, hang, comm_error, wrong_result, crash, "
            "host_oom, skipped, interrupted."
        ),
    ]
    reason: Annotated[str, Column("Why the status is not ok, in one line.")] = ""
    step_ms: Annotated[
        float | None,
        Column(
            "Milliseconds of a step on its slowest rank: the mean without a tenth at each end.",
            "ms",
        ),
    ] = None
    step_ms_p10: Annotated[float | None, Column("Tenth percentile of the iterations.", "ms")] = None
    step_ms_p90: Annotated[
        float | None, Column("Ninetieth percentile of the iterations.", "ms")
    ] = None
    iterations: Annotated[int | None, Column("Timed steps.")] = None
    warmup: Annotated[int | None, Column("Steps before the timed ones.")] = None
    samples_per_s: Annotated[float | None, Column("Samples a second, of all ranks together.")] = (
        None
    )
    tokens_per_s: Annotated[float | None, Column("Positions a second, of all ranks together.")] = (
        None
    )
    tokens_per_s_per_rank: Annotated[float | None, Column("Positions a second and rank.")] = None
    tflops_per_rank: Annotated[
        float | None,
        Column(
            "Achieved 10^12 operations a second and rank, without recomputation. Under a causal "
            "mask attention along S positions counts (S + 1) / 2 keys of a position in place of "
            "S, those that it attends to: half of what is counted without the mask."
        ),
    ] = None
    mfu: Annotated[
        float | None,
        Column(
            "Achieved operations, counted as in `tflops_per_rank` (attention under a causal mask "
            "by half), over the device's peak; blank where the peak is not known."
        ),
    ] = None
    compute_ms: Annotated[
        float | None,
        Column(
            "Milliseconds of the same step with silent collectives; `step_ms` if none sends.", "ms"
        ),
    ] = None
    exposed_comm_ms: Annotated[
        float | None,
        Column(
            "Milliseconds that communication adds: step_ms less compute_ms; below 0: not told "
            "apart from 0; blank where `compute_note` says why.",
            "ms",
        ),
    ] = None
    peak_allocated_bytes: Annotated[
        int | None, Column("Largest allocated memory of a rank in one step.", "bytes")
    ] = None
    peak_reserved_bytes: Annotated[
        int | None,
        Column("Largest memory of a rank that the allocator reserved; GPUs only.", "bytes"),
    ] = None
    device_used_bytes: Annotated[
        int | None,
        Column("Memory in use on the device, NCCL's buffers included; GPUs only.", "bytes"),
    ] = None
    host_rss_bytes: Annotated[
        int | None, Column("Resident memory of the largest rank's process.", "bytes")
    ] = None
    sent_bytes_forward: Annotated[
        int | None, Column("Counted bytes that the busiest rank sends in forward.", "bytes")
    ] = None
    sent_bytes_backward: Annotated[
        int | None, Column("Counted bytes in backward, recomputation included.", "bytes")
    ] = None
    sent_bytes_gradients: Annotated[
        int | None, Column("Counted bytes in the sum of replicated weights' gradients.", "bytes")
    ] = None
    predicted_bytes_forward: Annotated[
        int | None, Column("Bytes by formula; other than the counted: `wrong_result`.", "bytes")
    ] = None
    predicted_bytes_backward: Annotated[
        int | None, Column("Bytes by formula in backward.", "bytes")
    ] = None
    predicted_bytes_gradients: Annotated[
        int | None, Column("Bytes by formula in the sum of gradients.", "bytes")
    ] = None
    all_to_all_bytes: Annotated[int | None, Column("Counted bytes in all-to-alls.", "bytes")] = None
    all_gather_bytes: Annotated[int | None, Column("Counted bytes in all-gathers.", "bytes")] = None
    reduce_scatter_bytes: Annotated[
        int | None, Column("Counted bytes in reduce-scatters.", "bytes")
    ] = None
    all_reduce_bytes: Annotated[int | None, Column("Counted bytes in all-reduces.", "bytes")] = None
    p2p_bytes: Annotated[
        int | None, Column("Counted bytes from rank to rank, in rings.", "bytes")
    ] = None
    output_error: Annotated[
        float | None, Column("Relative difference of the output from one device's.")
    ] = None
    gradient_error: Annotated[
        float | None,
        Column(
            "Largest relative difference of a gradient, or of a weight that the optimizer "
            "updated, from one device's."
        ),
    ] = None
    tolerance: Annotated[float | None, Column("Largest error that the gate lets pass.")] = None
    torch: Annotated[str, Column("Version of torch.")] = ""
    cuda: Annotated[str, Column("Version of CUDA that torch was built for.")] = ""
    nccl: Annotated[str, Column("Version of NCCL.")] = ""
    gpu: Annotated[str, Column("Product name of the GPU.")] = ""
    git_commit: Annotated[
        str, Column("Commit of spbench's repository, or of the tree that was checked.")
    ] = ""
    gated_on: Annotated[
        str,
        Column(
            "Workload of the gate; in brackets what it has of the full one, where that does not "
            "fit one device."
        ),
    ] = ""
    log: Annotated[str, Column("Log of the rank to blame, relative to the results directory.")] = ""
    workload_key: Annotated[str, Column("Hash of the workload's fields.")] = ""
    environment: Annotated[
        str,
        Column(
            "Variables that the strategy asks for on GPUs, as ranks saw them, and planted faults."
        ),
    ] = ""
    effort: Annotated[
        str, Column("Measurement budget: `full` (or blank), `quick`, `counted`, or seconds.")
    ] = ""
    round: Annotated[
        str, Column("Name of the round: its launches ran in one pass and saw the same machine.")
    ] = ""
    stopped_by: Annotated[
        str, Column("What ended sampling: `precision`, `seconds` or `iterations`.")
    ] = ""
    noisy: Annotated[str, Column("What disturbed the timed pass; blank when it was quiet.")] = ""
    load_average: Annotated[float | None, Column("Load of the machine over a minute.")] = None
    others_cores: Annotated[
        float | None,
        Column("Cores of a host that anything but the ranks used during the timed pass."),
    ] = None
    gpu_clock_mhz: Annotated[
        float | None, Column("Lowest processor clock of a GPU after a timed block.", "MHz")
    ] = None
    gpu_power_w: Annotated[
        float | None, Column("Highest power of a GPU after a timed block.", "W")
    ] = None
    gpu_temperature_c: Annotated[
        float | None, Column("Highest temperature of a GPU after a timed block.", "°C")
    ] = None
    gpu_throttle: Annotated[str, Column("What held a GPU's clock down.")] = ""
    gpu_neighbours: Annotated[
        int | None, Column("Processes on one of the GPUs that are not ranks of the launch.")
    ] = None
    hardware: Annotated[
        str, Column("Stable facts of the machine: launches on other hardware are not comparable.")
    ] = ""
    collectives: Annotated[
        str, Column("Calls of the busiest rank in one step, as `forward.all_to_all=55`.")
    ] = ""
    launch_s: Annotated[
        float | None, Column("Seconds of the whole launch, start to exit.", "s")
    ] = None
    steps_s: Annotated[
        float | None, Column("Seconds inside steps of rank 0, untimed ones included.", "s")
    ] = None
    placement: Annotated[
        str, Column("Ranks on each machine, as `node-a 0-3, node-b 4-7`; blank on one machine.")
    ] = ""
    turns: Annotated[
        int | None,
        Column(
            "Of rows from before December 2026: turns that steps of a check took behind those of "
            "its other launch."
        ),
    ] = None
    attention_kernel: Annotated[
        str,
        Column(
            "Kernels of torch that served attention, as `cudnn+flash`: `cudnn`, `flash`, "
            "`efficient`, `math`; blank where a strategy's own products did."
        ),
    ] = ""
    issue_ms: Annotated[
        float | None,
        Column(
            "Until the call of a timed step returned, trimmed mean over iterations; on a GPU.", "ms"
        ),
    ] = None
    host_bound: Annotated[
        str, Column("`yes` where issuing takes 0.97 of the step or more: the time is the host's.")
    ] = ""
    alloc_retries: Annotated[
        int | None, Column("How often a GPU's allocator emptied its cache in the timed pass.")
    ] = None
    timed_clock_mhz: Annotated[
        float | None,
        Column("Median clock behind timed blocks, of the GPU whose clocks differ most.", "MHz"),
    ] = None
    silent_clock_mhz: Annotated[
        float | None, Column("Median clock of the same GPU behind silent blocks.", "MHz")
    ] = None
    exposed_comm_ms_low: Annotated[
        float | None,
        Column("Least exposed communication, where clocks differ by more than 2 %.", "ms"),
    ] = None
    exposed_comm_ms_high: Annotated[
        float | None,
        Column("Most exposed communication, where clocks differ by more than 2 %.", "ms"),
    ] = None
    compute_note: Annotated[
        str, Column("Why `compute_ms` or `exposed_comm_ms` is blank although steps were timed.")
    ] = ""
    optimizer: Annotated[
        str,
        Column("What a train step ends with: `adamw`; blank where nothing updates the weights."),
    ] = ""
    optimizer_bytes: Annotated[
        int | None,
        Column(
            "What the optimizer keeps from step to step on the fullest rank, counted from its "
            "tensors.",
            "bytes",
        ),
    ] = None
    repeat_error: Annotated[
        float | None,
        Column(
            "Largest relative difference of a tensor of the last step of a timed block, or of "
            "one more behind all, from the first step on the same inputs: the noise floor."
        ),
    ] = None
    agreement_error: Annotated[
        float | None,
        Column(
            "Largest relative difference of a full-size step, on either inputs, from `agreed_with`."
        ),
    ] = None
    agreed_with: Annotated[
        str,
        Column(
            "What the whole workload's step was compared with: `one device`, or another case of "
            "the run, as `dsp on 2 ranks`; blank: nothing yet."
        ),
    ] = ""
    variables: Annotated[
        str,
        Column(
            "Variables of CUDA, NCCL, torch and OpenMP as ranks had them, `NAME@rank1=value` "
            "where ranks differ; `none`: there were none. Launches with other values are not "
            "comparable."
        ),
    ] = ""
    numa: Annotated[
        str,
        Column(
            "NUMA nodes to whose cores ranks of GPUs were bound, as `numa0 0-3, numa1 4-7`; "
            "`any`: not bound; blank on a CPU, on a machine with one node, or where it is not "
            "known."
        ),
    ] = ""
    steady: Annotated[
        str,
        Column(
            "`no` where the warm-up ended at its limit before steps were steady, as that of "
            "`--quick` mostly does: they may have drifted while they were timed."
        ),
    ] = ""
    float32_error: Annotated[
        float | None,
        Column(
            "Largest relative difference from one device's of the gate's step computed in "
            "float32, held to 1e-4; of workloads in 16 bits."
        ),
    ] = None
    mesh: Annotated[
        str,
        Column("Groups of ranks, as `cfg=2 heads=4`, neighbours last; blank: one group of all."),
    ] = ""
    bytes_by_mesh_axis: Annotated[
        str, Column("Bytes over each axis of it and all ranks, as `all=64 heads=512`.")
    ] = ""
    mesh_across_nodes: Annotated[str, Column("Axes of the mesh with a group on several nodes.")] = (
        ""
    )
    guidance: Annotated[
        str, Column("Branches of classifier-free guidance, each a batch; blank: no guidance.")
    ] = ""
    cluster: Annotated[
        str, Column("Cluster of a projected row, and what of its model is not the default's.")
    ] = ""
    step_ms_low: Annotated[
        float | None, Column("Lower end of the 90 % interval of a projected step.", "ms")
    ] = None
    step_ms_high: Annotated[
        float | None, Column("Upper end of the 90 % interval of a projected step.", "ms")
    ] = None
    hidden_comm_ms: Annotated[
        float | None,
        Column("Milliseconds of communication behind computation; projected rows only.", "ms"),
    ] = None
    memory_limit_bytes: Annotated[
        int | None, Column("Memory of one device of the cluster; projected rows only.", "bytes")
    ] = None
    tokens: Annotated[
        int | None, Column("Positions of a sample: the product of its axes, text apart.")
    ] = None
    hidden: Annotated[int | None, Column("Width of the activation.")] = None
    heads: Annotated[int | None, Column("Query heads of an attention.")] = None
    exposed_gb_per_s: Annotated[
        float | None,
        Column(
            "Achieved 10^9 bytes a second: what the busiest rank sends in a step over "
            "`exposed_comm_ms`. The rate of the links is lower where some of it is hidden. Blank "
            "where a step waits for less than a tenth of its time."
        ),
    ] = None
    slower_share: Annotated[
        float | None,
        Column(
            "Share of a projection's draws in which the case is slower than the fastest that "
            "fits, of those projected with it; for the fastest itself, than any other of these. "
            "Blank for measured rows."
        ),
    ] = None
    cpu_gflop_per_s: Annotated[
        float | None,
        Column(
            "10^9 operations a second of one fixed product on a rank, between blocks of steps, "
            "the median rank's: how fast the processor was. Blank on GPUs."
        ),
    ] = None
    compiled: Annotated[
        int | None,
        Column(
            "Graphs of `torch.compile` that a rank runs in a step, as counted in the step behind "
            "the timed ones: a function compiled in three parts is three each time it is called. "
            "0: nothing in the timed steps was compiled. Where `execution` is `compiled` each "
            "sublayer is a graph, and each transfer in it makes one more: graphs beyond the "
            "sublayers that a step calls are its graph breaks. Where it is more than 0, "
            "`peak_allocated_bytes` is blank on a CPU: nothing tells what compiled code allocates "
            "there."
        ),
    ] = None
    unseen_operators: Annotated[
        str,
        Column(
            "Operators that packages have added to torch as compiled code, or that call code "
            "outside torch, and how often a step calls each. What they send themselves, nobody "
            "counts: `benchmarks/wire.py` holds counted bytes against those on the wire. Blank: "
            "there are none."
        ),
    ] = ""
    vendor: Annotated[
        str,
        Column(
            "The package whose own code the strategy is, with its version, and its commit where it "
            "was installed from a repository. A witness counts what it sends, and nothing silences "
            "it: `compute_ms` is blank. Blank: spbench's own code."
        ),
    ] = ""
    execution: Annotated[
        str,
        Column(
            "`compiled`: each sublayer, with its norm and residual, as `torch.compile` makes it, "
            "in the gate and in every step behind it. `graph`: the step captured as one CUDA "
            "graph, whose replays are timed; gate, bytes and memory are those of the step as it "
            "is written, without the graph's own memory, and `compute_ms` is blank. Either is "
            "another case than the eager one, and never judged against it. Blank: operation by "
            "operation, as it is written."
        ),
    ] = ""

    bubble_ms: Annotated[
        float | None,
        Column(
            "Milliseconds that the stages of a pipeline wait for one another as it fills and "
            "empties, if nothing takes time to send: `compute_ms` (P - 1) / m for P stages of m "
            "microbatches. Ranks with processors of their own spend it as a part of "
            "`exposed_comm_ms`; where they share processors others compute meanwhile, and less is "
            "exposed. Blank: no pipeline.",
            "ms",
        ),
    ] = None

    @property
    def effort_label(self) -> str:
        """Name of the measurement budget; rows of older versions have none, and were full."""
        return self.effort or "full"

    @property
    def gate_error(self) -> float | None:
        """The larger error of output and gradients; infinite where one is not a number."""
        return larger_error(self.output_error, self.gradient_error)

    @property
    def is_gate_reduced(self) -> bool:
        """Whether the gate compared a reduced workload, not the whole one."""
        return self.gated_on not in ("", self.workload)

    @classmethod
    def of_case(cls, case: Case, **more: Any) -> Self:
        """Record of a case before anything ran, with ``more`` columns."""
        return cls(**(columns_of_case(case) | more))


DEFAULTS = {field.name: field.default for field in fields(Record)}
COLUMNS: tuple[str, ...] = (*DEFAULTS,)
REQUIRED = tuple(name for name, default in DEFAULTS.items() if default is MISSING)
"""Columns without which it is not known what case a row belongs to."""


def columns() -> dict[str, Column]:
    """The description of each column, in the order of the file."""
    hints = get_type_hints(Record, include_extras=True)
    return {name: hints[name].__metadata__[0] for name in COLUMNS}
