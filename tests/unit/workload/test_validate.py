"""Validation refuses a case if and only if a rank would fail, have nothing to do, or run Ulysses.

Configurations are drawn at random. Where validation accepts, all ranks pass the gate and each has
something to do. Where it refuses, a rank gives the same reason, and without the refusal one of
these would be true: a rank raises, is wrong, holds nothing, or sends what Ulysses sends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from helpers.examples import ALL, examples
from helpers.gate_on_threads import prove, why_wrong
from helpers.golden import Golden
from helpers.in_process import inside
from helpers.variants import variants
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from pydantic import ValidationError

from spbench.comm.fake import silent_transports
from spbench.comm.group import Group, ShareOfGroup
from spbench.errors import USAGE
from spbench.launch.local import LocalLauncher
from spbench.results.hand_over import Sample
from spbench.strategies.base import Strategy
from spbench.strategies.fixed_axis import FixedAxis
from spbench.strategies.registry import load
from spbench.sweep.plan import cells
from spbench.sweep.request import Request
from spbench.worker.observer import Observer
from spbench.worker.rank_process import work
from spbench.worker.reference import OneDevice, one_device
from spbench.worker.step import Step
from spbench.workload import workload as workload_module
from spbench.workload.case import QUICK, Case, Combination, Job
from spbench.workload.sharding import shard_sizes
from spbench.workload.workload import Workload

AXES = ("time", "height", "width")
NO_AXIS = "room"
NO_EXCHANGE = "raises ValueError"
"""Without an axis to shard beside it, no exchange of a joint attention can be planned."""
CPU = torch.device("cpu")


@st.composite
def sublayers(draw: st.DrawFn, names: tuple[str, ...]) -> dict[str, Any]:
    """A sublayer, sometimes along an unknown axis, causal, projected or with a pair bias."""
    kind = draw(st.sampled_from(["attention", "attention", "cross", "mlp"]))
    ratios = st.sampled_from([0.01, 0.2, 0.5, 1.0, 2.3])
    if kind == "cross":
        heads = draw(st.sampled_from([{}, {}, {"heads": draw(st.integers(1, 6))}]))
        return {"cross_attention": draw(st.integers(1, 5)), **heads}
    if kind == "mlp":
        activation = draw(st.sampled_from(["gelu", "swiglu"]))
        return {"mlp": draw(ratios), "activation": activation}
    axis = st.sampled_from([*names * 12, NO_AXIS])
    specials = [{}, {}, {}, {"causal": True}, {"projection": 3}, {"pair_bias": 2}]
    special = draw(st.sampled_from([*specials, {"causal": True, "pair_bias": 3}]))
    axes = draw(st.lists(axis, min_size=1, max_size=len(names), unique=True))
    beside = draw(st.sampled_from([{}, {}, {}, {"beside": {"mlp": draw(ratios)}}]))
    return {"attention": axes, **special, **beside}


@st.composite
def fields(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a workload, most of which fit together."""
    names = AXES[: draw(st.integers(1, 3))]
    heads = draw(st.one_of(st.integers(1, 8), st.just(8)))
    block = st.lists(sublayers(names), min_size=1, max_size=3)
    stack = st.fixed_dictionaries({"depth": st.integers(1, 2), "block": block})
    stacks = st.lists(stack, min_size=1, max_size=2)
    fitting = st.sampled_from([heads * size for size in (4, 6, 3)])
    return {
        "name": "any",
        "axes": {name: draw(st.integers(1, 12)) for name in names},
        "hidden": draw(st.one_of(*[fitting] * 6, st.integers(1, 40))),
        "heads": heads,
        "head_dim": draw(st.sampled_from([None] * 4 + [3, 6])),
        "kv_heads": draw(st.sampled_from([None] * 4 + [1, heads, draw(st.integers(1, 8))])),
        **draw(st.one_of(*[stack] * 4, st.fixed_dictionaries({"stacks": stacks}))),
        "norm": draw(st.sampled_from(["layer", "rms"])),
        "qk_norm": draw(st.sampled_from([False, True, "across_heads"])),
        "positions": draw(st.sampled_from(["none"] * 4 + ["learned", "rotary", {NO_AXIS: "none"}])),
        "modulation": draw(st.sampled_from(["none", "per_sample", "per_time", "per_token"])),
        "batch": draw(st.integers(1, 2)),
        "dtype": draw(st.sampled_from(["float64"] * 4 + ["float32", "bfloat16", "float16"])),
        "mode": draw(st.sampled_from(["train", "train", "forward"])),
        "checkpointing": draw(st.sampled_from(["none", "full", "selective"])),
    }


@st.composite
def strategies(draw: st.DrawFn) -> str:
    """A strategy with options, sometimes with an unknown axis."""
    name = draw(st.sampled_from(variants()))
    axis = draw(st.sampled_from(["", "", "", *AXES, NO_AXIS]))
    return f"{name}:shard-axis={axis}" if axis and isinstance(load(name), FixedAxis) else name


def validated(workload: Workload, strategy: str, ranks: int) -> tuple[Case, str | None]:
    """The case, and why validation refuses it before any process starts; None if it does not."""
    combination = Combination(workload=workload, strategy=strategy, ranks=ranks)
    request = Request(combinations=[combination], device="cpu", budget=QUICK, skip_invalid=True)
    (cell,) = cells(request)
    return cell.case, cell.why_not


@contextmanager
def never_refusing(strategy: Strategy) -> Iterator[None]:
    """Inside, the strategy refuses nothing."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("misfit", "why_not", "why_not_along"):
            if hasattr(strategy, name):
                patch.setattr(type(strategy), name, lambda *_: None)
        yield


def without_validation(workload: Workload, strategy: Strategy, ranks: int) -> str:
    """The fate of a case that is run without its refusal."""
    with never_refusing(strategy):
        try:
            if why_wrong(prove(workload, strategy, ranks)):
                return "wrong"
        except Exception as error:
            return f"raises {type(error).__name__}"
        if a_rank_idles(workload, strategy, ranks):
            return "idle"
        return "is ulysses" if is_ulysses(workload, strategy, ranks) else "fine"


def a_rank_idles(workload: Workload, strategy: Strategy, ranks: int) -> bool:
    """Whether a rank holds no position, or no column of weights that are cut."""
    axes = set(strategy.on(workload, ranks).layout)
    held = [strategy.on(workload, ranks).shard(axis).sizes for axis in axes]
    if strategy.on(workload, ranks).cuts_weights:
        held += [shard_sizes(workload.columns(mlp), ranks) for mlp in workload.mlps]
    return any(0 in sizes for sizes in held)


def is_ulysses(workload: Workload, strategy: Strategy, ranks: int) -> bool:
    """Whether it sends what Ulysses sends, to the byte, and so compares nothing."""
    (axis,) = set(strategy.on(workload, ranks).layout)
    other = load(f"ulysses:shard-axis={axis}")
    return strategy.on(workload, ranks).traffic == other.on(workload, ranks).traffic


def work_of_rank(job: Job, group: Group) -> str:
    return work(job, group, Observer(), Path())


def test_no_means_no_and_yes_means_yes() -> None:
    """A refusal has a cause and an acceptance works, for drawn workloads, options and ranks."""
    seen: Counter[str] = Counter()

    @examples(400, share=5, suppress_health_check=list(HealthCheck))
    @given(fields(), strategies(), st.integers(1, 8))
    def each(data: dict[str, Any], strategy: str, ranks: int) -> None:
        try:
            workload = Workload.model_validate(data)
        except ValidationError:
            seen["no workload"] += 1
            return
        chosen = load(strategy)
        case, why_not = validated(workload, strategy, ranks)
        if why_not is None:
            seen["runs"] += 1
            assert not why_wrong(prove(workload, chosen, ranks))
            assert not a_rank_idles(workload, chosen, ranks)
            return
        written = work_of_rank(Job(ranks=ranks, device="cpu", case=case), ShareOfGroup(CPU, ranks))
        sample = Sample.model_validate_json(written)
        assert (sample.status, sample.reason) == ("skipped", why_not)
        truth = without_validation(workload, chosen, ranks)
        assert truth != "fine", why_not
        assert truth != "is ulysses" or "leaves no axis" in why_not or "second" in why_not
        seen[truth.split()[0]] += 1

    each()
    part = 1 if ALL else 8
    assert seen["runs"] >= 50 // part, seen
    assert seen["no workload"] >= 60 // part, seen
    assert min(seen["raises"], seen["idle"]) >= (2 if ALL else 1), seen


BESIDE = '--set block=[{"attention":"time","beside":'
HUGE = "--set head_dim=2147483647"
STACKS = '--set stacks=[{"depth":2,"block":[{"mlp":2}]}]'
MODEL = "run -w dsp-720m-small --device cpu"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-g 0", "'0' is not a number of ranks; write 1,2,4"),
        ("-g -1", "'-1' is not a number of ranks; write 1,2,4"),
        ("-g 99999999", "too many processes for one machine; use 1 to 1024"),
        ("-g 32 -s ulysses", "16 heads cannot be split over 32 ranks; use 1 to 16"),
        ("-g 9 -s dsp", "no axis has 9 positions to shard while space is attended"),
        ("-g 9 -s rsa:shard-axis=time", "8 positions of time cannot be split over 9 ranks"),
        (
            "-s rsa:shard-axis=room",
            "there is no axis 'room' to shard; shard-axis may be auto, time",
        ),
        ("--set heads=0", "heads is 0: input should be greater than 0"),
        ("--set heads=-8", "heads is -8: input should be greater than 0"),
        ("--set heads=7", "heads that fit: 1, 2, 3, 4, 6, 8"),
        ("--set heads=7", "hidden that fits: 189, 196; or give head_dim"),
        ("--set head_dim=0", "head_dim is 0: input should be greater than 0"),
        ("--set head_dim=7 --set positions=rotary", "head_dim that works: even numbers from 2 on"),
        (f"{HUGE} --set axes.space=2147483647", "batch x axes x heads x head_dim: 5.9e+20"),
        ("--set heads=99999999999", "heads is 99999999999: input should be less than"),
        ("--set kv_heads=3", "kv_heads that fit: 1, 2, 4, 8"),
        ("--set hidden=0", "hidden is 0: input should be greater than 0"),
        ("--set hidden=1", "use 4 or more"),
        ("--set depth=1001", "depth is 1001: input should be less than or equal to 1000"),
        ("--set qk_norm=2", "qk_norm 2: it may be true (a norm of each head), across_heads or"),
        (BESIDE + "4}]", "block.0.beside is 4: write an mlp, as in {mlp: 4}"),
        (BESIDE + '{"mlp":4,"beside":3}}]', "unknown key 'beside'. Known: mlp, activation"),
        (BESIDE + '{"mlp":0.001}}]', "mlp ratio 0.001 leaves no columns of 192"),
        (
            BESIDE + '{"mlp":65}}]',
            "mlp 65 is a factor of hidden, at most 64, and looks like a width",
        ),
        (BESIDE + '{"mlp":0}}]', "block.0.beside.mlp is 0: input should be greater than 0"),
        ("--set stacks=[]", "stacks is []: write a list of stacks, as in '- {depth: 2, block: ["),
        ("--set stacks=2", "stacks is 2: write a list of stacks, as in '- {depth: 2, block: ["),
        ("--set stacks.0.depth=2", "'stacks' has no parts; write stacks=value"),
        ('--set stacks=[{"depth":0}]', "stacks.0.depth is 0: input should be greater than 0"),
        ('--set stacks=[{"depth":2}]', "key 'stacks.0.block' is missing"),
        (STACKS.replace("mlp", "mpl"), "stacks.0.block.0 is not a sublayer: {'mpl': 2}. Did you"),
        (f"{STACKS} --set depth=4", "each of the stacks has a depth of its own; leave out depth"),
        (f"{STACKS} --set stacks.1.depth=4", "write stacks.N.depth or stacks.N.block, N below 1"),
        (f"{STACKS} --set stacks.0.depht=4", "unknown key 'depht'. Did you mean 'depth'"),
        (f"{STACKS} --set stacks.0.depth=x", "stacks.0.depth is 'x': input should be a valid int"),
        ("--set batch=0", "batch is 0: input should be greater than 0"),
        ("--set axes.time=0", "axes.time is 0: input should be greater than 0"),
        ("--set axes.time=-3", "axes.time is -3: input should be greater than 0"),
        ("--set axes.time=99999999999", "axes.time is 99999999999: input should be less than"),
        ("--set axes={}", "axes is {}: write names with their lengths, as in {time: 16"),
        ("--dtype float8", "it may be 'float32', 'float64', 'bfloat16' or 'float16'"),
        ("--dtype 32", "it may be 'float32', 'float64', 'bfloat16' or 'float16'"),
        ("--set mode=backward", "it may be 'train' or 'forward'"),
    ],
)
def test_what_does_not_fit_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    """Exit 2 with values that would work, before a folder is made or a process started."""

    def started(*_: object) -> NoReturn:
        raise AssertionError("ranks would be started")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LocalLauncher, "__init__", started)
    done = inside(*MODEL.split(), *words.split())
    assert (done.code, done.out) == (USAGE, "")
    assert message in done.err
    assert list(tmp_path.iterdir()) == []


SMALL: dict[str, Any] = {
    "name": "small",
    "axes": {"time": 4, "space": 6},
    "hidden": 24,
    "heads": 4,
    "depth": 1,
    "block": [{"attention": "space"}, {"attention": "time"}, {"mlp": 2}],
    "dtype": "float64",
    "batch": 2,
}


TIME, BOTH = {"attention": "time"}, {"attention": ["time", "space"]}
ALONE: dict[str, Any] = {"block": [TIME | {"alone": True}], "hidden": 72, "head_dim": 6}


@pytest.mark.parametrize(
    ("strategy", "ranks", "more", "truth"),
    [
        ("ulysses", 3, {"heads": 2}, "raises ValueError"),
        ("ulysses:every-attention", 3, {"heads": 2}, "raises ValueError"),
        ("ulysses:shard-axis=time", 5, {"heads": 8}, "idle"),
        ("ulysses:shard-axis=room", 2, {}, "raises ValueError"),
        ("megatron-sp", 3, {"heads": 2}, "raises ValueError"),
        ("megatron-sp", 3, {"kv_heads": 2, "qk_norm": "across_heads"}, "raises RuntimeError"),
        (
            "megatron-sp",
            5,
            {"heads": 8, "block": [{"attention": "space"}, {"cross_attention": 3, "heads": 4}]},
            "raises RuntimeError",
        ),
        ("megatron-sp", 6, {"heads": 8, "block": [{"attention": "space"}, {"mlp": 0.2}]}, "idle"),
        ("megatron-sp", 7, {"heads": 8}, "idle"),
        ("megatron-sp", 2, ALONE, "wrong"),
        ("rsa", 7, {}, "raises RuntimeError"),
        ("rsa:reduce-scatter", 7, {}, "raises RuntimeError"),
        ("dsp", 5, {}, "raises ValueError"),
        ("dsp", 2, {"axes": {"space": 6}, "block": [{"attention": "space"}]}, NO_EXCHANGE),
        ("dsp", 2, {"block": [{"attention": ["space", "time"]}, {"mlp": 2}]}, NO_EXCHANGE),
        (
            "dsp:across=ulysses",
            3,
            {"heads": 2, "block": [{"attention": ["space", "time"]}, {"attention": "time"}]},
            "raises ValueError",
        ),
    ],
)
def test_what_each_refusal_is_for(
    strategy: str, ranks: int, more: dict[str, Any], truth: str
) -> None:
    """Each reason that a strategy gives, and what would be true without it."""
    workload = Workload.model_validate(SMALL | more)
    _, why_not = validated(workload, strategy, ranks)
    assert why_not is not None
    assert without_validation(workload, load(strategy), ranks) == truth


def unchecked(data: dict[str, Any]) -> Workload:
    """A workload whose fields need not fit together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workload_module, "check", lambda _: None)
        return Workload.model_validate(data)


CROSS_OF_5 = {"cross_attention": 3, "heads": 5}
T_AXIS = {"axes": {"t": 4, "space": 6}, "block": [{"attention": "space"}]}


@pytest.mark.parametrize(
    ("message", "more"),
    [
        ("not a multiple of kv_heads 3", {"kv_heads": 3}),
        ("needs an axis named time", T_AXIS | {"modulation": "per_time"}),
        ("mlp ratio 0.01 leaves no columns", {"block": [TIME, {"mlp": 0.01}]}),
        ("attention over unknown axis 'room'", {"block": [{"attention": NO_AXIS}]}),
        ("joins axis 'time' with itself", {"block": [{"attention": ["time", "time"]}]}),
        ("both projection and pair_bias", {"block": [TIME | {"projection": 3, "pair_bias": 3}]}),
        ("pair_bias needs one attended axis", {"block": [BOTH | {"pair_bias": 3}]}),
        (
            "one axis has one pair tensor",
            {"block": [TIME | {"pair_bias": 3}, TIME | {"pair_bias": 2}]},
        ),
        ("a head of 3 numbers cannot", {"hidden": 12, "positions": "rotary"}),
        ("a head of 2 numbers cannot", {"hidden": 8, "positions": "rotary", "block": [BOTH]}),
    ],
)
def test_a_workload_that_cannot_be_computed(message: str, more: dict[str, Any]) -> None:
    """The workload is refused, and one device alone fails at it."""
    with pytest.raises(ValidationError, match=message):
        Workload.model_validate(SMALL | more)
    with pytest.raises((RuntimeError, ValueError, ZeroDivisionError)):
        one_device(unchecked(SMALL | more), CPU)


@pytest.mark.parametrize(
    ("message", "more", "strategy"),
    [
        ("both causal and pair_bias", {"block": [TIME | {"causal": True, "pair_bias": 3}]}, "rsa"),
        (
            "which another attention masks causal",
            {"block": [TIME | {"pair_bias": 3}, TIME | {"causal": True}]},
            "rsa:shard-axis=time",
        ),
    ],
)
def test_a_workload_that_some_strategy_gets_wrong(
    message: str, more: dict[str, Any], strategy: str
) -> None:
    """The workload is refused; without that the gate fails for some strategy."""
    with pytest.raises(ValidationError, match=message):
        Workload.model_validate(SMALL | more)
    assert why_wrong(prove(unchecked(SMALL | more), load(strategy), 2))


def test_heads_that_would_leave_numbers_out() -> None:
    """Refused: attention would be narrower than hidden without a word; ``head_dim`` says it."""
    for message, more in (
        ("not a multiple of heads 5.* or give head_dim", {"heads": 5}),
        ("not a multiple of the cross_attention's heads 5", {"block": [CROSS_OF_5, TIME]}),
    ):
        with pytest.raises(ValidationError, match=message):
            Workload.model_validate(SMALL | more)
    assert unchecked(SMALL | {"heads": 5}).attention_width == 20 < SMALL["hidden"]
    said = Workload.model_validate(SMALL | {"heads": 5, "head_dim": 4})
    assert not why_wrong(prove(said, load("dsp"), 2))


@pytest.mark.parametrize(("hidden", "norm"), [(1, "rms"), (2, "layer")])
def test_a_norm_of_one_or_two_numbers(hidden: int, norm: str, golden: Golden) -> None:
    """Refused, since the last norm lets nothing through: gradients are rounding noise."""
    data = SMALL | {"hidden": hidden, "heads": 1, "norm": norm}
    with pytest.raises(ValidationError) as refused:
        Workload.model_validate(data)
    golden(refused.value.errors()[0]["msg"])
    tiny = one_device(unchecked(data), CPU).exact["gradient of the input"]
    good = one_device(unchecked(data | {"hidden": 4}), CPU).exact["gradient of the input"]
    assert tiny.abs().median() < 1e-3 * good.abs().median()


@pytest.mark.parametrize(
    ("message", "more"),
    [
        ("alone is all that is computed", {"depth": 2}),
        ("alone is all that is computed", {"block": [*ALONE["block"], {"mlp": 2}]}),
        ("alone is all that is computed", {"block": [ALONE["block"][0] | {"beside": {"mlp": 2}}]}),
        ("modulation per_sample has nothing to act on", {"modulation": "per_sample"}),
        ("optimizer adamw has nothing to act on", {"optimizer": "adamw"}),
        ("checkpointing full has nothing to act on", {"checkpointing": "full"}),
        ("text 3 has nothing to act on", {"text": 3}),
        ("zero 2 has nothing to act on", {"zero": 2}),
        ("learned positions of space are added to no", {"positions": {"space": "learned"}}),
        ("heads 4, kv_heads 4 and head_dim 6 write 72", {"hidden": 24}),
        ("heads 4, kv_heads 2 and head_dim 6 write 48", {"kv_heads": 2}),
    ],
)
def test_what_an_attention_alone_has_not(message: str, more: dict[str, Any]) -> None:
    """Fields that would be without effect, and channels other than those of q, k and v."""
    assert Workload.model_validate(SMALL | ALONE).is_attention_alone
    with pytest.raises(ValidationError, match=message):
        Workload.model_validate(SMALL | ALONE | more)


def test_an_attention_alone_may_be_computed_again() -> None:
    """Selective checkpointing has something to act on there, as full has not."""
    work = Workload.model_validate(SMALL | ALONE | {"checkpointing": "selective"})
    assert work.recomputes_attention and not work.recomputes


def test_a_field_that_would_be_without_effect(golden: Golden) -> None:
    """Positions of an unknown axis are refused; they would change nothing."""
    more = {"positions": {NO_AXIS: "rotary"}}
    with pytest.raises(ValidationError) as refused:
        Workload.model_validate(SMALL | more)
    golden(refused.value.errors()[0]["msg"])
    output = one_device(unchecked(SMALL | more), CPU).exact["output"]
    assert torch.equal(output, one_device(unchecked(SMALL), CPU).exact["output"])


@pytest.mark.parametrize(("projection", "sees"), [({}, False), ({"projection": 3}, True)])
def test_a_mask_over_projected_keys_hides_nothing(
    projection: dict[str, int], sees: bool, golden: Golden
) -> None:
    """Causal with projection is refused: a position would see later ones; a mask alone does not."""
    data = SMALL | {"block": [TIME | {"causal": True} | projection]}
    workload = unchecked(data)
    if sees:
        with pytest.raises(ValidationError) as refused:
            Workload.model_validate(data)
        golden(refused.value.errors()[0]["msg"])
    alone = silent_transports(0, 1)
    step = Step(OneDevice().on(workload, 1), alone, CPU)
    mine, _ = step.seeded_inputs(torch.float32)
    step.model(mine)[:, 0].sum().backward()
    assert mine.x.grad is not None
    assert bool(mine.x.grad[:, 1:].any()) == sees
