"""The own scatter of strategies: free cases, groups that weigh the same, one group left out."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from published_points import read_each
from published_scatter import (
    FEWEST,
    MOST_TIMES,
    WITHIN,
    CellErrors,
    Scatter,
    held,
    shared_part,
    variance,
)
from published_score import judge, summary
from test_published import TEXT, by_hand

from spbench.projection.costmodel.scatter import figures
from spbench.projection.dryrun.work import Work
from spbench.workload.workload import Workload


def cell(*errors: float) -> CellErrors:
    return [(f"strategy-{place}", error) for place, error in enumerate(errors)]


def test_a_cell_of_few_cases_is_corrected_for_its_mean() -> None:
    """Cells of two cases, with errors of a known spread, have that spread on average."""
    random = np.random.default_rng(0)
    cells = [cell(*random.normal(0.7, 0.2, 2)) for _ in range(4000)]
    assert variance(cells) == pytest.approx(0.2**2, rel=0.05)


def scatter_of(*spreads: float, name: str = "pcie, one node") -> Scatter:
    """Groups of one cell of two cases each, of these standard deviations."""
    apart = math.sqrt(0.5)  # of two cases that are so far from their mean
    cells = [cell(-apart * spread, apart * spread) for spread in spreads]
    return Scatter.of((number, name, errors) for number, errors in enumerate(cells))


def test_each_group_weighs_the_same() -> None:
    """However many cells it has."""
    few, many = cell(0.1, -0.1), cell(0.2, -0.2)
    cells = [(0, "a", few), (1, "a", few), (2, "a", many)]
    again = [*cells, *[(2, "a", many)] * 50]
    assert Scatter.of(cells).factor("a", 2) == pytest.approx(Scatter.of(again).factor("a", 2))


def test_the_factor_holds_95_of_100() -> None:
    assert scatter_of(0.1, 0.1, 0.1).factor("pcie, one node", 2) == pytest.approx(
        math.exp(WITHIN * 0.1)
    )


def test_one_source_does_not_decide_all() -> None:
    """A group counts with three times the spread of the median group at most."""
    spreads = [0.05, 0.08, 0.1, 0.1, 0.12, 0.2]
    limit, beyond = (
        scatter_of(*spreads, last).factor("pcie, one node", 2) for last in (0.1 * MOST_TIMES, 5.0)
    )
    assert beyond == pytest.approx(limit)
    assert beyond < 1.4


def test_a_group_is_judged_by_the_others() -> None:
    """Of its class, or where these are too few by the widest class."""
    nvlink = [(n, "nvlink, one node", cell(0.1, -0.1)) for n in range(FEWEST)]
    pcie = [(n + 10, "pcie, one node", cell(0.2, -0.2)) for n in range(FEWEST)]
    scatter = Scatter.of([*nvlink, *pcie, (20, "pcie, one node", cell(0.3, -0.3))])
    wide, narrow = (math.exp(WITHIN * math.sqrt(2) * x) for x in (0.2, 0.1))
    assert scatter.factor("pcie, one node", 2, without=20) == pytest.approx(wide)
    assert scatter.factor("nvlink, one node", 2) == pytest.approx(narrow)
    of_two = scatter.factor("nvlink, one node", 2, without=0)
    assert (
        of_two == scatter.factor("mesh, one node", 2) == scatter.factor("pcie, one node", 2) > wide
    )


def test_what_the_scatter_holds_is_counted_on_groups_that_are_left_out() -> None:
    """Of normal errors it holds 95 of 100, however few cases a cell has; of others it says so."""
    random = np.random.default_rng(0)
    cells = [(n // 20, "a", cell(*random.normal(0.0, 0.1, 2))) for n in range(8000)]
    errors = [(number, each) for number, _, each in cells]
    assert held(errors, Scatter.of(cells), "a") == pytest.approx(0.95, abs=0.01)
    wide = [(number, [(name, 2 * error) for name, error in each]) for number, each in errors]
    assert held(wide, Scatter.of(cells), "a") == pytest.approx(0.67, abs=0.02)
    assert held([(0, cell(0.1))], Scatter.of(cells), "a") is None


def test_points_too_few_for_a_scatter_have_the_packages() -> None:
    """That of their class, or its widest."""
    scatter, of_package = scatter_of(0.5, 0.5), figures()
    assert scatter.factor("pcie, one node", 8) == of_package.classes["pcie, one node"].scatter
    widest = max(each.scatter for each in of_package.classes.values())
    assert scatter.factor("mesh, one node", 8) == widest


def test_variants_share_what_their_ratios_lack() -> None:
    """Variants that are off alike share all, and those as far apart as strategies nothing."""
    alike = [("ring", 0.1), ("usp:ulysses=2, cfg 2", -0.1), ("usp:ulysses=4", -0.1)]
    assert shared_part([[alike]]) == pytest.approx(1.0)
    apart = [("usp", 0.0), ("usp:ulysses=4", 0.2), ("ring", 0.2), ("ring:unbalanced", 0.0)]
    assert shared_part([[apart]]) == pytest.approx(-1.0)
    assert shared_part([[[("ring", 0.1), ("ulysses", 0.2)]]]) is None


def test_what_was_named_is_held_against_what_was_published(tmp_path: Path) -> None:
    """A winner in nine of ten draws is the published one, or not told apart from it, or wrong."""

    def far_apart(workload: Workload, strategy: str, ranks: int) -> Work:
        work = by_hand(workload, strategy, ranks)
        if strategy == "ulysses":
            return work
        slow = {kernel: 10_000 * times for kernel, times in work.kernels.items()}
        return Work(mesh=work.mesh, dtype=work.dtype, kernels=slow, messages=work.messages)

    texts = [
        TEXT,
        TEXT.replace("value: 12.0", "value: 12.0, low: 9.0"),
        TEXT.replace("12.0", "9.0"),
    ]
    expected = [(1, 0, 0), (1, 1, 0), (1, 1, 1)]
    for text, named in zip(texts, expected, strict=True):
        path = tmp_path / "points.yaml"
        path.write_text(text)
        points, wrong = read_each(path)
        assert not wrong
        groups, _ = judge(points, far_apart)
        total = summary(groups)
        assert tuple(total[x] for x in ("named", "named_rightly", "named_best")) == named


def test_a_broken_point_never_ends_the_others(tmp_path: Path) -> None:
    """A range that does not hold its value is named with its line, and a case that comes out at no
    time at all by what its scatter cannot be; the point between them is scored."""
    head, _, mine = TEXT.partition("- id: mine\n")
    wrong_range = mine.replace("value: 12.0", "value: 12.0, low: 13.0")
    breaks = mine.replace("seq: 4096", "seq: 8192")
    path = tmp_path / "points.yaml"
    path.write_text(f"{head}- id: first\n{wrong_range}- id: second\n{mine}- id: third\n{breaks}")
    points, wrong = read_each(path)
    assert [each.id for each in wrong] == ["first"]
    assert f"{path}:16" in wrong[0].why

    def nothing(workload: Workload, strategy: str, ranks: int) -> Work:
        work = by_hand(workload, strategy, ranks)
        if workload.tokens == 4096:
            return work
        return Work(mesh=work.mesh, dtype=work.dtype, kernels={}, messages={})

    groups, unjudged = judge(points, nothing)
    assert [group["group"] for group in groups] == ["second"]
    assert set(unjudged) == {"third"}
    assert summary(groups)["worst_regret"] == pytest.approx(0.2)
