"""One suite over whatever is registered: equal to one device, and every byte as predicted."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import torch
from helpers.examples import ALL
from helpers.gate_on_threads import prove, why_wrong
from helpers.variants import by_day, suited, variants

from spbench.comm.threaded import ThreadRendezvous, ThreadTransport, run_rank_threads
from spbench.comm.transport import Transports
from spbench.launch.local import LocalLauncher
from spbench.strategies.registry import load, places
from spbench.sweep.verification import checks_for, run_checks
from spbench.worker.step import Step
from spbench.workload.case import Job
from spbench.workload.catalogue import find, with_settings
from spbench.workload.config_names import names
from spbench.workload.workload import Workload

SHAPES = [find(name, "verify") for name in names("verify")]
ON_PROCESSES = {2: ("causal-only",), 3: ("axes-2d-uneven",)}
"""Shapes of a short run by number of processes: every operation of gloo, on uneven shards."""
ON_THREADS = [
    shape
    for shape in SHAPES
    if ALL
    or shape.name
    not in {"axes-2d", "attention-only", "checkpointed", *sum(ON_PROCESSES.values(), ())}
]
"""Shapes of a short run on threads: those that processes leave, but for the even ones, and one that
the weight updates of tests/unit/worker/test_optimizer.py prove."""
ONE_BLOCK = ("axes-3d-uneven", "causal", "few-key-heads", "joint", "mixed", "pair-bias")
ONE_BLOCK += ("projected", "wide-heads", "wide-keys", "windows", "boxes")
"""Shapes whose blocks a short run does not repeat: others, stacks among them, have several."""
LONG_RANKS = [pytest.param(ranks, marks=pytest.mark.long) for ranks in (1, *ON_PROCESSES)]
"""Numbers of ranks on threads of a full run: others are proved by processes, or send nothing."""
LOW_PRECISION = [pytest.param(of, marks=pytest.mark.long) for of in ("float32", "float16")]
LOW_PRECISION += ["bfloat16"]
IN_LOW_PRECISION = {"bfloat16": ("axes-2d-uneven", "pair-bias")}
"""Shapes of a short run by dtype."""
if ALL:
    every = (
        "axes-2d-uneven",
        "mixed",
        "pair-bias",
        "checkpointed",
        "causal",
        "projected",
        "stacks",
    )
    IN_LOW_PRECISION = dict.fromkeys(("float32", "bfloat16", "float16"), every)
SEEDS = (0, 1) if ALL else (1,)
"""Of other dtypes; elsewhere it is 0."""


def shallow(shape: Workload, *names: str) -> Workload:
    """In a short run one block of it, if it has one of the names, or none is given; of five blocks
    two, as here no gate is on fewer than all."""
    if not ALL and shape.name == "deep":
        return with_settings(shape, ["depth=2"])
    is_one = not ALL and (shape.name in names or not names)
    return with_settings(shape, ["depth=1"]) if is_one else shape


def in_turn(strategy: str) -> list[Workload]:
    """In a short run every other shape, so that half of the strategies are proved on each; every
    fourth of a strategy with a flag."""
    every = 4 if ":" in strategy else 2
    at = list(places()).index(strategy.partition(":")[0])
    return ON_THREADS if ALL else ON_THREADS[at % every :: every]


@pytest.mark.parametrize("ranks", [*LONG_RANKS, 4])
@pytest.mark.parametrize("strategy", variants())
def test_equals_one_device_on_every_shape(strategy: str, ranks: int) -> None:
    """In float64: output, all gradients below 1e-9, bytes exact; or declined in a sentence."""
    for shape in in_turn(strategy):
        work = suited(strategy, with_settings(shallow(shape, *ONE_BLOCK), ["dtype=float64"]))
        if why := load(strategy).declines(work, ranks):
            assert len(why.split()) > 8, why
            continue
        outcomes = prove(work, load(strategy), ranks)
        assert not why_wrong(outcomes), (work.name, why_wrong(outcomes))
        assert max(outcome.worst.relative for outcome in outcomes) < 1e-9


@pytest.mark.parametrize("strategy", by_day())
def test_eight_ranks_and_uneven_everything(strategy: str) -> None:
    """13 and 11 positions, 9 heads and a batch of 3 on 8 ranks; checkpointed."""
    work = Workload.model_validate(
        {
            "name": "eight",
            "axes": {"time": 11, "space": 13},
            "hidden": 36,
            "heads": 9,
            "depth": 1,
            "block": [
                {"attention": "space"},
                {"attention": "time"},
                {"mlp": 3.3},
                {"attention": "space"},  # switched back to, as in a next block
            ],
            "batch": 3,
            "dtype": "float64",
            "checkpointing": "full",
        }
    )
    assert not why_wrong(prove(suited(strategy, work), load(strategy), 8))


@pytest.mark.long
@pytest.mark.parametrize("strategy", variants())
def test_timesformer_on_eight_ranks(strategy: str) -> None:
    """12 heads are 2, 2, 2, 2, 1, 1, 1, 1 and 196 patches do not divide; results are right."""
    work = find("timesformer-small")
    assert (work.heads, work.axes["time"], work.axes["space"] % 8) == (12, 8, 4)
    less = with_settings(work, ["dtype=float64", "depth=1", "axes.space=28", "hidden=96"])
    assert not why_wrong(prove(suited(strategy, less), load(strategy), 8))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("strategy", by_day())
def test_a_gradient_of_nothing_but_rounding(strategy: str, dtype: str) -> None:
    """Cross-attention to one token: queries cannot matter, and their gradient is noise."""
    shape = find("axes-2d", "verify")
    block = "[{attention: space}, {attention: time}, {cross_attention: 1}, {mlp: 2}]"
    work = suited(strategy, with_settings(shape, [f"block={block}", f"dtype={dtype}"]))
    assert not why_wrong(prove(work, load(strategy), 2))


@pytest.mark.parametrize("strategy", by_day())
def test_pairs_fewer_than_ranks(strategy: str) -> None:
    """A pair tensor of 3 rows on 4 ranks: one rank holds none of it, and results are right."""
    work = with_settings(find("pair-bias", "verify"), ["axes={row: 9, column: 3}", "dtype=float64"])
    if not load(strategy).declines(work, 4):
        assert not why_wrong(prove(work, load(strategy), 4))


@pytest.mark.parametrize("ranks", [*(pytest.param(n, marks=pytest.mark.long) for n in (2, 8)), 3])
@pytest.mark.parametrize("strategy", by_day())
def test_text_beside_uneven_axes(strategy: str, ranks: int) -> None:
    """7 tokens of text on 8 ranks leave one with none; blocks are double, then single.
    A short run tries one of two forms of each strategy."""
    more = (
        ["dtype=float64", "heads=8", "hidden=32", "axes={time: 9, space: 11}"] if ranks == 8 else []
    )
    forms = [("full", "layer"), ("none", "rms")]
    at = list(places()).index(strategy.partition(":")[0])
    for checkpointing, norm in forms if ALL else [forms[at % 2]]:
        settings = [f"checkpointing={checkpointing}", f"norm={norm}", *more]
        work = with_settings(find("streams", "verify"), settings)
        if not load(strategy).declines(work, ranks):
            assert not why_wrong(prove(work, load(strategy), ranks))


SELECTIVE = ("selective", "streams", "pair-bias", "projected", "few-key-heads")
"""Attention by several axes, of two streams, with a bias that ranks share out, to few keys."""


@pytest.mark.parametrize("strategy", variants())
def test_attention_alone_computed_again(strategy: str) -> None:
    """Selective checkpointing: equal to one device, and what attention sends again as predicted.
    A short run tries one shape of each strategy beside that of the suite, in turn."""
    at = variants().index(strategy)
    for name in SELECTIVE if ALL else (SELECTIVE[0], SELECTIVE[1 + at % 4]):
        settings = ["dtype=float64", "checkpointing=selective"]
        work = suited(strategy, with_settings(find(name, "verify"), settings))
        if not load(strategy).declines(work, 3):
            assert not why_wrong(prove(work, load(strategy), 3)), name


@pytest.mark.parametrize("strategy", by_day())
def test_every_axis_may_be_the_sharded_one(strategy: str) -> None:
    """Strategies with a fixed axis are right on each of three uneven axes."""
    if "shard_axis" not in {field.name for field in fields(load(strategy))}:
        assert load(strategy).on(find("axes-3d-uneven", "verify"), 2).layout
        return
    shape = with_settings(shallow(find("axes-3d-uneven", "verify")), ["dtype=float64"])
    work = suited(strategy, shape)
    for axis in work.axes:
        assert not why_wrong(prove(work, load(f"{strategy}:shard-axis={axis}"), 3)), axis


@pytest.mark.parametrize("strategy", by_day())
def test_sharp_logits(strategy: str) -> None:
    """Scores that differ by hundreds: float32 stays below its tolerance."""
    for name, ranks in (("attention-only", 3), ("causal-only", 2)):
        work = suited(strategy, find(name, "verify"))
        if not load(strategy).declines(work, ranks):
            assert not why_wrong(prove(work, load(strategy), ranks, sharpness=8.0)), name


@pytest.mark.parametrize("dtype", LOW_PRECISION)
@pytest.mark.parametrize("strategy", by_day())
def test_other_dtypes(strategy: str, dtype: str) -> None:
    """Each dtype passes against its own tolerance, whatever the seed."""
    for name in IN_LOW_PRECISION.get(dtype, ("axes-2d-uneven",)):
        shape = with_settings(shallow(find(name, "verify")), [f"dtype={dtype}"])
        work = suited(strategy, shape)
        for seed in SEEDS if not load(strategy).declines(work, 3) else ():
            assert not why_wrong(prove(work, load(strategy), 3, seed=seed)), (name, seed)


@pytest.mark.parametrize("ranks", ON_PROCESSES)
def test_real_processes_over_gloo(ranks: int, warm_launcher: None, tmp_path: Path) -> None:
    """Every strategy on every shape (a short run: without flags, on a few), in one launch per world
    size."""
    drawn = [shape for shape in SHAPES if ALL or shape.name in ON_PROCESSES[ranks]]
    assert ALL or len(drawn) == len(ON_PROCESSES[ranks])
    shapes = [with_settings(shape, ["dtype=float64"]) for shape in drawn]
    checks = [
        check
        for strategy in (variants() if ALL else list(places()))
        for check in checks_for([strategy], [suited(strategy, shape) for shape in shapes])
    ]
    job = Job(ranks=ranks, device="cpu", checks=checks, timeout_s=240.0)
    results = run_checks(job, LocalLauncher(tmp_path / "launcher.log"), tmp_path / "job")
    assert len(results) == len(checks)
    assert {result.outcome for result in results} - {"declined"} == {"passed"}
    passed = [result for result in results if result.outcome == "passed"]
    assert len(passed) > 0.8 * len(results)
    assert all(r.output_error is not None and r.output_error < 1e-9 for r in passed)


@pytest.mark.parametrize("strategy", variants())
def test_declines_instead_of_failing(strategy: str) -> None:
    """``why_not`` is a sentence with a value that works, and None only where the strategy runs."""
    work = suited(strategy, find("axes-2d-uneven", "verify"))  # time 5, space 13, 5 heads
    for ranks in (1, 2, 5, 6, 7, 13, 14, 100):
        why = load(strategy).declines(work, ranks)
        if why is None:
            assert len(load(strategy).on(work, ranks).layout) == len(work.stack)
            assert min(work.axes[axis] for axis in load(strategy).on(work, ranks).layout) >= ranks
        else:
            assert "use 1 to " in why
            most = int(why.split("use 1 to ")[1].split()[0])
            assert load(strategy).declines(work, most) is None


@pytest.mark.parametrize("strategy", by_day())
def test_one_rank_sends_nothing(strategy: str) -> None:
    """A collective over one rank is right and moves nothing. A short run tries one of three shapes
    of each strategy, in turn."""
    shapes = ["axes-2d-uneven", "few-key-heads", "pair-bias"]
    at = list(places()).index(strategy.partition(":")[0])
    for name in shapes if ALL else [shapes[at % 3]]:
        (outcome,) = prove(suited(strategy, find(name, "verify")), load(strategy), 1)
        assert not outcome.why_wrong(), name
        assert outcome.sent == {} == outcome.predicted


@pytest.mark.parametrize("strategy", by_day())
def test_two_models_at_once(strategy: str) -> None:
    """Forward of one, forward and backward of another, backward of the first: nothing is shared."""
    drawn = [shallow(find(name, "verify")) for name in ("axes-2d-uneven", "checkpointed")]
    shapes = [suited(strategy, shape) for shape in drawn]
    cpu, ranks = torch.device("cpu"), 3

    def gradients(
        order: list[int], transport: ThreadTransport, second: ThreadTransport
    ) -> list[torch.Tensor]:
        transports = Transports(strategy=transport, gradients=second)
        steps = [Step(load(strategy).on(shape, ranks), transports, cpu, seed=1) for shape in shapes]
        xs, outs = [], []
        for step in steps:
            mine, _ = step.seeded_inputs()
            xs.append(mine.x)
            outs.append(step.model(mine))
            if len(order) == 1:
                break
        for i in order:
            outs[i].sum().backward()
            gradients_of = steps[i].gradients
            assert gradients_of is not None
            gradients_of.finish()
        return [p.grad for p in steps[0].model.parameters() if p.grad is not None] + [xs[0].grad]

    def run(order: list[int]) -> list[list[torch.Tensor]]:
        meeting = ThreadRendezvous(ranks)
        return run_rank_threads(
            ranks, lambda t: gradients(order, t, ThreadTransport(t.rank, meeting))
        )

    for alone, together in zip(run([0]), run([1, 0]), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
