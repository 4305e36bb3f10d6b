"""Fingerprints: ranks find together what one finds alone, and how far steps are apart."""

from __future__ import annotations

import math
from types import MappingProxyType

import pytest
import torch
from torch import Tensor

from spbench.results.agreement import TOLERANCE, Fingerprint, farthest, relative_difference
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
