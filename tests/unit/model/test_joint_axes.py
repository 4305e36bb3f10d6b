"""A model of axes that are one computes what it computes of them apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from spbench.comm.fake import silent_transports
from spbench.model.inputs import Inputs
from spbench.model.positions import places_along, rows_at
from spbench.results.agreement import farthest, noise_floor
from spbench.worker.fingerprint import whole_fingerprint
from spbench.worker.reference import OneDevice
from spbench.worker.step import Step
from spbench.workload.flattened import flattened
from spbench.workload.workload import Workload

EVERY = ["time", "height", "width"]
FORMS: dict[str, dict[str, Any]] = {
    "rotary": {"positions": "rotary"},
    "learned": {"positions": "learned"},
    "of each axis": {"positions": {"time": "learned", "height": "rotary", "width": "none"}},
    "per_time": {"modulation": "per_time", "norm": "rms"},
    "per_token": {"modulation": "per_token"},
    "causal": {"block": [{"attention": EVERY, "causal": True}, {"mlp": 2}], "positions": "rotary"},
    "projected": {"block": [{"attention": EVERY, "projection": 5}], "positions": "rotary"},
    "text": {
        "block": [{"attention": EVERY, "double": True}, {"mlp": 2, "double": True}],
        "text": 3,
        "positions": "rotary",
        "modulation": "per_sample",
    },
    "time apart": {
        "block": [{"attention": EVERY}, {"attention": "time"}, {"mlp": 2}],
        "positions": {"time": "rotary", "height": "rotary", "width": "learned"},
        "modulation": "per_time",
    },
    "two of three": {
        "block": [{"attention": ["time", "height"]}, {"attention": "width"}],
        "positions": {"time": "learned", "height": "rotary", "width": "rotary"},
        "modulation": "per_time",
    },
    "attention alone": {
        "block": [{"attention": EVERY, "alone": True}],
        "depth": 1,
        "hidden": 96,
        "head_dim": 8,
        "positions": "rotary",
    },
}


def workload(**fields: Any) -> Workload:
    data = {
        "name": "axes",
        "axes": {"time": 3, "height": 4, "width": 5},
        "hidden": 32,
        "heads": 4,
        "depth": 2,
        "block": [{"attention": EVERY}, {"mlp": 2}],
        "batch": 2,
        "dtype": "float64",
    }
    return Workload.model_validate(data | fields)


def one_step(work: Workload) -> Step:
    return Step(OneDevice().on(work, 1), silent_transports(0, 1), torch.device("cpu"))


def results(step: Step, given: Inputs, cotangent: Tensor) -> dict[str, Tensor]:
    """The output and all gradients of a step."""
    output = step(given, cotangent)
    return step.tensors(given, output)


def as_in(other: Inputs, given: Inputs) -> Inputs:
    """``given`` in the shapes of ``other``."""
    for mine, theirs in zip(other.tensors, given.tensors, strict=True):
        with torch.no_grad():
            mine.copy_(theirs.reshape(mine.shape))
    return other


@pytest.mark.parametrize("form", FORMS)
def test_axes_that_are_one_are_computed_as_apart(form: str) -> None:
    """Output, and gradients of the input and of each weight, which have the same names."""
    work = workload(**FORMS[form])
    one = flattened(work)
    assert len(one.axes) < len(work.axes)
    apart, joined = one_step(work), one_step(one)
    weights, shapes = apart.model.state_dict(), joined.model.state_dict()
    assert weights.keys() == shapes.keys()
    joined.model.load_state_dict({n: x.reshape(shapes[n].shape) for n, x in weights.items()})
    given, cotangent = apart.seeded_inputs()
    other, as_wide = joined.seeded_inputs()
    wanted = results(apart, given, cotangent)
    found = results(joined, as_in(other, given), cotangent.reshape(as_wide.shape))
    for name, tensor in wanted.items():
        error = (found[name].reshape(tensor.shape) - tensor).norm()
        assert error <= 1e-14 * tensor.norm(), name  # of text's last weights both are 0


@pytest.mark.parametrize("form", FORMS)
def test_strategies_that_cut_the_axes_otherwise_are_comparable(form: str) -> None:
    """One that keeps them apart, as ``shard-axis`` does, has the same weights, inputs and numbers,
    and fingerprints of a step are the same: a run holds its strategies against each other."""
    work = workload(axes={"time": 70, "height": 2, "width": 3}, **FORMS[form])
    found = []
    for cut in (work, flattened(work)):
        step = one_step(cut)
        given, cotangent = step.seeded_inputs()
        tensors = results(step, given, cotangent)
        prints = whole_fingerprint(tensors, step.grids)
        found.append(([*given.tensors, cotangent, *step.model.parameters()], prints))
    (apart, wanted), (joined, got) = found
    for one, other in zip(apart, joined, strict=True):
        assert torch.equal(one.flatten(), other.flatten())
    far = farthest(got, wanted, dict.fromkeys(wanted, 1e-9), noise_floor(wanted, "float64"))
    assert far.excess <= 1, far


def test_each_position_has_a_place_along_each_axis() -> None:
    """In tensor order, the innermost first; an axis of its own has none."""
    work = workload(block=[{"attention": ["height", "width"]}, {"attention": "time"}])
    one = flattened(work)
    assert places_along("time", one) is None
    height, width = (places_along(axis, one) for axis in ("height", "width"))
    assert height is not None and width is not None
    assert height.tolist() == [i // 5 for i in range(20)]
    assert width.tolist() == [i % 5 for i in range(20)]


def test_gradients_of_a_row_are_summed_in_float32() -> None:
    """10,000 copies of a row of bfloat16 each give 1: sums in 16 bits would stop at 256."""
    table = torch.ones(2, 1, dtype=torch.bfloat16, requires_grad=True)
    rows_at(table, torch.zeros(10_000, dtype=torch.int64)).sum().backward()
    assert table.grad is not None
    assert table.grad[0].item() == pytest.approx(10_000, rel=2**-8)
    assert table.grad[1].item() == 0
