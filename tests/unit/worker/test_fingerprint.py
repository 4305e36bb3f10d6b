"""Fingerprints: ranks find together what one finds alone, and how far steps are apart."""

from __future__ import annotations

import math
from types import MappingProxyType

import pytest
import torch
from torch import Tensor

from spbench.results.agreement import TOLERANCE, Fingerprint, Repeats, farthest, relative_difference
from spbench.worker import fingerprint as fingerprints
from spbench.worker.fingerprint import Grids, fingerprint
from spbench.worker.memory import LiveStorages
from spbench.workload.sharding import Shard

torch.manual_seed(0)
X = torch.randn(2, 12, 5, 8, generator=torch.Generator().manual_seed(0))


def alone(x: Tensor) -> Fingerprint:
    return fingerprint({"x": x}, {"x": ()}, 0, lambda numbers: [list(numbers)])


def together(parts: list[Tensor], *cuts: Shard, grids: Grids = MappingProxyType({})) -> Fingerprint:
    """The fingerprint of a tensor that ranks hold parts of."""
    own: list[list[float]] = []

    def noted(numbers: object) -> list[list[float]]:
        own.append(list(numbers))  # type: ignore[call-overload]
        return [own[-1]] * len(parts)

    for rank, part in enumerate(parts):
        fingerprint({"x": part}, {"x": cuts}, rank, noted, {"x": grids})
    return fingerprint({"x": parts[0]}, {"x": cuts}, 0, lambda _: own, {"x": grids})


@pytest.mark.parametrize("cut", [Shard.even(1, 12, 5), Shard.even(3, 8, 3), Shard.causal(1, 12, 2)])
def test_parts_have_the_fingerprint_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, cut: Shard
) -> None:
    """However it is cut, and in slices that do not divide it."""
    whole = alone(X)["x"]
    monkeypatch.setattr(fingerprints, "SLICE", 7 * 8)
    parts = [torch.cat([X.narrow(cut.dim, *r) for r in runs], cut.dim) for runs in cut.runs]
    assert together(parts, cut)["x"] == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("cut", [Shard.even(1, 60, 7), Shard.causal(1, 60, 3)])
def test_axes_in_a_row_have_the_fingerprint_of_the_axes_apart(cut: Shard) -> None:
    """Of 12 x 5 positions in a row ranks hold parts of rows; the last dim counts on."""
    flat = X.flatten(1, 2)
    parts = [torch.cat([flat.narrow(1, *r) for r in runs], 1) for runs in cut.runs]
    assert together(parts, cut, grids={1: [12, 5]})["x"] == pytest.approx(alone(X)["x"], rel=1e-12)


def test_copied_rows_count_once() -> None:
    """Ranks that have rows of their own, and hold others both, as copies of key heads are."""
    cut = Shard(1, (((0, 4), (10, 1)), ((4, 3), (10, 1), (11, 1)), ((7, 3), (11, 1))))
    parts = [torch.cat([X.narrow(1, *run) for run in runs], 1) for runs in cut.runs]
    assert together(parts, cut)["x"] == pytest.approx(alone(X)["x"], rel=1e-12)
    parts[1][:, -2:] *= 1.1  # one of the holders is wrong
    assert together(parts, cut)["x"] != pytest.approx(alone(X)["x"], rel=1e-4)


def test_parts_along_two_dims_have_it_too() -> None:
    """Samples on groups of ranks, each of which cuts an axis."""
    samples = Shard.even(0, 2, 2).among([0, 0, 1, 1])
    axis = Shard.even(1, 12, 2).among([0, 1, 0, 1])
    parts = [x for half in X.split(1) for x in half.split(6, 1)]
    assert together(parts, samples, axis)["x"] == pytest.approx(alone(X)["x"], rel=1e-12)


@pytest.mark.parametrize("error", [1e-6, 1e-2, 0.5])
def test_the_difference_is_estimated(error: float) -> None:
    """Random noise of a known size, within a factor of three; a scale, to the digit."""
    noisy = alone(X + error * torch.randn(X.shape) * X.square().mean().sqrt())["x"]
    estimate = relative_difference(noisy, alone(X)["x"], 0.0)
    assert error / 3 < estimate < error * 3
    scaled = relative_difference(alone(X * (1 + error))["x"], alone(X)["x"], 0.0)
    assert scaled >= error * 0.9


def test_a_rank_that_differs_counts() -> None:
    """Of a tensor that all hold the farthest from the mean is taken; NaN is farther than any."""
    assert together([X, X, X * 2]) == alone(X * 2)
    broken = together([X, X * torch.nan])
    assert math.isinf(relative_difference(broken["x"], alone(X)["x"], 0.0))


def test_it_takes_no_memory_beyond_one_tensor() -> None:
    """Slices in float64, and what is left of rows: less than a float32 tensor of 16 MiB."""
    x = torch.randn(4, 2048, 512)
    with LiveStorages([x]) as tracker:
        alone(x)
    assert tracker.peak_bytes < 2 * x.nbytes


def test_the_tensor_is_named() -> None:
    """The one that is furthest beyond its tolerance."""
    two = {"a": alone(X)["x"], "b": alone(X)["x"]}
    off = two | {"b": alone(X * 1.1)["x"]}
    far = farthest(off, two, dict.fromkeys(two, TOLERANCE["float32"]))
    assert (far.name, far.excess > 1) == ("b", True)
    assert farthest({"a": two["a"]}, two, {"a": 1.0}).excess == math.inf


def shaken(x: Tensor, relative: float, seed: int) -> Tensor:
    """``x`` and random differences of this size."""
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    return x + relative * noise * x.square().mean().sqrt()


def step(output: Tensor, *gradients: Tensor) -> Fingerprint:
    named = {"output": output} | {f"gradient of {i}": x for i, x in enumerate(gradients)}
    return {name: alone(x)["x"] for name, x in named.items()}


@pytest.mark.parametrize(("dtype", "rounding"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_steps_without_noise_are_equal_but_for_a_rounding(dtype: str, rounding: float) -> None:
    """As on a CPU: an output has none even."""
    first = step(X, X, X)
    repeats = Repeats.of(first, first, dtype)
    assert repeats.tolerances["output"] == 1e-4
    assert repeats.tolerances["gradient of 0"] == rounding
    assert repeats.farthest(first, first).excess == 0
    assert repeats.farthest(step(X * 1.005, X, X), first).name == "output"
    assert repeats.farthest(step(X * 1.005, X, X), first).excess == pytest.approx(50, rel=1e-3)
    assert repeats.farthest(step(X, X, X * 1.005), first).excess > 1


@pytest.mark.parametrize("noise", [0.0008, 0.003, 0.0104])
def test_steps_may_be_as_noisy_as_a_repeated_one(noise: float) -> None:
    """As an H200's gradients were, whose kernels add in another order each time."""
    first = step(X, *[X] * 9)
    for seed in range(0, 200, 20):
        steps = [
            step(X, *[shaken(X, noise, seed + 10 * again + i) for i in range(9)])
            for again in range(2)
        ]
        repeats = Repeats.of(first, steps[0], "bfloat16")
        assert repeats.farthest(steps[1], first).excess < 0.7
        assert repeats.farthest(step(X * 1.005, *[X] * 9), first).name == "output"
        if noise < 0.001:
            assert repeats.farthest(step(X, *[X] * 8, X * 1.2), first).excess > 1


def test_a_gradient_of_nothing_but_rounding_is_no_repetition() -> None:
    """Its digits are others each time, and it is nothing beside the rest."""
    first = step(X, X, X, 1e-4 * X)
    repeats = Repeats.of(first, step(X, X, X, 1e-4 * X.flip(1)), "bfloat16")
    assert repeats.farthest(step(X, X, X, 1e-4 * X.flip(2)), first).excess < 1
    nothing = step(0 * X, 0 * X)
    assert Repeats.of(nothing, nothing, "bfloat16").farthest(nothing, nothing).excess == 0
