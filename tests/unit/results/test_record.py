"""Rows: their columns, and how the samples of the ranks become figures."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from helpers.golden import Golden

from spbench.results.conditions import largest
from spbench.results.hand_over import Sample
from spbench.results.record import COLUMNS, SCHEMA_VERSION, Record
from spbench.results.runs_csv import column_types
from spbench.sweep.devices import known_peak
from spbench.sweep.row import measured
from spbench.worker.sampling import slowest
from spbench.workload.case import Case
from spbench.workload.catalogue import find, with_settings
from spbench.workload.flops import step_flops
from spbench.workload.mesh import CaseMesh

PROMISED = """
run_id started_utc case strategy workload axes batch dtype mode checkpointing device backend kind
world_size sp_size dp_size launch status reason step_ms step_ms_p10 step_ms_p90 iterations warmup
samples_per_s tokens_per_s tokens_per_s_per_rank tflops_per_rank mfu compute_ms exposed_comm_ms
peak_allocated_bytes peak_reserved_bytes device_used_bytes host_rss_bytes sent_bytes_forward
sent_bytes_backward sent_bytes_gradients predicted_bytes_forward predicted_bytes_backward
predicted_bytes_gradients all_to_all_bytes all_gather_bytes reduce_scatter_bytes all_reduce_bytes
p2p_bytes output_error gradient_error tolerance torch cuda nccl gpu git_commit gated_on log
workload_key environment effort round stopped_by noisy load_average others_cores gpu_clock_mhz
gpu_power_w gpu_temperature_c gpu_throttle gpu_neighbours hardware collectives launch_s steps_s
"""


def case(**more: Any) -> Case:
    fields = {"workload": find("axes-2d", "verify"), "strategy": "dsp", "ranks": 2, "device": "cpu"}
    return Case.model_validate(fields | more)


def sample(rank: int = 0, **more: Any) -> Sample:
    return Sample.model_validate({"rank": rank, "status": "ok", "backend": "gloo"} | more)


def test_columns_only_grow_at_the_end() -> None:
    """The promised columns stand first, in their order, behind the version of the schema."""
    promised = PROMISED.split()
    assert COLUMNS[: len(promised) + 1] == ("schema_version", *promised)
    assert len(set(COLUMNS)) == len(COLUMNS)
    assert SCHEMA_VERSION == 4


def test_every_column_has_a_plain_type() -> None:
    """Counts are whole, times and rates are floats, the rest is text."""
    types = column_types()
    assert set(types) == set(COLUMNS)
    assert set(types.values()) == {int, float, str}
    assert {types[name] for name in COLUMNS if name.endswith("_bytes")} == {int}
    assert {types[name] for name in COLUMNS if name.endswith("_ms")} == {float}
    assert (types["launch"], types["status"], types["mfu"]) == (int, str, float)


def test_a_row_before_anything_ran_is_blank() -> None:
    """Nothing of it is measured, and nothing measured is 0."""
    row = Record.of_case(case(), run_id="r", started_utc="now", status="skipped")
    assert (row.case, row.strategy, row.workload) == (case().key, "dsp", "axes-2d")
    assert (row.axes, row.world_size, row.sp_size, row.dp_size) == ("time=8xspace=16", 2, 2, 1)
    assert (row.tokens, row.hidden, row.heads) == (
        128,
        case().workload.hidden,
        case().workload.heads,
    )
    updating = with_settings(case().workload, ["optimizer=adamw"])
    updated = Record.of_case(case(workload=updating), run_id="r", started_utc="", status="ok")
    assert (row.optimizer, updated.optimizer) == ("", "adamw")
    guided = Record.of_case(
        case(workload=with_settings(case().workload, ["guidance=2"])),
        **{"run_id": "r", "started_utc": "", "status": "ok"},
    )
    assert (row.guidance, guided.guidance, guided.batch) == ("", "2", row.batch)
    facts = {"run_id": "r", "started_utc": "", "status": "skipped"}
    meshed = Record.of_case(case(mesh=CaseMesh(cfg=2)), **facts)
    assert (meshed.strategy, meshed.mesh, row.mesh) == ("dsp cfg=2", "cfg=2", "")
    assert (meshed.world_size, meshed.sp_size, meshed.dp_size) == (2, 1, 2)
    numbers = [name for name, kind in column_types().items() if kind is float]
    assert {getattr(row, name) for name in numbers} == {None}
    assert (row.sent_bytes_forward, row.iterations, row.p2p_bytes) == (None, None, None)


def test_each_iteration_takes_as_long_as_its_slowest_rank() -> None:
    """Ranks are not pooled; ranks without times are left out."""
    assert slowest([[1.0, 5.0, 3.0], [2.0, 4.0, 3.5]]) == [2.0, 5.0, 3.5]
    assert slowest([None, [1.0]]) == [1.0]
    assert slowest([None, None]) == []


def test_ranks_must_have_timed_equally_often() -> None:
    """A rank with fewer iterations is a defect, not something to cut down to."""
    with pytest.raises(ValueError, match="shorter"):
        slowest([[1.0, 2.0], [1.0]])


def test_the_largest_over_the_ranks() -> None:
    """Blanks do not count, zero does."""
    assert largest([None, 3, 7.5, None]) == 7.5
    assert largest([0, None]) == 0
    assert largest([None]) is None


def test_figures_of_a_launch() -> None:
    """Typical step of the slowest ranks, rates from it, bytes of the rank that sends most."""
    sent = [{"forward": 10, "backward": 20, "gradients": 0}] * 2
    ops = {"all_to_all": 30, "all_gather": 0, "reduce_scatter": 0, "all_reduce": 0, "p2p": 0}
    samples = [
        sample(
            rank,
            step_ms=[9.0 + rank, 10.0 + rank, 11.0 + rank],
            compute_ms=[6.0, 7.0 - rank, 8.0],
            peak_allocated_bytes=100 - rank,
            optimizer_bytes=40 + rank,
            sent_by_phase={**sent[rank], "forward": 10 + rank},
            predicted_by_phase=sent[rank],
            sent_by_op=ops,
            warmup=4,
            output_error=0.0,
            gradient_error=1e-7 * (1 + rank),
            tolerance=1e-4,
        )
        for rank in range(2)
    ]
    found = measured(case(), samples, peak_tflops=2.0)
    assert (found["step_ms"], found["iterations"], found["warmup"]) == (11.0, 3, 4)
    assert found["step_ms_p10"] == pytest.approx(10.2)
    assert found["step_ms_p90"] == pytest.approx(11.8)
    assert found["compute_ms"] == 7.0
    assert found["exposed_comm_ms"] == 4.0
    assert found["exposed_gb_per_s"] == pytest.approx(30 / 4e6)
    work = case().workload
    assert found["samples_per_s"] == pytest.approx(1e3 / 11)
    assert found["tokens_per_s"] == pytest.approx(work.tokens * 1e3 / 11)
    assert found["tokens_per_s_per_rank"] == pytest.approx(found["tokens_per_s"] / 2)
    assert found["tflops_per_rank"] == pytest.approx(step_flops(work) / 0.011 / 2 / 1e12)
    assert found["mfu"] == pytest.approx(found["tflops_per_rank"] / 2)
    assert (found["peak_allocated_bytes"], found["peak_reserved_bytes"]) == (100, None)
    assert found["optimizer_bytes"] == 41
    assert (found["sent_bytes_forward"], found["sent_bytes_gradients"]) == (11, 0)
    assert (found["predicted_bytes_forward"], found["all_to_all_bytes"]) == (10, 30)
    assert (found["output_error"], found["gradient_error"]) == (0.0, 2e-7)
    assert found.keys() <= set(COLUMNS)


def test_how_a_launch_was_measured(golden: Golden) -> None:
    """What stopped it, the calls of the busiest rank, rank 0's steps, and the conditions."""
    calm = {"host": "a", "cores": 2, "wall_s": 4.0, "busy_s": 8.0, "cpu_s": 3.5}
    samples = [
        sample(
            rank,
            step_ms=[9.0],
            stopped_by="precision",
            steps_s=3.0 + rank,
            collectives={"forward.all_to_all": 2 + rank, "gradients.all_reduce": 1},
            conditions=calm | {"hardware": "a CPU x2", "load_average": 1.5 + rank},
        )
        for rank in range(2)
    ]
    found = measured(case(), samples, peak_tflops=None)
    assert (found["stopped_by"], found["steps_s"]) == ("precision", 3.0)
    golden(found["collectives"])
    assert (found["hardware"], found["load_average"]) == ("a CPU x2", 2.5)
    assert found["others_cores"] == 0.25
    golden(found["noisy"], "second")
    assert found.keys() <= set(COLUMNS)


def test_attention_kernels_of_all_ranks_are_joined() -> None:
    """Each once; a rank whose attention is its strategy's own has none."""
    samples = [sample(attention_kernel=kernels) for kernels in ("cudnn+math", "", "cudnn+flash")]
    assert measured(case(), samples, peak_tflops=None)["attention_kernel"] == "cudnn+math+flash"
    assert measured(case(), [sample()], peak_tflops=None)["attention_kernel"] == ""


def test_without_silent_steps_what_is_exposed_is_blank() -> None:
    """And the rest is there."""
    found = measured(case(), [sample(step_ms=[4.0, 5.0])], peak_tflops=None)
    assert (found["step_ms"], found["iterations"]) == (4.5, 2)
    assert "compute_ms" not in found


def test_one_iteration_has_itself_as_spread() -> None:
    """No quantiles of a single figure, and no MFU without a peak."""
    found = measured(case(), [sample(step_ms=[4.0])], peak_tflops=None)
    assert (found["step_ms_p10"], found["step_ms_p90"]) == (4.0, 4.0)
    assert found["mfu"] is None
    assert "exposed_comm_ms" not in found


def test_a_share_has_no_step() -> None:
    """Silent passes alone give computation, and leave steps, rates and bytes blank."""
    found = measured(case(), [sample(compute_ms=[5.0, 6.0, 7.0])], peak_tflops=None)
    assert (found["compute_ms"], found["iterations"]) == (6.0, 3)
    for name in ("step_ms", "tokens_per_s", "exposed_comm_ms", "sent_bytes_forward"):
        assert found.get(name) is None


@pytest.mark.parametrize(
    ("name", "dtype", "peak"),
    [
        ("NVIDIA H200", "bfloat16", 989.0),
        ("NVIDIA H100 PCIe", "float16", 756.0),
        ("NVIDIA GB200", "bfloat16", 2500.0),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.0),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312.0),
        ("NVIDIA A100-PCIE-40GB", "bfloat16", 312.0),
        ("NVIDIA GeForce RTX 4090", "float16", 165.2),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "float16", None),
        ("NVIDIA H100 NVL", "bfloat16", None),
        ("NVIDIA H800 PCIe", "bfloat16", None),
        ("NVIDIA H200", "float32", None),
        ("Some other GPU", "bfloat16", None),
    ],
)
def test_known_peaks(name: str, dtype: str, peak: float | None) -> None:
    """16-bit rates by product name; what is not known has none."""
    assert known_peak([{"name": name}], dtype) == peak
    assert known_peak([], dtype) is None


def test_where_nothing_is_sent_nothing_is_exposed() -> None:
    """The step of one rank is computation, whatever its silent steps took."""
    nothing = {"sent_by_phase": {"forward": 0, "backward": 0, "gradients": 0}}
    found = measured(case(ranks=1), [sample(**ON_GPU, **nothing)], None)
    assert (found["step_ms"], found["compute_ms"], found["exposed_comm_ms"]) == (100.0, 100.0, 0.0)


ON_GPU = {"peak_allocated_bytes": 1, "step_ms": [100.0] * 9, "compute_ms": [80.0] * 9}


def test_a_step_that_the_host_is_too_slow_for_is_marked(golden: Golden) -> None:
    """From 0.97 of the step on; what communication adds is then not known. A step of 7,400 launches
    with the GPU busy all the time was issued in 0.90 of it: the queue holds about a thousand."""
    found = measured(case(), [sample(issue_ms=[96.0] * 9, **ON_GPU)], None)
    assert (found["issue_ms"], found["host_bound"], found["exposed_comm_ms"]) == (96.0, "no", 20.0)
    found = measured(case(), [sample(issue_ms=[98.0] * 9, **ON_GPU)], None)
    assert found["host_bound"] == "yes" and "exposed_comm_ms" not in found
    golden(found["compute_note"])
    share = {"compute_ms": [80.0] * 9, "issue_ms": [79.0] * 9, "peak_allocated_bytes": 1}
    found = measured(case(kind="one_gpu_share"), [sample(**share)], None)
    assert (found["issue_ms"], found["host_bound"]) == (79.0, "yes")


def test_bounds_hold_what_communication_adds_where_clocks_differ(golden: Golden) -> None:
    """Timed at 1,980 MHz and silent at 1,700, computation that the clock limits altogether, in part
    or not at all, times that scatter by 0.5 %: the bounds hold the truth in 100 of 100."""
    chance = random.Random(0)
    clocks = {"timed_clock_mhz": 1980.0, "silent_clock_mhz": 1700.0}
    for _ in range(100):
        by_clock, truth_ms = chance.random(), chance.uniform(0.0, 50.0)
        silent_ms = 80.0 * (by_clock * 1980 / 1700 + 1 - by_clock)
        times = {
            "step_ms": [(80.0 + truth_ms) * chance.gauss(1, 0.005) for _ in range(30)],
            "compute_ms": [silent_ms * chance.gauss(1, 0.005) for _ in range(30)],
        }
        found = measured(case(), [sample(**ON_GPU | times, conditions=clocks)], None)
        assert found["exposed_comm_ms_low"] <= truth_ms <= found["exposed_comm_ms_high"]
        assert "exposed_comm_ms" not in found
        golden(found["compute_note"])


def test_bounds_hold_for_whichever_rank_is_the_slowest() -> None:
    """One rank's clock is lower in the silent pass, another's higher: both ends are looser."""
    clocks = ((1980.0, 1700.0), (1800.0, 1980.0))
    ranks = [
        sample(**ON_GPU, conditions={"timed_clock_mhz": timed, "silent_clock_mhz": silent})
        for timed, silent in clocks
    ]
    found = measured(case(), ranks, None)
    assert found["exposed_comm_ms_low"] == pytest.approx(100 - 80 * 1980 / 1800)
    assert found["exposed_comm_ms_high"] == pytest.approx(100 - 80 * 1700 / 1980)


@pytest.mark.parametrize("clocks", [{}, {"timed_clock_mhz": 1980.0, "silent_clock_mhz": 1900.0}])
def test_silent_steps_that_take_longer_than_real_ones_do_not_compare(
    clocks: dict[str, float], golden: Golden
) -> None:
    """Beyond what times scatter by, and 2 % for clocks that count as alike, or as the clocks say:
    both parts are blank, and the row says why."""
    longer = ON_GPU | {"compute_ms": [99.0 + n for n in range(20)], "step_ms": [90.0] * 20}
    found = measured(case(), [sample(**longer, conditions=clocks)], None)
    assert found["step_ms"] == 90.0
    assert found["compute_ms"] is None and "exposed_comm_ms" not in found
    assert not any(name.startswith("exposed_comm_ms_") for name in found)
    golden(found["compute_note"])


def test_exposed_time_below_0_within_chance_stays() -> None:
    """It is not told apart from 0; a mean over launches without it would be too high."""
    within = ON_GPU | {"compute_ms": [101.9] * 9}
    found = measured(case(), [sample(**within)], None)
    assert found["exposed_comm_ms"] == pytest.approx(-1.9)
    assert (found["compute_ms"], found["compute_note"]) == (pytest.approx(101.9), "")
    assert found["exposed_gb_per_s"] is None


@pytest.mark.parametrize(
    ("of_ranks", "said"), [((True, True), "yes"), ((True, False), "no"), ((None, None), "")]
)
def test_a_launch_is_steady_if_all_its_ranks_are(
    of_ranks: Sequence[bool | None], said: str
) -> None:
    """Blank where it is not known."""
    ranks = [sample(step_ms=[4.0], steady=steady) for steady in of_ranks]
    assert measured(case(), ranks, None)["steady"] == said


def test_clocks_that_differ_by_little_bound_nothing() -> None:
    """Up to 2 %, and where either is not known."""
    for clocks in ({"timed_clock_mhz": 1980.0, "silent_clock_mhz": 1950.0}, {}):
        found = measured(case(), [sample(**ON_GPU, conditions=clocks)], None)
        assert found["exposed_comm_ms"] == 20.0 and not found["compute_note"]
