"""Adapters of other packages: what they refuse, what they predict, and what stands in for them.

None of the packages but torch is needed here.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from spbench.errors import Failure
from spbench.strategies.registry import PACKAGES, VENDORS, forms_of, in_mesh, load
from spbench.vendors import package
from spbench.vendors.flash_attn_stand_in import flash_attn_there
from spbench.workload.catalogue import find
from spbench.workload.mesh import CaseMesh
from spbench.workload.traffic import by_op, by_phase, count
from spbench.workload.workload import Workload

MOST_LINES = 60
ALONE = find("attention-alone", "verify")
OTHERS = [name for name in VENDORS if not name.startswith("torch-")]


def of(name: str = "attention-alone", **changes: Any) -> Workload:
    return find(name, "verify").model_copy(update=changes)


@pytest.fixture
def all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every package counts as installed, and torch as having a GPU."""
    monkeypatch.setattr(package, "installed", lambda _: package.distribution("torch"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.parametrize("name", VENDORS)
def test_an_adapter_is_short(name: str) -> None:
    module = import_module(VENDORS[name].partition(":")[0])
    assert len(Path(str(module.__file__)).read_text().splitlines()) <= MOST_LINES


@pytest.mark.parametrize("name", VENDORS)
def test_lists_know_what_an_adapter_needs(name: str) -> None:
    """Without loading it."""
    strategy: Any = load(name)
    assert PACKAGES[name] == (strategy.package, *strategy.needs)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_installed_is_named_with_what_installs_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "installed", lambda _: None)
    strategy: Any = load(name)
    declined = strategy.declines(ALONE, 2)
    assert strategy.package in declined
    assert (strategy.command or f"spbench[{strategy.package}]") in declined
    assert strategy.origin == ""


@pytest.mark.parametrize("name", ["te-cp", "xfuser-usp"])
def test_code_for_gpus_is_declined_without_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "installed", lambda _: package.distribution("torch"))
    work = of(dtype="bfloat16")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert load(name).declines(work, 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert load(name).declines(work, 2) is None


@pytest.mark.usefixtures("all_there")
@pytest.mark.parametrize(
    ("name", "changes", "ranks"),
    [
        ("deepspeed-ulysses", {"heads": 6, "kv_heads": 6}, 4),
        ("deepspeed-ulysses", {"kv_heads": 2}, 4),
        ("deepspeed-alst", {"kv_heads": 3}, 4),
        ("yunchang-ring", {"axes": {"sequence": 385}}, 2),
        ("yunchang-ring", {"dtype": "float64"}, 2),
        ("yunchang-usp:ulysses=2", {"kv_heads": 3}, 4),
        ("yunchang-usp:ulysses=4", {}, 4),
        ("yunchang-usp:ulysses=3", {}, 4),
        ("yunchang-usp:ulysses=some", {}, 4),
        ("diffusers-ring", {"kv_heads": 6}, 2),
        ("te-cp", {"dtype": "bfloat16", "axes": {"sequence": 6}}, 2),
        ("ring-attention-pytorch", {"dtype": "bfloat16"}, 2),
        ("megatron-core-sp", {}, 2),
    ],
)
def test_cases_that_are_refused(name: str, changes: dict[str, Any], ranks: int) -> None:
    assert load(name).declines(of(**changes), ranks)


@pytest.mark.usefixtures("all_there")
@pytest.mark.parametrize(
    ("name", "work", "ranks"),
    [
        ("deepspeed-ulysses", of(kv_heads=2), 2),
        ("deepspeed-alst", of(kv_heads=2), 4),
        ("yunchang-usp:ulysses=2", of(kv_heads=2), 4),
        ("yunchang-ring", of("attention-alone-causal", axes={"sequence": 24}), 3),
        ("diffusers-usp", of(), 3),
        ("megatron-core-sp", find("gpt-7b-small"), 4),
        ("colossalai-rsa", of(), 4),
    ],
)
def test_cases_that_are_taken(name: str, work: Workload, ranks: int) -> None:
    assert load(name).declines(work, ranks) is None


@pytest.mark.usefixtures("all_there")
def test_neighbours_by_default_are_as_many_as_leave_a_ring() -> None:
    strategy: Any = load("yunchang-usp")

    def neighbours(ranks: int, name: str = "attention-alone", **changes: Any) -> int:
        return int(strategy.on(of(name, **changes), ranks).strategy.ulysses)

    sizes = {ranks: neighbours(ranks) for ranks in (2, 3, 4, 6, 8)}
    assert sizes == {2: 1, 3: 1, 4: 2, 6: 3, 8: 4}
    assert neighbours(6, kv_heads=3) == 3
    assert neighbours(8, kv_heads=1) == 1
    # Under a mask of 3 neighbours each of 2 groups has two ends: 12 parts, which 18 does not make.
    assert neighbours(6, "attention-alone-causal", axes={"sequence": 18}) == 2


@pytest.mark.usefixtures("all_there")
@pytest.mark.parametrize("name", [*VENDORS, *forms_of([*VENDORS])])
def test_each_rank_has_its_bytes(name: str) -> None:
    """As many ranks as there are, in groups of guidance too."""
    dtype = "bfloat16" if name in ("te-cp", "xfuser-usp") else "float32"
    mode = "forward" if name == "yunchang-ulysses:torch" else "train"
    work = of(dtype=dtype, mode=mode, guidance=2)
    for ranks, cfg in ((4, 1), (6, 1), (4, 2)):
        strategy = in_mesh(name, CaseMesh(cfg=cfg))
        if strategy.declines(work, ranks) is None:
            plan = strategy.on(work, ranks)
            assert {len(transfer.sent) for transfer in plan.traffic} == {ranks}


@pytest.mark.usefixtures("all_there")
def test_bytes_by_hand() -> None:
    """On 4 ranks, of M bytes in each of q, k, v and out: 2 neighbours, and 2 groups in a ring."""
    work = of(dtype="bfloat16")
    m = work.key_bytes

    def sent(name: str) -> tuple[dict[str, int], dict[str, int]]:
        total = count(load(name).on(work, 4).traffic, 0)
        return by_op(total), by_phase(total)

    ops, phases = sent("yunchang-usp")
    # Four tensors, half of a quarter each way; a block of K and V is 2 M / 4, float32 doubles it.
    assert ops["all_to_all"] == 2 * 4 * m // 8
    assert ops["p2p"] == m // 2 + m // 2 + 2 * m
    assert phases["forward"] == 4 * m // 8 + m // 2
    ops, _ = sent("te-cp")
    assert ops["p2p"] == 3 * 3 * m // 2
    ops, phases = sent("deepspeed-alst")
    positions = 3 * 8 * work.samples * work.tokens // 4
    assert ops["all_gather"] == positions
    assert phases["forward"] == positions + 4 * 3 * m // 16
    ops, _ = sent("colossalai-rsa")
    assert ops["all_reduce"] == 2 * 6 * m // 4
    assert ops["p2p"] == 4 * 3 * m // 4


def test_what_stands_in_for_flash_attn() -> None:
    """Its result, log-sum-exps and gradients are those of attention, and no one finds it later."""
    with flash_attn_there():
        import flash_attn  # type: ignore[import-not-found]
        from flash_attn.flash_attn_interface import _flash_attn_backward, _flash_attn_forward  # type: ignore[import-not-found]
    assert not [name for name in sys.modules if name.startswith("flash_attn")]
    q, k, v, grad = (torch.randn(2, 6, 4, 8, requires_grad=True) for _ in range(4))
    out, lse, *_ = _flash_attn_forward(q, k, v, causal=True)
    folded = (x.transpose(1, 2) for x in (q, k, v))
    right = F.scaled_dot_product_attention(*folded, is_causal=True).transpose(1, 2)
    torch.testing.assert_close(out, right)
    torch.testing.assert_close(flash_attn.flash_attn_func(q, k, v, causal=True), right)
    scores = torch.einsum("bqzd,bkzd->bzqk", q, k) * 8**-0.5
    seen = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(lse, seen.logsumexp(-1))
    into = [torch.empty_like(x) for x in (q, k, v)]
    _flash_attn_backward(grad, q, k, v, out, lse, *into, causal=True)
    torch.testing.assert_close(into, list(torch.autograd.grad(right, (q, k, v), grad)))


def test_a_patch_leaves_the_stock_form_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_package.py").write_text(
        "def half(x):\n    return x / 4\n\n\ndef whole(x):\n    return 2 * half(x)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    stock = import_module("a_package")
    own = package.patched("a_package", ("half", "whole"), (("x / 4", "x / 2"),))
    assert (own.whole(8), stock.whole(8)) == (8, 4)
    with pytest.raises(Failure):
        package.patched("a_package", ("half",), (("x / 3", "x / 2"),))
